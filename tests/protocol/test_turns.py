"""What the broker and a runner tell each other is read as it was written."""

import json

import pytest

from relay.core.dispatch import PermissionSet
from relay.core.errors import UsageError
from relay.protocol.turns import CALLS_MAX, TEXT_MAX, ToolCall, TurnEnded, TurnRequest, TurnState


def test_a_request_and_an_end_survive_the_wire() -> None:
    permissions = PermissionSet("restricted", {"allow": ["read*"], "deny": ["read_secret"]}, ["gh"])
    request = TurnRequest("T", "atlas", "main", "hello", permissions, 60.0, {"command": "claude"})
    assert TurnRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    ended = TurnEnded(TurnState.FAILED, "so far", "killed", again=True, tool_calls=(ToolCall("x"),))
    assert TurnEnded.from_json(json.loads(json.dumps(ended.to_json()))) == ended


def test_what_another_process_tells_is_bounded_and_checked() -> None:
    calls = [{"name": "x", "params": {"not": "text"}}] * (CALLS_MAX + 1)
    told = {"text": "a" * (TEXT_MAX + 1), "tool_calls": calls, "of": "a later version"}
    ended = TurnEnded.from_json(told)
    assert len(ended.text) == TEXT_MAX and ended.text.endswith(" [cut]")
    assert len(ended.tool_calls) == CALLS_MAX


@pytest.mark.parametrize(
    "told",
    [{"state": "running"}, {"state": "x"}, {"text": 1}, {"tool_calls": [{}]}, {"tool_calls": 3}],
    ids=["runs", "unknown", "number", "nameless", "no list"],
)
def test_nonsense_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        TurnEnded.from_json(told)
