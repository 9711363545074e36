"""How an agent is started so that relay can hear it: flags and environment for one run only.

The pump imports this before it starts the agent: nothing heavy may be imported at the top, and
nothing here writes a file. What an agent does not offer is left alone, never guessed.
"""

from __future__ import annotations

import os


class Run:
    """What the pump knows about this run when it asks for a plan.

    ``port`` is the loopback port that the session answers on, or None when none was bound;
    ``token`` is what a hook must present there; ``socket`` is the session's unix socket.
    """

    __slots__ = ("name", "run_id", "token", "port", "socket", "primer")

    def __init__(
        self,
        *,
        name: str,
        run_id: str,
        token: str,
        port: int | None,
        socket: str = "",
        primer: bool = True,
    ) -> None:
        self.name = name
        self.run_id = run_id
        self.token = token
        self.port = port
        self.socket = socket
        self.primer = primer


class Launch:
    """A plan: what to run (``argv``), what to add to the environment (``env``), for whom.

    ``profile`` names the agent's kind (see relay.agents.registry); ``data`` is JSON for the
    session, among it ``degraded``: why less than usual can be heard.
    """

    __slots__ = ("argv", "env", "profile", "data")

    def __init__(
        self, argv: list[str], env: dict[str, str], profile: str, data: dict[str, object]
    ) -> None:
        self.argv = argv
        self.env = env
        self.profile = profile
        self.data = data


def program(argv: list[str]) -> str:
    """The name of the program that ``argv`` starts, without its directory."""
    return os.path.basename(argv[0]) if argv else ""


def wants_tcp(argv: list[str]) -> bool:
    """Whether this agent's hooks speak HTTP, so that a loopback port should be bound for them."""
    if program(argv) != "claude":
        return False
    from relay.agents.claude_launch import converses

    return converses(argv)


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """What to start for ``argv``. Never raises: what cannot be had is left out and said so."""
    name = program(argv)
    if name == "claude":
        from relay.agents.claude_launch import plan_claude

        return plan_claude(argv, env, run)
    from relay.agents.interpreters import interpreter
    from relay.agents.shell import is_interactive_shell

    kind = "shell" if is_interactive_shell(argv) else interpreter(argv) or name
    return Launch(list(argv), {}, kind, {})
