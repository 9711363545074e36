"""The tables of links."""

MIGRATIONS = (
    (
        # What is on its way to another machine; ``stored``: it is in that machine's ledger.
        """CREATE TABLE link_outbox (
            n INTEGER PRIMARY KEY AUTOINCREMENT,
            machine TEXT NOT NULL,
            id TEXT NOT NULL,
            told TEXT NOT NULL,
            stored INTEGER NOT NULL DEFAULT 0,
            UNIQUE (machine, id)
        )""",
        "CREATE INDEX link_outbox_open ON link_outbox (machine, n) WHERE stored=0",
        # The last number that is here, by the machine that gave it.
        "CREATE TABLE link_arrived (machine TEXT PRIMARY KEY, last INTEGER NOT NULL)",
        # ``told``: its agents, as it said last. ``rights``: what they may do here.
        """CREATE TABLE link_machines (
            name TEXT PRIMARY KEY,
            seen_ms INTEGER,
            told TEXT NOT NULL DEFAULT '[]',
            rights TEXT NOT NULL DEFAULT ''
        )""",
    ),
    (
        # Messages that were not taken, by id: one that comes again is not judged again.
        """CREATE TABLE link_refused (
            n INTEGER PRIMARY KEY,
            machine TEXT NOT NULL,
            id TEXT NOT NULL,
            reason TEXT NOT NULL,
            UNIQUE (machine, id)
        )""",
    ),
)
