"""The ledger: the schema and the only SQL."""
