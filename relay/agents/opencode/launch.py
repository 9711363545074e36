"""Starting opencode so that relay can hear it: its own server, on a loopback port of this run.

``--port`` makes opencode serve; without it no port is opened at all. A password for this run keeps
others on the machine out: it stands in the environment, not on the command line. A port, host or
password of the person's own stays as it is. Nothing is written to the person's files.
"""

from __future__ import annotations

import json
import os

from relay.agents.arguments import Arguments, ArgvReader
from relay.agents.installed import dotted, version_of
from relay.agents.launch import (
    MCP,
    MCP_START,
    Launch,
    Run,
    has_settings,
    mcp_command,
    planned_hooks,
    private_file,
)

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

READER = ArgvReader(
    style="yargs",
    subcommands="acp agent auth completion db debug export generate github import mcp models plug"
    " plugin pr providers run serve session stats uninstall upgrade web",
    once="-v --version -h --help",
    options="--port --hostname --mdns-domain --cors --log-level --prompt --agent -m --model -s"
    " --session --replay-limit",
)
PACKAGE = "opencode-ai"
#: The oldest version whose server has been seen at work.
OLDEST = (1, 18, 33)
#: What opencode takes itself where a port is not said.
USUAL_PORT = 4096
#: The first of the ports to choose from, and how many: below those that a system gives to programs
#: that ask for any, so that none gets ours by chance between the choice and opencode's start.
FIRST_PORT, PORTS = 20000, 12000
#: What stands for itself in the path of a file's address.
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")


#: Where a project has settings, servers, tools and plugins for opencode.
_SETTINGS = ("opencode.json", "opencode.jsonc", ".opencode")


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """The argv with a port in it, or as it was, with the reason in ``data["degraded"]``."""
    if not run.terms.gate_only and (not READER.converses(argv) or not run.terms.terminal):
        return Launch(list(argv), {}, "command", {})
    read = READER.read(argv[1:])
    added: dict[str, str] = {}
    data: dict[str, Any] = {}
    started = list(argv)
    if not run.terms.gate_only:
        reason = _why_no_server(read, argv[0], env)
        if not reason:
            try:
                started[1:1] = _serve(read, env, added, data)
            except OSError as error:
                reason = f"no loopback port could be had: {error}"
        if reason:
            data = {"degraded": f"{reason}; relay reads its screen instead"}
        data["session"] = read.value("--session", "-s") or ""
        data["continues"] = read.given("--continue", "-c")
        if read.given("--fork"):
            data["session"], data["continues"] = "", False  # it is told when it is made
    data |= planned_hooks(run, _why_no_gate(read, argv[0], env, run))
    _configure(read, env, run, added, data)
    return Launch(started, added, "opencode", data)


def _why_no_server(read: Arguments, program: str, env: dict[str, str]) -> str:
    if read.first == "attach":
        return "its server is another program's"
    if read.given("--mini"):
        return "--mini has no server"
    version = version_of(program, env, PACKAGE)
    if version is not None and version < OLDEST:
        return f"opencode before {dotted(OLDEST)} is not known to relay"
    # Where the version cannot be told (the native installer leaves no trace of it), the server
    # will tell it to the session.
    return ""


def _serve(
    read: Arguments, env: dict[str, str], added: dict[str, str], data: dict[str, Any]
) -> list[str]:
    """The arguments that make opencode serve; notes in ``data`` where, and how to be let in."""
    given = read.value("--port") or ""
    open_by_choice = read.given("--port", "--hostname", "--mdns")
    arguments: list[str] = []
    if given.isdigit() and int(given):
        port = int(given)
    else:
        # Where the person opens the server without saying where, opencode takes its usual port.
        if read.given("--port"):
            raise OSError("--port without a number leaves it to opencode")
        port = USUAL_PORT if open_by_choice and _is_free(USUAL_PORT) else _free_port()
        arguments = ["--port", str(port)]
    host = read.value("--hostname") or ("0.0.0.0" if read.given("--mdns") else "127.0.0.1")
    password = env.get("OPENCODE_SERVER_PASSWORD", "")
    if not password and not open_by_choice:
        password = added["OPENCODE_SERVER_PASSWORD"] = os.urandom(16).hex()
    data["port"] = port
    data["host"] = "127.0.0.1" if host in ("0.0.0.0", "localhost", "::") else host
    data["password"] = password
    data["username"] = env.get("OPENCODE_SERVER_USERNAME") or "opencode"
    return arguments


def _free_port() -> int:
    for _ in range(50):
        port = FIRST_PORT + int.from_bytes(os.urandom(4), "big") % PORTS
        if _is_free(port):
            return port
    raise OSError("none of fifty was free")


def _is_free(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _why_no_gate(read: Arguments, program: str, env: dict[str, str], run: Run) -> str:
    """Why no plugin can ask about tool calls; "" where one can."""
    if run.endpoint.port is None:
        return "no loopback port could be bound for opencode's plugin"
    if read.first == "attach":
        return "the plugins are those of the server that opencode is attached to"
    if read.given("--mini"):
        return "opencode --mini has not been seen to load plugins"
    if read.given("--pure") or env.get("OPENCODE_PURE", "").lower() in ("1", "true"):
        return "opencode loads no plugins with --pure or OPENCODE_PURE"
    version = version_of(program, env, PACKAGE)
    if version is not None and version < OLDEST:
        return "the plugins of this opencode are not known to relay"
    return ""


def _configure(
    read: Arguments, env: dict[str, str], run: Run, added: dict[str, str], data: dict[str, Any]
) -> None:
    """Name our plugin and a file with the primer in opencode's configuration of this run."""
    gates: list[str] = [*data.get("gates", []), *data.get("tells", [])]
    serves = run.terms.mcp and not run.terms.gate_only
    if not run.primer and not gates and not serves:
        return
    given = env.get("OPENCODE_CONFIG_CONTENT", "")
    try:
        config = json.loads(given) if given.strip() else {}
        if run.primer:
            told = private_file(run, "relay.md", run.primer.text())
            config = {**config, "instructions": [*(config.get("instructions") or []), told]}
            data["context"] = {"file": told, "event": ""}  # it reads it with each request
            data["primed"] = True
        if gates:
            config = {**config, "plugin": [*(config.get("plugin") or []), _plugin()]}
        if serves:
            server = {"type": "local", "command": mcp_command(), "timeout": MCP_START * 1000}
            config = {**config, "mcp": {**(config.get("mcp") or {}), MCP: server}}
            data["mcp"] = not (read.first or has_settings(_SETTINGS))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        if run.primer:
            data["untaught"] = f"opencode could not be told how to talk: {error}"
        data.pop("context", None)
        data.pop("primed", None)
        data.pop("mcp", None)
        why = f"opencode's configuration could not be extended: {error}"
        if gates:
            data.pop("gates", None)
            data.pop("tells", None)
            data |= planned_hooks(run, why)
        return
    if gates:
        added["RELAY_GATES"] = ",".join(gates)
        added["RELAY_TELLS"] = ""  # of an opencode that we were started from
    added["OPENCODE_CONFIG_CONTENT"] = json.dumps(config)


def _plugin() -> str:
    """The address of our plugin, which comes with relay."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gate.js")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} is missing")
    return "file://" + "".join(
        character if character in _PLAIN else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in path
    )
