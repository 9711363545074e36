"""Who gets a message. Pure: the directory comes in, recipients or an error come out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from relay.broker.delivery_states import absent, nobody
from relay.core.agent_names import valid_name
from relay.core.errors import NotFound, UsageError
from relay.core.message import State

EVERYONE = "*"
#: The most recipients that one message may name.
TARGETS_MAX = 256
_SHOWN = 20


class Peer(Protocol):
    """Somebody that the broker knows. ``live``: an agent that runs now."""

    @property
    def name(self) -> str: ...
    @property
    def live(self) -> bool: ...
    @property
    def person(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Route:
    """One recipient and the state in which its delivery begins.

    ``parked``: it is held until the person lets it go on. The reason of one that is queued is told
    to its sender and not stored: it passes as soon as the recipient starts.
    """

    to: str
    state: State = State.QUEUED
    reason: str | None = None
    parked: bool = False


@dataclass(frozen=True, slots=True)
class Routing:
    """All recipients. The two lists are filled only when a name was unknown."""

    routes: tuple[Route, ...]
    did_you_mean: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)


def route(
    targets: Iterable[str], sender: str, peers: Mapping[str, Peer], *, strict: bool
) -> Routing:
    """Resolve ``targets`` for a message from ``sender``.

    ``peers`` is keyed by lower-case name. ``strict`` (a person at a shell) refuses names that
    were never seen; otherwise the message waits for them. Raises UsageError and NotFound.
    """
    found: dict[str, Route] = {}
    unknown: list[str] = []
    count = 0
    for target in targets:
        count += 1
        if count > TARGETS_MAX:
            raise UsageError(
                f"more than {TARGETS_MAX} recipients", hint="use * for everyone who is there"
            )
        if target == EVERYONE:
            for one in _everyone(sender, peers, strict):
                found.setdefault(one.to.lower(), one)
            continue
        one = _single(target, sender, peers)
        found.setdefault(one.to.lower(), one)
        if one.state is State.WAITING:
            unknown.append(target)
    if not found:
        raise UsageError("a message needs a recipient", hint="relay send NAME TEXT")
    if not unknown:
        return Routing(tuple(found.values()))
    guesses = suggestions(unknown, peers)
    here = present(peers, sender)
    if strict:
        more = " (--offline leaves the message for when that name appears)"
        raise no_such_name(f"nobody is called {', '.join(unknown)}", guesses, here, more)
    return Routing(tuple(found.values()), guesses, here)


def _single(target: str, sender: str, peers: Mapping[str, Peer]) -> Route:
    peer = peers.get(target.lower())
    name = peer.name if peer is not None else target
    if name.lower() == sender.lower():
        raise UsageError("cannot send to yourself", hint="name another agent, or * for everyone")
    if peer is not None:
        here = peer.live or peer.person
        return Route(name, reason=None if here else absent(name))
    if target.startswith("#"):
        raise UsageError(
            f"{target}: there are no channels in this version",
            hint="name the agents, separated by commas, or * for everyone who is there",
        )
    if not valid_name(target):
        raise UsageError(
            f"{target!r} cannot be a name" if target else "an empty name",
            hint="names are letters, digits, _ . - (at most 64); * is everyone",
        )
    return Route(target, State.WAITING, nobody(target))


def _everyone(sender: str, peers: Mapping[str, Peer], strict: bool) -> list[Route]:
    own = sender.lower()
    routes = [Route(p.name) for key, p in peers.items() if p.live and not p.person and key != own]
    if routes:
        return routes
    if strict:
        raise NotFound("nobody is there", hint="start an agent: relay wrap --name NAME COMMAND")
    return [Route(EVERYONE, State.FAILED, "nobody else is there")]


def present(peers: Mapping[str, Peer], sender: str = "") -> list[str]:
    """The agents that are there now, without the sender; at most 20."""
    own = sender.lower()
    names = [p.name for key, p in peers.items() if p.live and not p.person and key != own]
    return sorted(names, key=str.lower)[:_SHOWN]


def suggestions(unknown: Iterable[str], peers: Mapping[str, Peer]) -> list[str]:
    """Known names that look like the unknown ones, best first; at most 3 for each."""
    out: list[str] = []
    for target in unknown:
        for key in difflib.get_close_matches(target.lower(), list(peers), n=3, cutoff=0.6):
            if peers[key].name not in out:
                out.append(peers[key].name)
    return out


def no_such_name(what: str, guesses: list[str], here: list[str], more: str = "") -> NotFound:
    """The error for a name that nobody has."""
    if guesses:
        hint = f"did you mean {' or '.join(guesses)}?"
    elif here:
        hint = f"there now: {', '.join(here)}"
    else:
        hint = "no agent runs now; relay wrap --name NAME COMMAND starts one"
    return NotFound(what, hint=f"{hint}{more}", details={"did_you_mean": guesses, "present": here})
