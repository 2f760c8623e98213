"""Who arrives, what is on the shelf, what gets clicked."""
