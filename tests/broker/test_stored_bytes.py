"""One agent cannot fill the person's disk: what is beyond its room is refused, and said."""

from __future__ import annotations

import pytest

from relay.broker.client import connect
from relay.broker.stored_bytes import MIB, MINUTES, NOTED_MS, ROW, StoredBytes
from relay.core.agent_names import owner_name
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE, HOOKS_RAN
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import EVENT, INBOX, SEND
from tests.broker.support import Json, register
from tests.support import unchecked


def test_the_room_comes_back_with_time_and_each_run_has_its_own() -> None:
    stored = StoredBytes(per_minute=60)
    assert stored.take("a", "send", 60 * MINUTES, 0)
    assert not stored.take("a", "send", 1, 0) and stored.take("b", "send", 1, 0)
    assert stored.take("a", "send", 500, 0, share=2)  # relay's own notices
    assert not stored.take("a", "send", 501, 1_000_000) and stored.take("a", "send", 500, 1_000_000)
    assert not stored.take("a", "send", 1, 0)  # a clock that goes back gives nothing
    assert stored.note("b", 0) == ""
    stored.take("a", "hooks_ran", 2000, 60_000)
    lost = (
        "lost, as too much came: 3 messages, 1 reports of hooks (0.002387 MiB), the last 2m ago; "
    )
    assert stored.note("a", 180_000).startswith(lost)
    assert stored.note("a", 60_000 + NOTED_MS) and not stored.note("a", 60_001 + NOTED_MS)


def test_an_agent_that_floods_is_refused_and_status_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_STORED_MAX", "0.125")  # 4 MiB at once
    text = "x" * MIB
    with register(home, "Bob") as bob, connect(home) as person:
        for number in range(3):
            bob.request(SEND, to=owner_name(), body=f"{number}{text[ROW:]}")
        bob.request(EVENT, kind="own", body=text[2 * ROW :])
        beyond: list[tuple[str, Json]] = [
            ("send", {"to": owner_name(), "body": text[ROW:]}),
            ("event", {"kind": "own", "body": text[ROW:]}),
            ("automation_register", {"path": "/x.py", "source": text[ROW:]}),
        ]
        for op, fields in beyond:
            with pytest.raises(RelayError, match="one agent can have 4 MiB stored") as refused:
                unchecked(bob).request(op, **fields)
            assert refused.value.code == "too_much" and refused.value.hint
        assert bob.request(HOOKS_RAN, records=[{"stdout": text}])["stored"] == 0
        # What it owes is told all the same, its notices arrive, and the person is not limited.
        bob.request(AGENT_STATE, state="busy", reason="y" * MIB)
        bob.request(SEND, to="Bob", body="not sent: why", notice="about")
        for _ in range(5):
            person.request(SEND, to="Bob", body=text[ROW:])
        assert len(person.request(INBOX)["rows"]) == 3
        [agent] = person.request(STATUS)["agents"]
        assert agent["notes"][0].startswith(
            "lost, as too much came: 1 messages, 1 events, 1 requests, 1 reports of hooks (4 MiB)"
        )
