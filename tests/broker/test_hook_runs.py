"""What sessions tell of their hooks, over real sockets."""

from __future__ import annotations

from typing import Any

import pytest

from relay.broker.client import connect
from relay.broker.ops_hooks import RECORDS_MAX, TEXT_MAX
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home
from relay.protocol.agent_ops import HOOK_LOG, HOOKS_RAN
from relay.protocol.op import Auth
from tests.broker.support import Json, register, stop_broker
from tests.support import unchecked

pytestmark = pytest.mark.usefixtures("served")


def record(hook: str = "guard", **more: Any) -> Json:
    return {
        "event": "BeforeTool",
        "hook": hook,
        "kind": "function",
        "source": "relay.config.py",
        "duration": 0.25,
        "success": True,
        "exit_status": None,
        "stdout": "",
        "stderr": "",
        "error": "",
        "correlation_id": "c1",
        "decision": "",
        **more,
    }


def test_what_ran_is_found_newest_first_also_after_a_restart(home: Home) -> None:
    failed = record("lint", success=False, error="it crashed", exit_status=3, event="AfterTool")
    with register(home, "Ann", run="r1") as ann, register(home, "Bob", run="r2") as bob:
        assert ann.request(HOOKS_RAN, records=[record(), failed])["stored"] == 2
        assert bob.request(HOOKS_RAN, records=[record(decision="deny")])["stored"] == 1
    stop_broker(home)
    with connect(home) as client:
        rows = client.request(HOOK_LOG)["rows"]
        assert [(row["agent"], row["hook"]) for row in rows] == [
            ("Bob", "guard"),
            ("Ann", "lint"),
            ("Ann", "guard"),
        ]
        assert rows[0]["decision"] == "deny" and rows[0]["run"] == "r2"
        assert rows[1]["exit_status"] == 3 and rows[1]["success"] is False
        assert rows[2]["duration"] == 0.25 and rows[2]["correlation_id"] == "c1"


def test_a_question_narrows_it_down(home: Home) -> None:
    with register(home, "Ann", run="r1") as ann, connect(home) as client:
        ann.request(HOOKS_RAN, records=[record(f"h{n}", success=n != 3) for n in range(6)])

        def hooks(**fields: Any) -> list[str]:
            return [row["hook"] for row in client.request(HOOK_LOG, **fields)["rows"]]

        assert hooks(failed=True) == ["h3"]
        assert hooks(hook="H4") == ["h4"]
        assert hooks(event="AfterTool") == [] and hooks(agent="ann", limit=1) == ["h5"]
        assert client.request(HOOK_LOG, limit=2)["more"]
        for limit in (0, 1001, "1", True):
            with pytest.raises(UsageError, match="limit"):
                hooks(limit=limit)


def test_only_a_session_tells_and_nonsense_is_refused_or_cut(home: Home) -> None:
    with register(home, "Ann", run="r1") as ann, connect(home) as client:
        with pytest.raises(RelayError, match="only an agent's session"):
            client.request(HOOKS_RAN, records=[record()])
        with pytest.raises(RelayError, match="only an agent's session"):
            # A tool of the agent's own, which could make up what guards it.
            auth: Auth = {"run": "r1", "token": "secret"}
            client.request(HOOKS_RAN, records=[record()], auth=auth)
        for records in (None, "x", [1], [record()] * (RECORDS_MAX + 1)):
            with pytest.raises(UsageError):
                unchecked(ann).request(HOOKS_RAN, records=records)
        ann.request(HOOKS_RAN, records=[record(stdout="x" * 10_000, duration="soon", hook="")])
        [row] = client.request(HOOK_LOG)["rows"]
        assert len(row["stdout"]) == TEXT_MAX
        assert (row["duration"], row["hook"]) == (0.0, "")
