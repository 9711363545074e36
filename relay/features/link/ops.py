"""The ops about links between machines. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import NotRequired, Op, Record, Request

#: What another machine may be allowed here beside writing, in the words of a refusal.
RIGHTS = {
    "answer": "see and answer what waits for the person",
    "interrupt": "interrupt",
    "peek": "see screens",
    "person": "speak as the person",
    "transcript": "read turns",
}


class Machine(Record):
    """Another machine, as this one knows it."""

    name: str
    seen_ms: int | None  # when it was heard of last; null: never
    here: bool  # it is connected now
    waiting: int  # messages to it that it has not stored
    agents: list[str]
    rights: list[str]  # of its people and agents, on this machine


class LinkState(Record):
    """This machine's link."""

    name: str  # of this machine; "": there is no link
    server: str  # its address
    hosts: bool  # the server runs here
    connected: bool
    problem: str  # why it does not work; "": it does
    machines: list[Machine]


class LinkNew(Request):
    """Begin a link, or give a code for one more machine."""

    name: NotRequired[str | None]  # of this machine
    address: NotRequired[str | None]  # at which others reach it, and the port


class LinkCode(Record):
    """A code that one machine may use."""

    code: str
    name: str
    server: str
    until_ms: int


class LinkJoin(Request):
    """Join the link of another machine."""

    code: str
    name: NotRequired[str | None]  # of this machine
    ssh: NotRequired[str | None]  # the way to the server's machine, ssh://…


class LinkUse(Request):
    """Write by a server of NATS that is there already."""

    urls: str  # one, or several of one cluster, with commas
    creds: NotRequired[str | None]  # the file that says who this machine is there
    name: NotRequired[str | None]  # of this machine


class LinkJoined(Record):
    """The link that this machine is in."""

    name: str
    server: str
    machines: list[str]


class LinkChange(Request):
    """Remove a machine, or say what it may."""

    machine: str
    rights: NotRequired[list[str]]


LINK = Op("link", Request, LinkState)
LINK_NEW = Op("link_new", LinkNew, LinkCode)
LINK_JOIN = Op("link_join", LinkJoin, LinkJoined)
LINK_USE = Op("link_use", LinkUse, LinkJoined)
LINK_REMOVE = Op("link_remove", LinkChange, LinkState)
LINK_ALLOW = Op("link_allow", LinkChange, LinkState)
