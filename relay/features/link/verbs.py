"""The verb ``link``: agents on several machines."""

from __future__ import annotations

import os
import time

from relay.broker.client import request
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.core.errors import UsageError
from relay.core.visible import age
from relay.features.link.ops import LINK, LINK_ALLOW, LINK_JOIN, LINK_NEW, LINK_REMOVE, LINK_USE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.features.link.ops import LinkState, Machine


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    group = verb(
        verbs,
        "link",
        "relay link new                  (prints a code; then, on the other machine:)\n"
        "  relay link join relay1:…\n"
        "  relay link join ssh://me@server (instead of both, if you can ssh to it)\n"
        '  relay send Bob@server "are you there?"',
        "Agents on several machines write to each other. See docs/many-machines.md.",
    ).add_subparsers(alone="list")
    listed = group.add_parser("list", help="the machines: when they were seen, and what waits")
    listed.set_defaults(run=list_verb)
    new = group.add_parser("new", help="begin a link, or print a code for one more machine")
    new.add_argument("--name", metavar="NAME", help="this machine's name (its host name)")
    new.add_argument("--address", metavar="HOST[:PORT]", help="where others reach this machine")
    new.set_defaults(run=new_verb)
    join = group.add_parser("join", help="join a link with its code, or through ssh")
    join.add_argument(
        "code",
        metavar="CODE",
        help="what relay link new printed; or ssh://USER@HOST[:PORT], which gets a code there and"
        " connects through ssh, so that no port is open",
    )
    join.add_argument("--name", metavar="NAME", help="this machine's name (its host name)")
    join.set_defaults(run=join_verb)
    use = group.add_parser("use", help="use a NATS server that you already have")
    use.add_argument(
        "urls",
        nargs="?",
        metavar="URL[,URL]",
        help="tls://HOST[:PORT], several of one cluster; nats://… without TLS",
    )
    use.add_argument(
        "--creds", metavar="FILE", help="credentials of this machine; read anew at each connection"
    )
    use.add_argument("--name", metavar="NAME", help="this machine's name (its host name)")
    use.add_argument("--needs", action="store_true", help="print what the server must allow it")
    use.set_defaults(run=use_verb)
    allow = group.add_parser(
        "allow", help="set what a machine may do here besides sending messages"
    )
    allow.add_argument("machine", metavar="MACHINE", help="the machine")
    allow.add_argument(
        "rights",
        nargs="*",
        metavar="RIGHT",
        help="peek: see screens; transcript: read turns; answer: see and answer what waits here;"
        " interrupt: stop turns; person: its person is you. None: messages only",
    )
    allow.set_defaults(run=allow_verb)
    remove = group.add_parser("remove", help="remove a machine; its own name: leave the link")
    remove.add_argument("machine", metavar="MACHINE", help="the machine")
    remove.set_defaults(run=remove_verb)
    for parser in (listed, new, join, use, allow, remove):
        parser.add_argument("--json", action="store_true", help="print JSON")


def list_verb(options: Any) -> int:
    """``relay link``."""
    return _show(request(LINK, **output.speaker()), options)


def _show(state: LinkState, options: Any) -> int:
    if options.json:
        output.as_json(state)
        return 0
    if not state["name"]:
        output.note("this machine is not linked; relay link new starts one")
        return 0
    how = "connected" if state["connected"] else "not connected"
    where = "here" if state["hosts"] else f"at {state['server']}"
    output.data(f"{state['name']}: {how}, the server runs {where}")
    if state["problem"]:
        output.note(f"  {state['problem']}")
    rows = [
        (
            one["name"],
            _seen(one),
            one["waiting"],
            " ".join(one["rights"]) or "messages",
            ", ".join(one["agents"]) or "none",
        )
        for one in state["machines"]
    ]
    if rows:
        table.table(("MACHINE", "SEEN", "WAITING", "MAY", "AGENTS"), rows, width=table.columns())
    else:
        is_own = state["server"].startswith(("nats:", "tls:"))
        way = "relay link use on others" if is_own else "relay link new prints a code for one"
        output.note(f"no other machine has joined yet; {way}")
    return 0


def _seen(one: Machine) -> str:
    if one["here"]:
        return "connected"
    if one["seen_ms"] is None:
        return "not yet"
    return f"{age(time.time_ns() // 1_000_000 - one['seen_ms'])} ago"


def new_verb(options: Any) -> int:
    """``relay link new``: the code alone goes to stdout."""
    made = request(
        LINK_NEW, deadline=40, name=options.name, address=options.address, **output.speaker()
    )
    if options.json:
        output.as_json(made)
        return 0
    output.note(f"{made['name']} serves the link at {made['server']}. On the other machine, within")
    output.note("10 minutes (the code works once; who has it can join, so keep it to yourself):")
    output.data(f"relay link join {made['code']}")
    return 0


def join_verb(options: Any) -> int:
    """``relay link join``."""
    code, ssh = options.code, None
    if code.startswith("ssh:"):
        code, ssh = _code_by_ssh(code)
    joined = request(
        LINK_JOIN, deadline=90, code=code, name=options.name, ssh=ssh, **output.speaker()
    )
    if options.json:
        output.as_json(joined)
        return 0
    output.data(f"this machine is {joined['name']}, linked with {', '.join(joined['machines'])}")
    output.note(f'write to an agent there: relay send NAME@{joined["machines"][0]} "…"')
    return 0


def use_verb(options: Any) -> int:
    """``relay link use``."""
    if options.needs:
        from relay.features.link.link_files import machine_name
        from relay.features.link.own_server import needs

        output.as_json(needs(machine_name(options.name)))
        return 0
    if not options.urls:
        raise UsageError("the server's address is missing", hint="relay link use tls://HOST")
    creds = options.creds and os.path.abspath(options.creds)
    used = request(
        LINK_USE,
        deadline=40,
        urls=options.urls,
        creds=creds,
        name=options.name,
        **output.speaker(),
    )
    if options.json:
        output.as_json(used)
        return 0
    output.data(f"this machine is {used['name']}, and uses {used['server']}")
    output.note("relay link shows the other machines that use it within ten seconds")
    return 0


def _code_by_ssh(address: str) -> tuple[str, str]:
    """A code of the machine at ``address``, and the way there. Raises RelayError."""
    from relay.broker.client import check_person
    from relay.core.paths import Home
    from relay.features.link.by_ssh import SshWay, new_code

    way = SshWay.read(address)
    check_person(Home.from_env(), "link machines")
    if own := request(LINK, **output.speaker())["name"]:  # before a link begins there
        raise UsageError(
            "this machine is in a link already", hint=f"leave it: relay link remove {own}"
        )
    output.note(f"asking {way} for a code …")
    return new_code(way), str(way)


def allow_verb(options: Any) -> int:
    """``relay link allow``."""
    rights = options.rights
    return _show(
        request(LINK_ALLOW, machine=options.machine, rights=rights, **output.speaker()), options
    )


def remove_verb(options: Any) -> int:
    """``relay link remove``."""
    answer = request(LINK_REMOVE, deadline=40, machine=options.machine, **output.speaker())
    return _show(answer, options)
