"""The verb ``mcp``: relay's tools for a program that speaks the Model Context Protocol."""

from __future__ import annotations

import asyncio
import os
import secrets
from types import ModuleType

from relay.broker.client import check_person
from relay.cli import output
from relay.cli.output import Json
from relay.cli.parser import Options, Parser, port
from relay.cli.verbs import verb
from relay.core.errors import RelayError, UsageError
from relay.core.files import read_file, write_atomically
from relay.core.loopback_guard import TUNNEL_HELP, admitted, loopback_listener
from relay.core.paths import Home, working_folder
from relay.core.processes import wrapped
from relay.features.memory.memory_client import applying
from relay.features.memory.spec import StoreSpec

#: Bytes of the token's file, and characters of one that can be meant.
_TOKEN_MAX, _TOKEN_MIN = 200, 32


def add(verbs: Parser) -> None:
    parser = verb(
        verbs,
        "mcp",
        "relay mcp                      (a client starts this, and speaks with it by stdio)\n"
        "  relay mcp --http --port 8931   (serves all of your clients, until Ctrl-C)",
    )
    parser.add_argument("--http", action="store_true", help="serve by HTTP, at 127.0.0.1 only")
    parser.add_argument("--port", type=port, metavar="N", help="the port (default: a free one)")
    parser.add_argument("--allow-tunnel", action="store_true", help=TUNNEL_HELP)
    parser.set_defaults(run=mcp_verb)


def mcp_verb(options: Options) -> int:
    if options.http:
        return _serve_http(options)
    for option, given in ("--port", options.port), ("--allow-tunnel", options.allow_tunnel):
        if given:
            raise UsageError(f"{option} needs --http", hint=f"add --http, or leave out {option}")
    serve_stdio = _server().serve_stdio
    home = Home.from_env()
    run = os.environ.get("RELAY_RUN")
    auth: Json = {"run": run, "token": os.environ.get("RELAY_TOKEN", "")} if run else {}
    asyncio.run(serve_stdio(home, auth, _memory(home), working_folder()))
    return 0


def _server() -> ModuleType:
    """The module of the server. Raises RelayError where its library is not installed."""
    try:
        from relay.features.mcp import mcp_server
    except ModuleNotFoundError as error:
        from relay.core.extras import adding

        reason = f"relay mcp needs a library that is not installed here ({error.name})"
        raise RelayError(reason, hint=adding("mcp"), code="extra_missing") from error
    return mcp_server


def _memory(home: Home) -> Json:
    """What the person's requests about memories name; of an agent's its session has told it."""
    if wrapped():
        return {}
    settings = applying(home).settings
    store = settings.store.resolved(os.environ)
    named: Json = {} if store == StoreSpec() else {"store": store.to_json()}
    return {**named, "secrets": settings.secrets}


def _serve_http(options: Options) -> int:
    home = Home.from_env()
    check_person(home, "serve your own clients")
    server = _server()
    home.create()
    token, listener = _token(home), loopback_listener(options.port or 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    headers = {"Authorization": f"Bearer {token}"}
    output.note("What your client needs; keep it to yourself. Ctrl-C ends the server.")
    output.as_json({"mcpServers": {"relay": {"type": "http", "url": url, "headers": headers}}})
    output.flush()
    try:
        door = server.Door(listener, token, admitted(options.allow_tunnel))
        asyncio.run(server.serve_http(home, door, _memory(home), working_folder()))
    except KeyboardInterrupt:
        return 0
    return 0


def _token(home: Home) -> str:
    """What a client shows: the same each time, for it stands in the settings of clients."""
    path = os.path.join(home.root, "mcp.token")
    try:
        token = read_file(path, _TOKEN_MAX).decode("ascii", "replace").strip()
    except FileNotFoundError:
        token = ""
    if len(token) < _TOKEN_MIN or not token.isascii():
        token = secrets.token_urlsafe(32)
        write_atomically(path, token)
    return token
