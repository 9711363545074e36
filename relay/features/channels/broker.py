"""Channels, presence, and who one is: ``channels``, ``channel_join``, ``channel_leave``,
``presence``, ``whoami``.

A channel is what its members have in common: it begins with the first and ends with the last. Who
is in one belongs to the name, as its mail does: an agent that starts again is in it still.
Presence is told by comparing, with the next message: what somebody was told last, and what is now.
"""

from __future__ import annotations

from functools import partial

from relay.broker.batch import AnyRequest, Batch, ClientRequest, Served, serve
from relay.broker.directory import Member
from relay.broker.door import BrokerFeature
from relay.broker.kernel import Kernel
from relay.broker.parts import BrokerParts
from relay.broker.routing import EVERYONE, TARGETS_MAX, in_channel, with_role
from relay.core.agent_names import channel_of, valid_name
from relay.core.errors import NotFound, UsageError
from relay.core.message import AgentState
from relay.features.channels.ops import (
    CHANNEL_JOIN,
    CHANNEL_LEAVE,
    CHANNELS,
    PRESENCE,
    WHOAMI,
    ChannelChange,
    ChannelChanged,
    ChannelRow,
    ChannelRows,
    PresenceAnswer,
    PresenceQuery,
    Whoami,
)
from relay.ledger import queries
from relay.protocol.agent_ops import Register
from relay.protocol.op import Request

#: Channels that one may be in, and whose coming and going it may hear of.
CHANNELS_MAX = 100
PRESENCE_MAX = 20
#: Names in the one line about presence.
NAMES_MAX = 8
#: The states that are worth a word; one that is neither is there.
_TOLD = (AgentState.BUSY, AgentState.BLOCKED, AgentState.LIMITED, AgentState.STOPPED)
_HERE, _GONE = "here", "gone"


def feature(parts: BrokerParts) -> ChannelsFeature:
    return ChannelsFeature(parts.kernel)


class ChannelsFeature(BrokerFeature):
    """Knows who is in which channel, and what of the others' presence was told to whom."""

    def __init__(self, kernel: Kernel) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        #: By the lower-case name of who is told, and of whom: (run, state) as told last.
        self._told: dict[str, dict[str, tuple[str, str]]] = {}

    def ops(self) -> list[Served]:
        """Agents ask for themselves, the person for anybody."""
        return [
            serve(CHANNELS, self.channels),
            serve(CHANNEL_JOIN, self.join),
            serve(CHANNEL_LEAVE, self.leave),
            serve(PRESENCE, self.presence),
            serve(WHOAMI, self.whoami),
        ]

    def restore(self, now_ms: int) -> None:
        """As the ledger has it."""
        members: dict[str, list[str]] = {}
        wanted: dict[str, list[str]] = {}
        rows = self._ledger.rows(
            "SELECT name, channel FROM memberships ORDER BY joined_ms, channel"
        )
        for name, channel in rows:
            members.setdefault(name.lower(), []).append(channel)
        for name, who in self._ledger.rows("SELECT name, who FROM presence_wanted ORDER BY who"):
            wanted.setdefault(name.lower(), []).append(who)
        for key, member in self._directory.members.items():
            member.be_in(tuple(members.get(key, ())))
            self._hear_of(member, tuple(wanted.get(key, ())))

    # -- channels

    def channels(self, request: ClientRequest[Request], batch: Batch) -> ChannelRows:
        found: dict[str, list[Member]] = {}
        for member in self._directory.members.values():
            for channel in member.channels:
                found.setdefault(channel, []).append(member)
        return {"rows": [_row(channel, found[channel]) for channel in sorted(found)]}

    def join(self, request: ClientRequest[ChannelChange], batch: Batch) -> ChannelChanged:
        channel = _channel(request.fields["channel"])
        member = self._meant(request, "put somebody else into a channel")
        self._join(member, channel, batch)
        others = [one for one in in_channel(channel, self._directory.members) if one is not member]
        names = ", ".join(one.name for one in others[:NAMES_MAX])
        more = f" and {len(others) - NAMES_MAX} more" if len(others) > NAMES_MAX else ""
        note = (
            f"{member.name} is in {channel} now, with {names or 'nobody else yet'}{more}."
            f" A line @relay:{channel} … writes to all of them, @relay:leave {channel} leaves it"
        )
        return {**_row(channel, [*others, member]), "name": member.name, "note": note}

    def registering(self, name: str, fields: Register, is_new: bool, batch: Batch) -> None:
        """An agent that starts joins the channels that it was started for. What cannot be one, and
        what is too many, is left out: ``relay wrap`` has refused it."""
        member = self._directory.get(name)
        asked = fields.get("join", []) if is_new else []  # what it leaves later, it has left
        found = dict.fromkeys(member.channels if member is not None else ())
        for one in asked:
            channel = channel_of(one)
            if channel is None or channel in found or len(found) >= CHANNELS_MAX:
                continue
            if len(in_channel(channel, self._directory.members)) < TARGETS_MAX:
                found[channel] = None
                self._store_membership(name, channel, batch.now_ms)
        batch.after.append(partial(self._registered, name, tuple(found)))

    def _registered(self, name: str, channels: tuple[str, ...]) -> None:
        member = self._directory.get(name)
        if member is not None:
            member.be_in(channels)

    def _join(self, member: Member, channel: str, batch: Batch) -> None:
        if channel in member.channels:
            return
        if len(member.channels) >= CHANNELS_MAX:
            raise UsageError(
                f"{member.name} is in {CHANNELS_MAX} channels already",
                hint="leave one: relay channel leave CHANNEL",
            )
        if len(in_channel(channel, self._directory.members)) >= TARGETS_MAX:
            raise UsageError(
                f"{channel} has {TARGETS_MAX} members already",
                hint=f"somebody has to leave it: relay channel members {channel[1:]}",
            )
        self._ledger.begin()
        self._store_membership(member.name, channel, batch.now_ms)
        batch.cut = True  # the next message may be to this channel
        batch.after.append(partial(self._joined, member, channel))

    def _store_membership(self, name: str, channel: str, now_ms: int) -> None:
        row = (name, channel, now_ms)
        self._ledger.change("INSERT OR IGNORE INTO memberships VALUES (?,?,?)", row)

    def _joined(self, member: Member, channel: str) -> None:
        if channel not in member.channels:
            member.be_in((*member.channels, channel))

    def leave(self, request: ClientRequest[ChannelChange], batch: Batch) -> ChannelChanged:
        channel = _channel(request.fields["channel"])
        member = self._meant(request, "take somebody else out of a channel")
        if channel not in member.channels:
            raise NotFound(f"{member.name} is not in {channel}", hint="relay channel list")
        self._ledger.begin()
        where = "name=? AND channel=?"
        self._ledger.change(f"DELETE FROM memberships WHERE {where}", (member.name, channel))
        batch.cut = True
        kept = tuple(one for one in member.channels if one != channel)
        batch.after.append(partial(member.be_in, kept))
        rest = [one for one in in_channel(channel, self._directory.members) if one is not member]
        note = f"{member.name} is in {channel} no more"
        return {**_row(channel, rest), "name": member.name, "note": note}

    def _meant(self, request: AnyRequest, what: str) -> Member:
        """Whose channels are meant: one's own; the person may name anybody."""
        name, own = request.fields.get("name"), self._directory.speaker(request)
        member = self._directory.named(request)
        if name is not None and member is not own:
            self._directory.check_person(request, what)
        return member

    # -- presence

    def presence(self, request: ClientRequest[PresenceQuery], batch: Batch) -> PresenceAnswer:
        """Say, or change, of whose coming and going somebody hears."""
        member = self._meant(request, "say of whom somebody else hears")
        given, wanted = request.fields.get("who"), member.presence
        if given is not None:
            asked = {one.lower(): one for one in map(_who, given)}
            if request.fields.get("off"):
                wanted = tuple(one for one in wanted if asked and one.lower() not in asked)
            else:
                wanted = tuple(({one.lower(): one for one in wanted} | asked).values())
            if len(wanted) > PRESENCE_MAX:
                raise UsageError(f"more than {PRESENCE_MAX} to hear of", hint="* is everybody")
            self._ledger.begin()
            self._ledger.change("DELETE FROM presence_wanted WHERE name=?", (member.name,))
            for who in wanted:
                self._ledger.change("INSERT INTO presence_wanted VALUES (?,?)", (member.name, who))
            batch.after.append(partial(self._hear_of, member, wanted))
        asked_for = self._as_written(wanted)
        words = " or ".join(map(_anybody, asked_for))
        note = (
            f"{member.name} is told with the next message when {words} arrives or leaves"
            if wanted
            else f"{member.name} is not told who arrives or leaves"
        )
        return {"name": member.name, "who": asked_for, "note": note}

    def _as_written(self, wanted: tuple[str, ...]) -> list[str]:
        """The words of a presence, names as those who have them write them."""
        members = self._directory.members
        return [members[key].name if (key := one.lower()) in members else one for one in wanted]

    def _hear_of(self, member: Member, wanted: tuple[str, ...]) -> None:
        member.presence = wanted
        known = self._told.pop(member.name.lower(), {})
        if wanted:
            self._told[member.name.lower()] = {**self._now(member), **known}

    def news(self, member: Member) -> str:
        """What has changed since this agent was told last, in a few words; "" for nothing."""
        before = self._told.get(member.name.lower())
        if before is None:
            return ""
        now = self._told[member.name.lower()] = self._now(member)
        words = []
        for key, (run, state) in now.items():
            was_run, was = before.get(key, ("", _GONE))
            one = self._directory.members[key].name
            if (run, state) == (was_run, was):
                continue
            if state == _GONE:
                words.append(f"{one} has left")
            elif was == _GONE or run != was_run:
                words.append(f"{one} has joined{'' if state == _HERE else f' and is {state}'}")
            elif state == _HERE:
                words.append(f"{one} is free again")
            else:
                words.append(f"{one} is {state}")
        out = [key for key, (_, was) in before.items() if key not in now and was != _GONE]
        words += [f"{self._directory.members[key].name} has left" for key in out]
        more = f", and {len(words) - NAMES_MAX} more" if len(words) > NAMES_MAX else ""
        return ", ".join(words[:NAMES_MAX]) + more

    def _now(self, member: Member) -> dict[str, tuple[str, str]]:
        """How those are of whom this one hears, by lower-case name."""
        members, found = self._directory.members, {}
        for who in member.presence:
            if who == EVERYONE:
                some = list(members.values())
            elif who.startswith("#"):
                some = in_channel(who, members)
            elif who.lower() in members:
                some = [members[who.lower()]]
            else:
                some = with_role(who, members)
            found.update({one.name.lower(): _state(one) for one in some if not one.person})
        found.pop(member.name.lower(), None)
        return found

    # -- who one is

    def whoami(self, request: ClientRequest[Request], batch: Batch) -> Whoami:
        """Who asks, and how many of the others are how."""
        directory = self._directory
        own = directory.speaker(request)
        member = own or directory.members[directory.owner.lower()]
        live = [one for one in directory.agents() if one.live]
        states = [_state(one)[1] for one in live]
        return {
            "name": member.name,
            "kind": "person" if own is None else member.record.kind,
            "roles": list(member.roles),
            "channels": list(member.channels),
            "presence": self._as_written(member.presence),
            "state": None if own is None else member.record.state,
            "reason": None if own is None else member.record.reason,
            "unread": queries.unread(self._ledger, member.name),
            "agents": len(live),
            "busy": states.count(AgentState.BUSY),
            "blocked": states.count(AgentState.BLOCKED),
            "limited": states.count(AgentState.LIMITED),
            "stopped": states.count(AgentState.STOPPED),
            "held": queries.parked_count(self._ledger),
        }


def _state(member: Member) -> tuple[str, str]:
    """The run, and the word for how it is."""
    run, state = str(member.record.run), member.record.state
    if not member.live or state == AgentState.GONE:
        return run, _GONE
    return run, state if state in _TOLD else _HERE


def _row(channel: str, members: list[Member]) -> ChannelRow:
    here = sum(one.live or one.person for one in members)
    names = sorted((one.name for one in members), key=str.lower)
    return {"channel": channel, "members": names, "here": here}


def _channel(word: str) -> str:
    channel = channel_of(word.strip())
    if channel is None:
        raise UsageError(
            f"{word!r} cannot be a channel",
            hint="# and a name: letters, digits, _ . - (at most 64)",
        )
    return channel


def _anybody(who: str) -> str:
    if who == EVERYONE:
        return "anybody"
    return f"anybody in {who}" if who.startswith("#") else who


def _who(word: str) -> str:
    return word if word == EVERYONE or valid_name(word) else _channel(word)
