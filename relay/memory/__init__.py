"""What agents remember: the records, the protocol of a backend, and the default one on SQLite."""
