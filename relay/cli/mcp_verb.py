"""The verb ``mcp``: relay's tools for a program that speaks the Model Context Protocol."""

from __future__ import annotations

import asyncio
import os

from relay.cli.memory_client import applying
from relay.cli.output import Json
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.memory_spec import StoreSpec
from relay.core.paths import Home, working_folder
from relay.core.processes import wrapped


def add(verbs: Parser) -> None:
    """Declare the verb."""
    parser = verb(
        verbs,
        "mcp",
        "relay mcp                  (a client starts this, and speaks with it by stdin and stdout)",
    )
    parser.set_defaults(run=mcp_verb)


def mcp_verb(options: Options) -> int:
    """``relay mcp``."""
    from relay.ui.mcp_server import serve_stdio

    home = Home.from_env()
    run = os.environ.get("RELAY_RUN")
    auth: Json = {"run": run, "token": os.environ.get("RELAY_TOKEN", "")} if run else {}
    asyncio.run(serve_stdio(home, auth, _memory(home), working_folder()))
    return 0


def _memory(home: Home) -> Json:
    """What the person's requests about memories name; of an agent's its session has told it."""
    if wrapped():
        return {}
    settings = applying(home).settings
    store = settings.store.resolved(os.environ)
    named: Json = {} if store == StoreSpec() else {"store": store.to_json()}
    return {**named, "secrets": settings.secrets}
