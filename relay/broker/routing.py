"""Who gets a message. Pure: the directory comes in, recipients or an error come out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from relay.broker.delivery_states import absent, nobody
from relay.core.agent_names import channel_of, valid_name
from relay.core.errors import NotFound, UsageError, nearest
from relay.core.message import HeldFor, State

EVERYONE = "*"
#: The most recipients that one message may name.
TARGETS_MAX = 256
_SHOWN = 20


class Peer(Protocol):
    """An agent or a person. ``live``: an agent that runs now. ``roles`` and ``channels`` are in
    lower case, channels with their sign."""

    @property
    def name(self) -> str: ...
    @property
    def live(self) -> bool: ...
    @property
    def person(self) -> bool: ...
    @property
    def roles(self) -> Collection[str]: ...
    @property
    def channels(self) -> Collection[str]: ...
    @property
    def last_seen_ms(self) -> int: ...


P = TypeVar("P", bound=Peer)


@dataclass(frozen=True, slots=True)
class Route:
    """One recipient and the state in which its delivery begins.

    ``parked``: why it is held until the person allows it. The reason of a queued delivery is told
    to the sender but not stored, because it ends as soon as the recipient starts.
    """

    to: str
    state: State = State.QUEUED
    reason: str | None = None
    parked: HeldFor = HeldFor.NOTHING


@dataclass(frozen=True, slots=True)
class Routing:
    """All recipients. The two lists are filled only when a name was unknown."""

    routes: tuple[Route, ...]
    did_you_mean: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)


def route(
    targets: Iterable[str],
    sender: str,
    peers: Mapping[str, Peer],
    *,
    strict: bool,
    elsewhere: Mapping[str, Sequence[Route]] = {},  # noqa: B006 - nobody changes it
) -> Routing:
    """Resolve ``targets`` for a message from ``sender``: names, roles, ``#channels`` and ``*``.

    ``peers`` is keyed by lower-case name. A name wins over a role. ``strict`` (a person at a shell)
    refuses names that were never seen, and channels without anybody else in them; otherwise the
    message waits for the name, or fails. ``elsewhere``: routes of targets beyond ``peers``, in the
    place of a name's, beside those of a channel or ``*``. Raises UsageError and NotFound.
    """
    found: dict[str, Route] = {}
    unknown: list[str] = []
    for count, target in enumerate(targets):
        if count == TARGETS_MAX:
            raise UsageError(
                f"more than {TARGETS_MAX} recipients", hint="use * for everyone who is there"
            )
        away = elsewhere.get(target, ())
        if target == EVERYONE:
            some = _everyone(sender, peers, strict and not away)
        elif target.startswith("#"):
            some = _channel(target, sender, peers, strict and not away)
        elif away:
            some = []
        else:
            some = _role(target, sender, peers) or [_single(target, sender, peers)]
        if away:
            some = [*(one for one in some if one.state is not State.FAILED), *away]
        for one in some:
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
        more = " (relay send --offline leaves a message for when that name appears)"
        raise no_such_name(f"nobody is called {', '.join(unknown)}", guesses, here, more)
    return Routing(tuple(found.values()), guesses, here)


def _single(target: str, sender: str, peers: Mapping[str, Peer]) -> Route:
    peer = peers.get(target.lower())
    name = peer.name if peer is not None else target
    if name.lower() == sender.lower():
        raise UsageError("cannot send to yourself", hint="name another agent, or * for everyone")
    if peer is not None:
        return _known(peer)
    if not valid_name(target):
        bare = target.removeprefix("@").removeprefix("relay:")
        hint = "names are letters, digits, _ . - (at most 64); * is everyone"
        raise UsageError(
            f"{target!r} cannot be a name" if target else "an empty name",
            hint=f"write {bare}" if bare != target and valid_name(bare) else hint,
        )
    return Route(target, State.WAITING, nobody(target))


def _known(peer: Peer) -> Route:
    here = peer.live or peer.person
    return Route(peer.name, reason=None if here else absent(peer.name))


def with_role(target: str, peers: Mapping[str, P]) -> list[P]:
    """The agents that have the role ``target``; none if it is somebody's name."""
    role = target.lower()
    return [] if role in peers else [p for p in peers.values() if role in p.roles]


def in_channel(channel: str, peers: Mapping[str, P]) -> list[P]:
    return [peer for peer in peers.values() if channel in peer.channels]


def _role(target: str, sender: str, peers: Mapping[str, Peer]) -> list[Route]:
    """The agents with this role that run; if none does, the one that had it last."""
    holders = with_role(target, peers)
    others = [peer for peer in holders if peer.name.lower() != sender.lower()]
    if holders and not others:
        return [Route(target, State.FAILED, f"nobody else has the role {target}")]
    live = [peer for peer in others if peer.live]
    if others and not live:
        live = [max(others, key=lambda peer: peer.last_seen_ms)]
    return [_known(peer) for peer in live]


def _channel(target: str, sender: str, peers: Mapping[str, Peer], strict: bool) -> list[Route]:
    """Everybody else in the #channel, whether they run or not."""
    channel = channel_of(target)
    if channel is None:
        raise UsageError(
            f"{target!r} cannot be a channel",
            hint="# and a name: letters, digits, _ . - (at most 64)",
        )
    members = in_channel(channel, peers)
    routes = [_known(peer) for peer in members if peer.name.lower() != sender.lower()]
    if routes:
        return routes
    why = f"nobody {'else ' if members else ''}is in {channel}"
    if strict:
        known = {one for peer in peers.values() for one in peer.channels}
        guess = nearest(channel, sorted(known - {channel}))
        guesses = [guess] if guess else []
        others = f"did you mean {' or '.join(guesses)}? " if guesses else ""
        raise NotFound(
            why,
            hint=f"{others}relay channel list shows all channels and who is in them",
            details={"did_you_mean": guesses},
        )
    return [Route(channel, State.FAILED, why)]


def _everyone(sender: str, peers: Mapping[str, Peer], strict: bool) -> list[Route]:
    own = sender.lower()
    routes = [Route(p.name) for key, p in peers.items() if p.live and not p.person and key != own]
    if routes:
        return routes
    if strict:
        raise NotFound("no agent is running", hint="relay wrap --name NAME COMMAND starts one")
    return [Route(EVERYONE, State.FAILED, "nobody else is there")]


def present(peers: Mapping[str, Peer], sender: str = "") -> list[str]:
    """The agents that run now, at most 20, and the persons; without the sender."""
    own = sender.lower()
    others = [peer for key, peer in peers.items() if key != own]
    names = sorted((p.name for p in others if p.live and not p.person), key=str.lower)
    return names[:_SHOWN] + sorted(p.name for p in others if p.person)[:_SHOWN]


def suggestions(unknown: Iterable[str], peers: Mapping[str, Peer]) -> list[str]:
    """The known names that look like the unknown ones, one for each."""
    found = (nearest(target, peers) for target in unknown)
    return list(dict.fromkeys(peers[key].name for key in found if key is not None))


def no_such_name(what: str, guesses: list[str], here: list[str], more: str = "") -> NotFound:
    if guesses:
        hint = f"did you mean {' or '.join(guesses)}?"
    elif here:
        hint = f"there now: {', '.join(here)}"
    else:
        hint = "no agent runs now; relay wrap --name NAME COMMAND starts one"
    return NotFound(what, hint=f"{hint}{more}", details={"did_you_mean": guesses, "present": here})
