"""The feature's tables in the ledger. A migration that was released is never changed."""

MIGRATIONS = (("CREATE TABLE shout_counts (name TEXT PRIMARY KEY, shouts INTEGER NOT NULL)",),)
