"""Where a server keeps what must not be lost: contracts, SQLite, PostgreSQL, snapshots."""
