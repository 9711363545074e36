"""The broker: one process per RELAY_HOME that owns the ledger and routes every message."""
