"""Rows of every table of the broker's, as if it had worked for a while."""

from __future__ import annotations

from relay.core.ids import new_ulid
from relay.ledger.store import Ledger

#: Turns of each persona session.
TURNS = 50


def fill(ledger: Ledger, count: int, words: str = "please look") -> list[str]:
    """``count`` events, each evaluated, dispatched and answered in a turn with one tool call; the
    ids of the turns, the oldest first."""
    ledger.begin()
    turns: list[str] = []
    with ledger.guard() as db:
        db.execute("INSERT INTO persons VALUES ('P1', 'Mom', 'known', NULL, NULL, 1, 1)")
        db.execute(
            "INSERT INTO automations (id, name, version, status, registered_by, created_ms,"
            " updated_ms) VALUES ('M1', 'mail', 1, 'active', 'ann', 1, 1)"
        )
        db.execute(
            "INSERT INTO automation_versions VALUES ('M1', 1, '/mail.py', 'f', '{}', 'ann',"
            " 1, 'x = 1')"
        )
        db.execute("INSERT INTO automation_state VALUES ('M1', 'count', '1', 1)")
        db.execute("INSERT INTO person_addresses VALUES ('mail', 'mom@example.org', 'P1')")
        for number in range(count):
            seq, now = ledger.next_seq(), 1000 + number
            event, turn, session = new_ulid(now), new_ulid(now), f"S{number // TURNS:025}"
            meta = (seq, event, "message", "mom@example.org", "person", None, None)
            ledger.add([(*meta, f"{words} {number}", None, now)], [])
            db.execute("INSERT INTO event_participants VALUES (?,'P1','from')", (seq,))
            db.execute(
                "INSERT INTO hook_evaluations VALUES (?,'user/mail',?,9,1,'{}',NULL)", (seq, now)
            )
            db.execute(
                "INSERT INTO automation_runs (automation, version, event, started_ms, latency_us,"
                " fired, retry, llm_calls) VALUES ('M1', 1, ?, ?, 9, 0, 0, 0)",
                (seq, now),
            )
            db.execute(
                "INSERT OR IGNORE INTO agent_sessions"
                " (id, source, persona, label, created_ms, updated_ms)"
                " VALUES (?,'relay','atlas',?,?,?)",
                (session, session[-3:], now, now),
            )
            db.execute(
                "INSERT INTO agent_turns (id, session, parent_turn, state, started_ms, ended_ms)"
                " VALUES (?,?,?,'completed',?,?)",
                (turn, session, turns[-1] if number % TURNS else None, now, now),
            )
            db.execute(
                "INSERT INTO dispatches (id, event, hook_id, persona, session, mode, priority,"
                " created_ms, hops, config, permissions_json, context_json, delivery_json, open,"
                " state, updated_ms, turn)"
                " VALUES (?,?,'user/mail','atlas',?,'followup',0,?,1,'user','{}','{}','{}',0,"
                "'done',?,?)",
                (f"D{event[1:]}", seq, session[-3:], now, now, turn),
            )
            for place, (role, text) in enumerate(
                (("user", f"{words} {number}"), ("assistant", f"answer {number} " + "y" * 400))
            ):
                db.execute(
                    "INSERT INTO agent_messages"
                    " (id, session, turn, role, content, number, event, dispatch, created_ms)"
                    " VALUES (?,?,?,?,?,?,?,?,?)",
                    (
                        *(
                            f"{turn[:-1]}{place}",
                            session,
                            turn,
                            role,
                            text,
                            number * 2 + place,
                            seq,
                        ),
                        *(f"D{event[1:]}", now),
                    ),
                )
            db.execute(
                "INSERT INTO agent_tool_calls"
                " VALUES (?,?,?,?,'read',0,'{\"path\": \"/etc/hosts\"}',?,'done',NULL,?,?)",
                (f"T{turn[1:]}", session, turn, f"{turn[:-1]}1", "z" * 300, now, now),
            )
            db.execute(
                "INSERT INTO answers (id, turn, dispatch, channel, delivery_json, content, open,"
                " state, due_ms, created_ms, updated_ms)"
                " VALUES (?,?,?,'mail','{}',?,0,'sent',?,?,?)",
                (f"A{turn[1:]}", turn, f"D{event[1:]}", f"answer {number}", now, now, now),
            )
            db.execute("UPDATE agent_sessions SET head_turn=? WHERE id=?", (turn, session))
            turns.append(turn)
    ledger.commit()
    return turns
