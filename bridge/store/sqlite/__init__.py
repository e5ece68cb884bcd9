"""The durable store in a SQLite database, and its files."""
