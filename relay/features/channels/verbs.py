"""The verbs ``channel``, ``presence``, ``whoami`` and ``status-line``: who belongs together, who is
there, and who one is."""

from __future__ import annotations

from relay.broker.client import connect, request
from relay.cli import output, table
from relay.cli.parser import Parser, count
from relay.cli.verbs import verb
from relay.core.agent_names import NAME_CHARACTERS
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.channels.ops import CHANNEL_JOIN, CHANNEL_LEAVE, CHANNELS, PRESENCE, WHOAMI
from relay.protocol.message_ops import HISTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.features.channels.ops import ChannelChanged, Whoami
    from relay.protocol.op import Op

#: How long a status line may wait for the broker. Seconds.
_STATUS_DEADLINE = 1.0
#: What a status line is made of: nothing that tmux, a shell's prompt or a terminal expands.
_SAFE = NAME_CHARACTERS | frozenset(", ")


def add(verbs: Parser) -> None:
    group = verb(
        verbs,
        "channel",
        "relay channel join build          (quote the # in a shell: '#build')\n"
        '  relay send "#build" "the build is green"\n'
        "  relay channel history build",
    ).add_subparsers(alone="list")
    listed = group.add_parser("list", help="list all channels, and who is in them")
    listed.set_defaults(run=list_verb)
    for name, op, what in (
        ("join", CHANNEL_JOIN, "join a channel"),
        ("leave", CHANNEL_LEAVE, "leave a channel"),
    ):
        parser = group.add_parser(name, help=what)
        parser.add_argument(
            "channel", metavar="CHANNEL", offers="channels", help="build, or '#build'"
        )
        parser.add_argument(
            "--name", metavar="NAME", spare=True, help="somebody else, such as an agent"
        )
        parser.set_defaults(run=change_verb, op=op)
        parser.add_argument("--json", action="store_true", help="print JSON")
    members = group.add_parser("members", help="list who is in a channel")
    members.add_argument("channel", metavar="CHANNEL", offers="channels", help="build, or '#build'")
    members.set_defaults(run=members_verb)
    history = group.add_parser("history", help="what was written to a channel, oldest first")
    history.add_argument("channel", metavar="CHANNEL", offers="channels", help="build, or '#build'")
    history.add_argument("--limit", type=count, metavar="N", help="at most this many deliveries")
    history.set_defaults(run=history_verb)
    for parser in (listed, members, history):
        parser.add_argument("--json", action="store_true", help="print JSON")

    presence = verb(
        verbs,
        "presence",
        "relay presence '#build' reviewer     (inside an agent: what it wants to hear of)\n"
        "  relay presence --name Bob '*'\n"
        "  relay presence --name Bob --off",
    )
    presence.add_argument(
        "who", nargs="*", metavar="WHO", help="names, roles and #channels, or * for everybody"
    )
    presence.add_argument(
        "--off", action="store_true", help="stop telling it about these; without WHO: about anybody"
    )
    presence.add_argument("--name", metavar="NAME", help="the agent that is told")
    presence.add_argument("--json", action="store_true", help="print JSON")
    presence.set_defaults(run=presence_verb)

    whoami = verb(verbs, "whoami", "relay whoami\n  relay whoami --json")
    whoami.add_argument("--json", action="store_true", help="print JSON")
    whoami.set_defaults(run=whoami_verb)

    line = verb(
        verbs,
        "status-line",
        "set -g status-right '#(relay status-line)'      (tmux)\n"
        '  {"statusLine": {"type": "command", "command": "relay status-line"}}   (Claude Code)',
    )
    line.add_argument("--json", action="store_true", help="print JSON")
    line.set_defaults(run=status_line_verb)


# -- channels


def list_verb(options: Any) -> int:
    rows = request(CHANNELS)["rows"]
    if options.json:
        output.as_json(rows)
    elif not rows:
        output.note("no channels; relay channel join NAME creates one")
    else:
        shown = [(row["channel"], row["here"], ", ".join(row["members"])) for row in rows]
        table.table(("CHANNEL", "HERE", "MEMBERS"), shown, width=table.columns())
    return 0


def change_verb(options: Any) -> int:
    """``relay channel join`` and ``relay channel leave``."""
    op: Op[..., Any, ChannelChanged] = options.op
    answer = request(op, channel=options.channel, name=options.name, **output.speaker())
    if options.json:
        output.as_json(
            {
                "name": answer["name"],
                "channel": answer["channel"],
                "members": answer["members"],
                "here": answer["here"],
            }
        )
        return 0
    joined = op == CHANNEL_JOIN
    output.data(f"{answer['name']} has {'joined' if joined else 'left'} {answer['channel']}")
    if others := [name for name in answer["members"] if name != answer["name"]]:
        output.note(f"with {', '.join(others)}")
    return 0


def members_verb(options: Any) -> int:
    """``relay channel members``: one name a line."""
    wanted = options.channel.removeprefix("#").lower()
    rows = [row for row in request(CHANNELS)["rows"] if row["channel"] == f"#{wanted}"]
    members = rows[0]["members"] if rows else []
    if options.json:
        output.as_json(members)
        return 0
    for name in members:
        output.data(name)
    if not members:
        output.note(f"nobody is in #{wanted}; relay channel list shows all channels")
    return 0


def history_verb(options: Any) -> int:
    """``relay channel history``: each message once, with how many it has reached."""
    answer = request(HISTORY, channel=options.channel, limit=options.limit, **output.speaker())
    table.conversation(answer, options.json, f"nothing was written to {options.channel} yet")
    return 0


# -- presence, and who one is


def presence_verb(options: Any) -> int:
    who = options.who if options.who or options.off else None
    answer = request(PRESENCE, who=who, off=options.off, name=options.name, **output.speaker())
    if options.json:
        output.as_json({"name": answer["name"], "who": answer["who"]})
    else:
        output.data(answer["note"])
    return 0


def whoami_verb(options: Any) -> int:
    """``relay whoami``: the name alone on the first line."""
    answer = request(WHOAMI, **output.speaker())
    if options.json:
        output.as_json(answer)
        return 0
    output.data(answer["name"])
    table.fields(
        [
            ("kind", answer["kind"]),
            ("state", output.state_text(answer) if answer["state"] else None),
            ("roles", ", ".join(answer["roles"]) or None),
            ("channels", ", ".join(answer["channels"]) or None),
            ("told of", ", ".join(answer["presence"]) or None),
            ("unread", answer["unread"]),
            ("agents", answer["agents"]),
        ]
    )
    return 0


def status_line_verb(options: Any) -> int:
    """``relay status-line``: one line, at once. Starts nothing, and is empty without a broker."""
    try:
        with connect(Home.from_env(), start=False) as client:
            found = client.request(WHOAMI, deadline=_STATUS_DEADLINE, **output.speaker())
    except RelayError:
        found = None
    if options.json:
        output.as_json(found or {})
    else:
        output.data(status_line(found))
    return 0


def status_line(found: Whoami | None) -> str:
    """What the broker's ``whoami`` comes to in a line, of plain characters only."""
    if not found:
        return ""
    agent = found["state"] is not None
    others = found["agents"] - agent
    parts = [" ".join((found["name"], *found["roles"]))] if agent else []
    parts.append(f"{others or 'no'} {'other ' if agent else ''}agent{'' if others == 1 else 's'}")
    counts = (("busy", found["busy"]), ("blocked", found["blocked"]), ("limited", found["limited"]))
    for name, total in counts:
        number = total - (agent and found["state"] == name)
        if number > 0:
            parts.append(f"{number} {name}")
    if found["unread"]:
        parts.append(f"{found['unread']} {'waiting' if agent else 'unread'}")
    if found["held"] and not agent:
        parts.append(f"{found['held']:,} held")
    return "".join(char if char in _SAFE else "_" for char in ", ".join(parts))
