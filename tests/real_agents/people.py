"""What a test asks relay about its agents and their messages.

A message is known by its id, or by a marker: words that stand in its body alone.
"""

from __future__ import annotations

from typing import Any

from tests.e2e.wrapped import relay, relay_json
from tests.real_agents.model import ScriptedModel
from tests.real_agents.request import Request, plain
from tests.real_agents.wrapped import Wrapped
from tests.support import wait_until

#: Under load a turn of a real program may take long.
PATIENCE = 90.0


def bodies_from(name: str) -> list[str]:
    """What this agent sent, in order."""
    return [row["body"] for row in relay_json("history", "--limit", "500") if row["from"] == name]


def wait_bodies(name: str, expected: list[str]) -> None:
    """Until the agent has sent exactly this."""
    try:
        wait_until(lambda: bodies_from(name) == expected, PATIENCE)
    except AssertionError:
        raise AssertionError(
            f"sent: {bodies_from(name)}\nnot: {expected}\n{relay('status')}"
        ) from None


def state_of(name: str) -> str:
    found: list[dict[str, Any]] = relay_json("agents")
    return next((str(row["state"]) for row in found if row["name"] == name), "")


def wait_state(name: str, state: str) -> None:
    wait_until(lambda: state_of(name) == state, PATIENCE, f"{name} to be {state}")


def about(name: str) -> tuple[str, str]:
    """The state of an agent, and why."""
    [row] = [row for row in relay_json("status")["agents"] if row["name"] == name]
    return row["state"], row["reason"] or ""


def wait_about(name: str, state: str, reason: str = "") -> None:
    """Until the agent is in this state, and for just this reason."""
    try:
        wait_until(lambda: about(name) == (state, reason), PATIENCE)
    except AssertionError:
        raise AssertionError(f"{about(name)} is not {state} {reason}\n{relay('status')}") from None


def source_of(name: str) -> str:
    """Which source is believed: structured or screen."""
    agents = relay_json("status")["agents"]
    return next((str(row["source"]) for row in agents if row["name"] == name), "")


def send(name: str, body: str, *, mode: str = "followup") -> str:
    """Send from a shell; returns the message's id."""
    return str(relay_json("send", name, body, "--mode", mode)["id"])


def delivery(id_: str) -> tuple[str, str]:
    [one] = relay_json("show", id_)["deliveries"]
    return one["state"], one["reason"] or ""


def wait_delivery(id_: str, state: str) -> None:
    try:
        wait_until(lambda: delivery(id_)[0] == state, PATIENCE)
    except AssertionError:
        raise AssertionError(f"{delivery(id_)} is not {state}\n{relay('status')}") from None


def outcome(marker: str) -> tuple[str, str]:
    """The state of the message with this marker, and why."""
    [row] = [row for row in relay_json("history") if marker in row["body"]]
    return row["state"], row["reason"] or ""


def wait_held_up(marker: str, reason: str) -> None:
    queued = ("queued", reason)
    wait_until(lambda: outcome(marker) == queued, PATIENCE, f"{marker} to be held up")


def held_up(id_: str) -> bool:
    """Whether something stands in the way of this message, and its sender knows what."""
    state, reason = delivery(id_)
    return state == "queued" and bool(reason)


def refused(agent: Wrapped, model: ScriptedModel) -> None:
    """A message comes while a dialog is open: it answers nothing, and arrives once the person has
    refused what the agent asks."""
    wait_state(agent.name, "blocked")
    sent = send(agent.name, "MARK-DIALOG 1 y yes.")
    wait_until(lambda: held_up(sent) or delivery(sent)[0] == "submitted", PATIENCE)
    if held_up(sent):
        assert "dialog" in delivery(sent)[1]
    agent.dialog()
    relay("answer", agent.name, "no")
    arrived_once(model, sent, "MARK-DIALOG 1 y yes.")


def wait_seen(model: ScriptedModel, marker: str) -> None:
    """Until a message arrived: exactly one request brought it as its newest part."""
    try:
        wait_until(lambda: outcome(marker)[0] == "seen", PATIENCE)
    except AssertionError:
        raise AssertionError(f"{marker}: {outcome(marker)}\n{relay('status')}") from None
    wait_until(lambda: model.seen(marker))
    assert len(model.seen(marker)) == 1


def answered(agent: Wrapped, model: ScriptedModel, words: str) -> None:
    """Until the turn that ``words`` began is over."""
    wait_until(lambda: model.seen(words), PATIENCE, f"{words!r} to reach the model")
    rest(agent, model)


def rest(agent: Wrapped, model: ScriptedModel) -> None:
    """Until the turn is over."""
    wait_until(lambda: model.resting, PATIENCE)
    agent.ready()
    wait_state(agent.name, "idle")


def marked(body: str) -> str:
    """A body of several lines as its receiver gets it: a bar before each line."""
    return "\n".join(f"| {line}" for line in body.split("\n"))


def arrived_once(model: ScriptedModel, id_: str, body: str) -> None:
    """The message is seen, and the model got it whole and once, in all of the conversation."""
    wait_delivery(id_, "seen")
    wait_until(lambda: model.seen(id_[-8:]), PATIENCE, f"{id_} to reach the model")
    wait_until(lambda: model.resting, PATIENCE)
    told = conversation(model)
    assert told.count(f"message [{id_[-8:]}") == 1, told
    assert body in told


def conversation(model: ScriptedModel) -> str:
    """All that the model was told so far, without its own words.

    A backslash before an ``@``, which keeps some programs from taking it for a file, is left out.
    """
    return plain_conversation(model.requests[-1])


def plain_conversation(request: Request) -> str:
    """All that a request tells the model, without the model's own words."""
    turns = [turn for turn in request.asked.turns if not turn.own]
    return "\n".join(plain([block]) for turn in turns for block in turn.blocks).replace("\\@", "@")
