"""What travels is decoded strictly, by its description; see also relay.protocol.op."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from relay.broker.server import BrokerServer
from relay.core.errors import UsageError
from relay.core.log import Log
from relay.core.paths import Home
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AGENT_STATE, AGENTS
from relay.protocol.decoding import check, decode, schema
from relay.protocol.message_ops import HISTORY, SEND, TURN, WAIT, MessageSent, Send
from relay.protocol.op import Op

QUESTION: dict[str, Any] = {"id": "q", "what": "Run it?", "chosen": None, "since_ms": 1}


@pytest.mark.parametrize(
    ("op", "fields", "message", "hint"),
    [
        (SEND, {"too": "Bob", "body": "x"}, "send: there is no field 'too'", "'to'"),
        # As a session of an older relay tells what a shell has shown.
        (
            SEND,
            {"to": "Bob", "body": "x", "shown": True},
            "send: there is no field 'shown'",
            "known",
        ),
        (AGENTS, {"all": True}, "agents: there is no field 'all'", "auth"),
        (
            SEND,
            {"to": "Bob", "body": "x", "deadline": 3.0},
            "send: there is no field 'dead",
            "body",
        ),
        (SEND, {"to": "Bob"}, "send: body is missing", ""),
        (SEND, {"to": "Bob", "body": None}, "send: body: expected str, not null", ""),
        (SEND, {"to": 7, "body": "x"}, "send: to: expected str | array, not int", ""),
        (SEND, {"to": ["Bob", 7], "body": "x"}, "send: to[1]: expected str, not int", ""),
        (HISTORY, {"limit": "3"}, "history: limit: expected int | null, not str", ""),
        (HISTORY, {"limit": True}, "history: limit: expected int | null, not bool", ""),
        (WAIT, {"id": "x", "timeout": "1"}, "wait: timeout: expected float, not str", ""),
        (SEND, {"body": "x", "auth": {"run": "r"}}, "send: auth.token is missing", ""),
        (
            AGENT_STATE,
            {"state": "blocked", "question": {**QUESTION, "choices": [{"key": "1", "label": 1}]}},
            "agent_state: question.choices[0].label: expected str, not int",
            "",
        ),
        (
            TURN,
            {"ids": [], "started_ms": 1, "tool_calls": [{}]},
            "turn: tool_calls[0].name is missing",
            "",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(
    op: Op[..., Any, Any], fields: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as failure:
        decode(op, fields)
    assert failure.value.message.startswith(message)
    assert hint in failure.value.hint and bool(hint) == bool(failure.value.hint)


def test_what_is_described_passes_as_it_is() -> None:
    fields = {
        **{"to": ["Bob", "#build"], "body": "x", "from": "Ann", "await": True},
        **{"mode": None, "auth": None, "attributes": {"any": {"thing": [1]}}},
    }
    assert decode(SEND, {"n": 7, "op": "send", **fields}) == fields
    assert decode(WAIT, {"id": "x", "timeout": 0})["timeout"] == 0


def test_what_a_newer_side_adds_to_a_record_is_left_out() -> None:
    question: dict[str, Any] = {**QUESTION, "choices": [], "new": 1}
    decoded = decode(AGENT_STATE, {"state": "blocked", "question": question})
    assert decoded["question"] == {**QUESTION, "choices": []}
    sent = {"id": "x", "from": "A", "duplicate": False, "deliveries": [], "n": 1, "ok": True}
    assert check("send", sent, MessageSent).keys() == {"id", "from", "duplicate", "deliveries"}
    with pytest.raises(UsageError, match="send: from is missing"):
        check("send", {"id": "x", "duplicate": False, "deliveries": []}, MessageSent)


def test_a_record_has_a_json_schema() -> None:
    made = schema(Send)
    assert made["required"] == ["body"]
    assert made["properties"]["from"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert "deadline" not in made["properties"]
    [auth, null] = made["properties"]["auth"]["anyOf"]
    assert null == {"type": "null"} and auth == {"$ref": "#/$defs/Auth"}


def test_every_op_of_a_broker_is_described(isolated_home: Path) -> None:
    home = Home(str(isolated_home))
    home.create()

    async def served() -> list[Op[..., Any, Any]]:
        ledger = Ledger(home.ledger)
        try:
            broker = BrokerServer(home, ledger, Log(home.broker_log))
            parts = (broker.kernel_ops(), *(one.ops() for one in broker.features))
            return [one.op for part in parts for one in part]
        finally:
            ledger.close()

    ops = asyncio.run(served())
    assert len(ops) == len(set(ops)) >= 30  # the kernel's alone
    for op in ops:
        for record in {op.request, op.answer} - {dict}:
            assert schema(record)
