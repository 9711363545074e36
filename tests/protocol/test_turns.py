"""What the broker and a runner tell each other is read as it was written."""

import json
from dataclasses import replace

import pytest

from relay.core.dispatch import PermissionSet
from relay.core.errors import UsageError
from relay.protocol.turns import CALLS_MAX, TEXT_MAX, ToolCall, TurnCause, TurnRequest, TurnResult


def test_a_request_and_an_end_survive_the_wire() -> None:
    permissions = PermissionSet("restricted", {"allow": ["read*"], "deny": ["read_secret"]}, ["gh"])
    request = TurnRequest("T", "atlas", "main", "hello", permissions, 60.0, {"command": "claude"})
    assert TurnRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    ended = replace(TurnResult.of(TurnCause.DIED, "was killed"), tool_calls=(ToolCall("x"),))
    assert TurnResult.from_json(json.loads(json.dumps(ended.to_json()))) == ended
    assert (ended.reason, ended.again) == ("its process was killed", True)


def test_a_report_that_a_session_of_an_earlier_version_has_kept_is_read() -> None:
    ended = TurnResult.from_json({"state": "failed", "reason": "a limit is reached", "again": True})
    assert (ended.cause, ended.reason) == (TurnCause.AGENT, "a limit is reached")
    ended = TurnResult.from_json({"state": "interrupted", "reason": "it was stopped"})
    assert (ended.state, ended.reason, ended.again) == ("interrupted", "it was stopped", False)


@pytest.mark.parametrize("cause", TurnCause)
def test_each_cause_has_a_sentence(cause: TurnCause) -> None:
    assert TurnResult.of(cause, "a detail").reason


def test_what_another_process_tells_is_bounded_and_checked() -> None:
    calls = [{"name": "x", "params": {"not": "text"}}] * (CALLS_MAX + 1)
    told = {"text": "a" * (TEXT_MAX + 1), "tool_calls": calls, "of": "a later version"}
    ended = TurnResult.from_json(told)
    assert len(ended.text) == TEXT_MAX and ended.text.endswith(" [cut]")
    assert len(ended.tool_calls) == CALLS_MAX


@pytest.mark.parametrize(
    "told",
    [
        {"state": "running"},
        {"state": "x"},
        {"cause": "x"},
        {"text": 1},
        {"tool_calls": [{}]},
        {"tool_calls": 3},
    ],
    ids=["runs", "unknown", "unknown cause", "number", "nameless", "no list"],
)
def test_nonsense_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        TurnResult.from_json(told)
