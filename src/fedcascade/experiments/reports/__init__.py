"""HTML reports, tables and figures of finished runs."""
