"""Process 3: the broker, one per RELAY_HOME, owns the ledger and routes every message."""
