"""What is in the ledger's file, version by version. One that was released is not changed."""

from __future__ import annotations

#: Version 9 is the broker's (docs/ledger.md). An event of another channel than relay's is known by
#: (channel, source_id). ``evaluations_due`` (``due`` since version 19) is written with its event,
#: and goes with the commit that has its ``hook_evaluations`` and ``dispatches``: a broker that is
#: killed in between evaluates again. What most route functions say of most events is nothing: that
#: is one row of ``quiet_evaluations`` for all of them; the view ``evaluations`` has each apart.
#: ``dispatches`` is the queue of personas: ``open`` until a turn has answered it, or it is dead.
#: ``fence`` counts leases: what a former holder reports is refused. ``answers`` is what goes out on
#: channels. ``agent_*`` is the agent ledger: relay's own turns, and those of ``ingested_files``;
#: ``own_conversations`` are never ingested.
_BROKER_TABLES: tuple[str, ...] = (
    *(
        f"ALTER TABLE events ADD COLUMN {column}"
        for column in (
            "channel TEXT NOT NULL DEFAULT 'relay'",
            "source_id TEXT",
            "account TEXT",
            "peer_kind TEXT",
            "peer TEXT",
            "reply_to TEXT",
            "content_type TEXT",
            "occurred_ms INTEGER",
        )
    ),
    "CREATE UNIQUE INDEX events_source ON events (channel, source_id) WHERE source_id IS NOT NULL",
    *(
        f"CREATE TRIGGER events_no_{what.lower()} BEFORE {what} ON events"
        " BEGIN SELECT RAISE(ABORT, 'events are never changed'); END"
        for what in ("UPDATE", "DELETE")
    ),
    """CREATE TABLE threads (
        channel TEXT NOT NULL,
        id TEXT NOT NULL,
        name TEXT,
        is_group INTEGER NOT NULL,
        peer TEXT,
        created_ms INTEGER NOT NULL,
        PRIMARY KEY (channel, id)
    ) WITHOUT ROWID""",
    """CREATE TABLE persons (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        type TEXT NOT NULL,
        relationship TEXT,
        merged_into TEXT REFERENCES persons (id),
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE person_addresses (
        channel TEXT NOT NULL,
        address TEXT NOT NULL COLLATE NOCASE,
        person TEXT NOT NULL REFERENCES persons (id),
        PRIMARY KEY (channel, address)
    ) WITHOUT ROWID""",
    "CREATE INDEX person_addresses_person ON person_addresses (person)",
    """CREATE TABLE event_participants (
        event INTEGER NOT NULL REFERENCES events (seq),
        person TEXT NOT NULL REFERENCES persons (id),
        role TEXT NOT NULL,
        PRIMARY KEY (event, person, role)
    ) WITHOUT ROWID""",
    """CREATE TABLE event_state (
        event INTEGER PRIMARY KEY REFERENCES events (seq),
        status TEXT,
        read INTEGER NOT NULL DEFAULT 0,
        flagged INTEGER NOT NULL DEFAULT 0,
        archived INTEGER NOT NULL DEFAULT 0,
        updated_ms INTEGER NOT NULL
    )""",
    """CREATE TABLE event_tags (
        event INTEGER NOT NULL REFERENCES events (seq),
        tag TEXT NOT NULL,
        source TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        PRIMARY KEY (event, tag)
    ) WITHOUT ROWID""",
    """CREATE TABLE event_files (
        event INTEGER NOT NULL REFERENCES events (seq),
        n INTEGER NOT NULL,
        sha256 TEXT NOT NULL,
        name TEXT NOT NULL,
        content_type TEXT NOT NULL,
        size INTEGER NOT NULL,
        PRIMARY KEY (event, n)
    ) WITHOUT ROWID""",
    """CREATE TABLE evaluations_due (
        config TEXT NOT NULL,
        event INTEGER NOT NULL REFERENCES events (seq),
        hops INTEGER NOT NULL,
        PRIMARY KEY (config, event)
    ) WITHOUT ROWID""",
    """CREATE TABLE hook_evaluations (
        event INTEGER NOT NULL REFERENCES events (seq),
        hook_id TEXT NOT NULL,
        started_ms INTEGER NOT NULL,
        latency_us INTEGER NOT NULL,
        fired INTEGER NOT NULL,
        result_json TEXT,
        error TEXT,
        PRIMARY KEY (event, hook_id)
    ) WITHOUT ROWID""",
    """CREATE TABLE quiet_evaluations (
        seq INTEGER PRIMARY KEY,
        event INTEGER NOT NULL REFERENCES events (seq),
        config TEXT NOT NULL,
        started_ms INTEGER NOT NULL,
        latencies_json TEXT NOT NULL,
        UNIQUE (event, config)
    )""",
    """CREATE VIEW evaluations AS
        SELECT event, hook_id, started_ms, latency_us, fired, result_json, error
            FROM hook_evaluations
        UNION ALL SELECT q.event, q.config || '/' || j.key, q.started_ms, j.value, 0, NULL, NULL
            FROM quiet_evaluations q, json_each(q.latencies_json) j""",
    """CREATE TABLE disabled_hooks (
        hook_id TEXT PRIMARY KEY,
        reason TEXT NOT NULL,
        event INTEGER REFERENCES events (seq),
        disabled_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE agent_sessions (
        id TEXT PRIMARY KEY,
        source TEXT NOT NULL,
        persona TEXT COLLATE NOCASE,
        label TEXT,
        external_id TEXT,
        head_turn TEXT REFERENCES agent_turns (id),
        model TEXT,
        project TEXT,
        parent_session TEXT REFERENCES agent_sessions (id),
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        message_count INTEGER NOT NULL DEFAULT 0,
        meta_json TEXT
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX agent_sessions_label ON agent_sessions (persona, label)"
    " WHERE label IS NOT NULL",
    "CREATE UNIQUE INDEX agent_sessions_external ON agent_sessions (source, external_id)"
    " WHERE external_id IS NOT NULL",
    """CREATE TABLE session_aliases (
        persona TEXT NOT NULL COLLATE NOCASE,
        alias TEXT NOT NULL,
        label TEXT NOT NULL,
        reason TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        PRIMARY KEY (persona, alias)
    ) WITHOUT ROWID""",
    """CREATE TABLE dispatches (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        event INTEGER NOT NULL REFERENCES events (seq),
        hook_id TEXT NOT NULL,
        persona TEXT NOT NULL COLLATE NOCASE,
        session TEXT NOT NULL,
        mode TEXT NOT NULL,
        priority INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        hops INTEGER NOT NULL,
        config TEXT NOT NULL,
        permissions_json TEXT NOT NULL,
        context_json TEXT NOT NULL,
        delivery_json TEXT NOT NULL,
        open INTEGER NOT NULL,
        state TEXT NOT NULL,
        reason TEXT,
        attempts INTEGER NOT NULL DEFAULT 0,
        fence INTEGER NOT NULL DEFAULT 0,
        lease_owner TEXT,
        lease_until_ms INTEGER,
        updated_ms INTEGER NOT NULL,
        turn TEXT REFERENCES agent_turns (id),
        message TEXT REFERENCES events (id) DEFERRABLE INITIALLY DEFERRED
    )""",
    "CREATE INDEX dispatches_message ON dispatches (message) WHERE open",
    "CREATE INDEX dispatches_dead ON dispatches (seq) WHERE state = 'dead'",
    "CREATE INDEX dispatches_open ON dispatches (persona, session, seq) WHERE open",
    "CREATE INDEX dispatches_event ON dispatches (event)",
    """CREATE TABLE agent_turns (
        id TEXT PRIMARY KEY,
        session TEXT NOT NULL REFERENCES agent_sessions (id),
        parent_turn TEXT REFERENCES agent_turns (id),
        source_id TEXT,
        model TEXT,
        state TEXT NOT NULL,
        reason TEXT,
        inferred INTEGER NOT NULL DEFAULT 0,
        started_ms INTEGER NOT NULL,
        ended_ms INTEGER,
        tokens_in INTEGER,
        tokens_out INTEGER,
        tool_call_count INTEGER NOT NULL DEFAULT 0,
        compacted_ms INTEGER
    )""",
    "CREATE UNIQUE INDEX agent_turns_source ON agent_turns (session, source_id)"
    " WHERE source_id IS NOT NULL",
    "CREATE INDEX agent_turns_session ON agent_turns (session)",
    """CREATE TABLE agent_messages (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session TEXT NOT NULL REFERENCES agent_sessions (id),
        turn TEXT REFERENCES agent_turns (id),
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        number INTEGER NOT NULL,
        event INTEGER REFERENCES events (seq),
        dispatch TEXT REFERENCES dispatches (id),
        created_ms INTEGER NOT NULL,
        UNIQUE (session, number)
    )""",
    "CREATE INDEX agent_messages_turn ON agent_messages (turn)",
    "CREATE INDEX agent_messages_event ON agent_messages (event) WHERE event IS NOT NULL",
    """CREATE TABLE agent_tool_calls (
        id TEXT PRIMARY KEY,
        session TEXT NOT NULL REFERENCES agent_sessions (id),
        turn TEXT REFERENCES agent_turns (id),
        message TEXT REFERENCES agent_messages (id),
        name TEXT NOT NULL,
        number INTEGER NOT NULL,
        params_json TEXT,
        result_json TEXT,
        state TEXT NOT NULL,
        child_session TEXT REFERENCES agent_sessions (id),
        started_ms INTEGER,
        completed_ms INTEGER
    )""",
    "CREATE INDEX agent_tool_calls_turn ON agent_tool_calls (turn)",
    """CREATE TABLE answers (
        id TEXT PRIMARY KEY,
        turn TEXT REFERENCES agent_turns (id),
        dispatch TEXT REFERENCES dispatches (id),
        channel TEXT NOT NULL,
        delivery_json TEXT NOT NULL,
        content TEXT NOT NULL,
        open INTEGER NOT NULL,
        state TEXT NOT NULL,
        reason TEXT,
        attempts INTEGER NOT NULL DEFAULT 0,
        due_ms INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL
    )""",
    "CREATE INDEX answers_open ON answers (channel, due_ms) WHERE open",
    """CREATE TABLE own_conversations (
        id TEXT PRIMARY KEY,
        session TEXT NOT NULL REFERENCES agent_sessions (id),
        created_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE ingested_files (
        path TEXT PRIMARY KEY,
        source TEXT NOT NULL,
        session TEXT REFERENCES agent_sessions (id),
        device_inode TEXT NOT NULL,
        offset INTEGER NOT NULL,
        state_json TEXT NOT NULL,
        updated_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
)

#: Version 10 is the automations' (docs/automations.md). The source of each version is kept here, so
#: that what runs is what was registered; ``definition_json`` is what the file says, once it was
#: loaded. ``folder``: the project to whose agents' events it is limited. ``errors`` and
#: ``opened_ms`` are its circuit, ``begun`` is the event that it was run for last. What is due is in
#: ``evaluations_due``, and in ``due`` since version 19.
_AUTOMATION_TABLES: tuple[str, ...] = (
    """CREATE TABLE automations (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL COLLATE NOCASE,
        version INTEGER NOT NULL,
        status TEXT NOT NULL,
        reason TEXT,
        folder TEXT,
        registered_by TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        errors INTEGER NOT NULL DEFAULT 0,
        opened_ms INTEGER,
        skipped INTEGER NOT NULL DEFAULT 0,
        last_fired_ms INTEGER,
        next_tick_ms INTEGER,
        begun INTEGER REFERENCES events (seq)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX automations_name ON automations (name) WHERE status != 'deleted'",
    """CREATE TABLE automation_versions (
        automation TEXT NOT NULL REFERENCES automations (id),
        version INTEGER NOT NULL,
        path TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        definition_json TEXT,
        registered_by TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        source TEXT NOT NULL,
        PRIMARY KEY (automation, version)
    )""",
    """CREATE TABLE automation_runs (
        seq INTEGER PRIMARY KEY,
        automation TEXT NOT NULL REFERENCES automations (id),
        version INTEGER NOT NULL,
        event INTEGER NOT NULL REFERENCES events (seq),
        started_ms INTEGER NOT NULL,
        latency_us INTEGER NOT NULL,
        fired INTEGER NOT NULL,
        retry INTEGER NOT NULL,
        llm_calls INTEGER NOT NULL,
        result_json TEXT,
        error TEXT,
        log TEXT,
        UNIQUE (event, automation)
    )""",
    "CREATE INDEX automation_runs_automation ON automation_runs (automation, seq)",
    "CREATE INDEX automation_runs_failed ON automation_runs (automation, seq)"
    " WHERE error IS NOT NULL",
    # Whose a session is.
    "CREATE INDEX agent_sessions_used ON agent_sessions (label, updated_ms)"
    " WHERE label IS NOT NULL",
    "CREATE INDEX evaluations_held ON evaluations_due (event)"
    " WHERE config>='held/' AND config<'held0'",
    """CREATE TABLE automation_state (
        automation TEXT NOT NULL REFERENCES automations (id),
        key TEXT NOT NULL,
        value_json TEXT NOT NULL,
        updated_ms INTEGER NOT NULL,
        PRIMARY KEY (automation, key)
    ) WITHOUT ROWID""",
)

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
    _BROKER_TABLES,
    _AUTOMATION_TABLES,
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
