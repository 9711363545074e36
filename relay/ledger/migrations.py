"""What is in the ledger's file, version by version. One that was released is not changed."""

from __future__ import annotations

from relay.ledger.broker_tables import AUTOMATION_TABLES, BROKER_TABLES

#: One tuple of statements for each version, applied in one transaction each.
#:
#: ``events`` is append-only: everything that happens is a row, a message is one of kind
#: ``message``. ``agent`` is who it came from, ``origin`` what that is (agent, person, relay).
#: ``deliveries`` is keyed so that new rows are appended, and has one index: by recipient, the open
#: ones first. That serves the queue, the inbox and the count of unread with one B-tree to write.
#: ``senders`` says in which blocks of ``1 << BLOCK_BITS`` events somebody spoke: it lets a search
#: for one sender skip the others' blocks, for a row a block instead of an index entry a message.
#: ``hops`` counts the messages between agents that led to this one, itself included; one that is
#: ``parked`` (not 0) is offered to nobody before the person lets it go on (see HeldFor);
#: those of an agent are of what made it speak: a broker that is killed does not begin anew.
#: ``hook_invocations`` holds each run of a hook (relay.hooks.hook_log); ``duration`` in seconds.
#: ``nonce_key`` is what the nonces of messages are made with (relay.core.message).
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            agent TEXT COLLATE NOCASE,
            origin TEXT NOT NULL,
            mode TEXT,
            thread TEXT,
            body TEXT,
            meta_json TEXT,
            created_ms INTEGER NOT NULL
        )""",
        """CREATE TABLE deliveries (
            event INTEGER NOT NULL REFERENCES events (seq),
            recipient TEXT NOT NULL COLLATE NOCASE,
            n INTEGER NOT NULL,
            open INTEGER NOT NULL,
            state TEXT NOT NULL,
            reason TEXT,
            proof TEXT,
            attempts INTEGER NOT NULL DEFAULT 0,
            delivering_ms INTEGER,
            submitted_ms INTEGER,
            updated_ms INTEGER NOT NULL,
            PRIMARY KEY (event, recipient)
        ) WITHOUT ROWID""",
        "CREATE INDEX deliveries_recipient ON deliveries (recipient, open, event)",
        """CREATE TABLE agents (
            name TEXT PRIMARY KEY COLLATE NOCASE,
            person INTEGER NOT NULL,
            run TEXT,
            token_hash TEXT,
            kind TEXT NOT NULL,
            pid INTEGER,
            cwd TEXT,
            command TEXT,
            state TEXT NOT NULL,
            reason TEXT,
            since_ms INTEGER NOT NULL,
            last_seen_ms INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE senders (
            agent TEXT NOT NULL COLLATE NOCASE,
            block INTEGER NOT NULL,
            PRIMARY KEY (agent, block)
        ) WITHOUT ROWID""",
        "INSERT INTO senders SELECT DISTINCT agent, seq >> 12 FROM events WHERE agent NOT NULL",
    ),
    (
        "ALTER TABLE deliveries ADD COLUMN hops INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE deliveries ADD COLUMN parked INTEGER NOT NULL DEFAULT 0",
    ),
    (
        """CREATE TABLE hook_invocations (
            seq INTEGER PRIMARY KEY,
            created_ms INTEGER NOT NULL,
            run TEXT NOT NULL,
            agent TEXT NOT NULL COLLATE NOCASE,
            event TEXT NOT NULL,
            hook TEXT NOT NULL,
            kind TEXT NOT NULL,
            source TEXT NOT NULL,
            correlation_id TEXT NOT NULL,
            success INTEGER NOT NULL,
            decision TEXT NOT NULL,
            duration REAL NOT NULL,
            exit_status INTEGER,
            stdout TEXT NOT NULL,
            stderr TEXT NOT NULL,
            error TEXT NOT NULL
        )""",
    ),
    ("ALTER TABLE agents ADD COLUMN hops INTEGER NOT NULL DEFAULT 0",),
    (
        "CREATE TABLE nonce_key (key BLOB NOT NULL)",
        "INSERT INTO nonce_key VALUES (randomblob(32))",
    ),
    (
        # Once ``held`` was also what waited for a name, or for a draft to be sent.
        "UPDATE deliveries SET state = 'waiting' WHERE state = 'held' AND parked = 0"
        " AND recipient NOT IN (SELECT name FROM agents)",
        "UPDATE deliveries SET state = 'queued' WHERE state = 'held' AND parked = 0",
    ),
    ("ALTER TABLE deliveries ADD COLUMN decided TEXT",),
    BROKER_TABLES,
    AUTOMATION_TABLES,
    (
        # Who is in which channel, and of whom somebody wants to hear that they come and go.
        """CREATE TABLE memberships (
            name TEXT NOT NULL COLLATE NOCASE,
            channel TEXT NOT NULL,
            joined_ms INTEGER NOT NULL,
            PRIMARY KEY (name, channel)
        ) WITHOUT ROWID""",
        """CREATE TABLE presence_wanted (
            name TEXT NOT NULL COLLATE NOCASE,
            who TEXT NOT NULL,
            PRIMARY KEY (name, who)
        ) WITHOUT ROWID""",
        "ALTER TABLE agents ADD COLUMN roles TEXT NOT NULL DEFAULT ''",
    ),
    (
        # ``task``: the message that the agent was at work on, '' after a word of the person.
        """CREATE TABLE usage (
            run TEXT NOT NULL,
            model TEXT NOT NULL,
            day TEXT NOT NULL,
            task TEXT NOT NULL,
            agent TEXT NOT NULL COLLATE NOCASE,
            input INTEGER NOT NULL,
            output INTEGER NOT NULL,
            cached INTEGER NOT NULL,
            written INTEGER NOT NULL,
            PRIMARY KEY (run, model, day, task)
        ) WITHOUT ROWID""",
        "CREATE INDEX usage_by_day ON usage (day)",
    ),
    ("ALTER TABLE agents ADD COLUMN conversation TEXT NOT NULL DEFAULT ''",),
    (
        # Answers that were asked for: see relay.ledger.obligation_rows.
        """CREATE TABLE obligations (
            recipient TEXT NOT NULL COLLATE NOCASE,
            event INTEGER NOT NULL,
            by_message INTEGER NOT NULL,
            PRIMARY KEY (recipient, event)
        ) WITHOUT ROWID""",
    ),
    (
        # What was started without a terminal, and by which agent: see relay.ledger.spawn_rows.
        """CREATE TABLE spawned (
            name TEXT PRIMARY KEY COLLATE NOCASE,
            parent TEXT NOT NULL COLLATE NOCASE,
            wanted_json TEXT NOT NULL,
            started_ms INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    (
        # What events with secrets say, for those who still have to get it: see Ledger.shown.
        "CREATE TABLE originals (event INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    ),
    (
        # ``parked`` says what for (relay.core.message.HeldFor); until then only the reason did.
        "UPDATE deliveries SET parked = CASE"
        " WHEN reason LIKE 'a shell showed it%' THEN 3 WHEN reason LIKE 'the cap of %' THEN 4"
        " WHEN reason GLOB '[0-9]*' THEN 2 ELSE 1 END WHERE parked = 1",
    ),
    (
        # How many of its migrations each feature with tables of its own has had.
        "CREATE TABLE feature_tables (feature TEXT PRIMARY KEY, version INTEGER NOT NULL)"
        " WITHOUT ROWID",
    ),
    (
        # What handlers are to be asked: see relay.features.personas.due_rows. Until then the state
        # stood before the handler, or in a row of its own.
        """CREATE TABLE due (
            handler TEXT NOT NULL,
            event INTEGER NOT NULL REFERENCES events (seq),
            state TEXT NOT NULL,
            hops INTEGER NOT NULL,
            tries INTEGER NOT NULL,
            PRIMARY KEY (handler, event)
        ) WITHOUT ROWID""",
        "CREATE INDEX due_later ON due (event) WHERE state != 'ready'",
        """INSERT OR IGNORE INTO due SELECT
            iif(handler='automations/blocking', 'automations', handler), event,
            CASE WHEN held THEN 'held' WHEN EXISTS (SELECT 1 FROM evaluations_due b
                WHERE b.event = o.event AND b.config='automations/blocking') THEN 'blocked'
                ELSE 'ready' END, hops, 0
            FROM (SELECT config LIKE 'held/%' AS held, event, hops,
                iif(config LIKE 'held/%', substr(config, 6), config) AS handler
                FROM evaluations_due) o""",
        "DROP TABLE evaluations_due",
    ),
)
