"""The ops about channels, presence, and who one is. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import NotRequired, Op, Record, Request


class ChannelRow(Record):
    """A channel, and who is in it."""

    channel: str
    members: list[str]
    here: int  # how many of them are there now


class ChannelRows(Record):
    """All channels."""

    rows: list[ChannelRow]


class ChannelChange(Request):
    """Somebody is in a channel from now on, or no more. An agent asks for itself, the person for
    anybody."""

    channel: str
    name: NotRequired[str | None]  # somebody else's, not one's own


class ChannelChanged(ChannelRow):
    """The channel as it is then."""

    name: str
    note: str  # what an agent is told of it


class PresenceQuery(Request):
    """Say, or change, of whose coming and going somebody hears with the next message."""

    who: NotRequired[list[str] | None]  # names, roles and #channels, or *; left out: no change
    off: NotRequired[bool]  # these no more; with an empty ``who``: nobody
    name: NotRequired[str | None]  # somebody else, not oneself: for the person


class PresenceAnswer(Record):
    """Of whom somebody hears."""

    name: str
    who: list[str]
    note: str  # the same in words, for an agent


class Whoami(Record):
    """Who asks, and how many of the others are how."""

    name: str
    kind: str
    roles: list[str]
    channels: list[str]
    presence: list[str]
    state: str | None  # of relay.core.message.AgentState; null: the person
    reason: str | None
    unread: int
    agents: int  # how many agents are there; of them:
    busy: int
    blocked: int
    limited: int
    stopped: int
    held: int  # messages that wait for the person's decision


CHANNELS = Op("channels", Request, ChannelRows)
CHANNEL_JOIN = Op("channel_join", ChannelChange, ChannelChanged)
CHANNEL_LEAVE = Op("channel_leave", ChannelChange, ChannelChanged)
PRESENCE = Op("presence", PresenceQuery, PresenceAnswer)
WHOAMI = Op("whoami", Request, Whoami)
