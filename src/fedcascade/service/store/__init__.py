"""The durable data of a server: contracts, SQLite, PostgreSQL, snapshots."""
