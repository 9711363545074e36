"""Who a session is for.

A file of its own because the session, its handlers' actions and the wiring need it, and nothing
more of each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

#: Texts that handlers may give the agent within a minute in which the person says nothing.
TEXTS_MAX = 60
#: How the variables end that say whose account an agent uses.
_ACCOUNT = ("_API_KEY", "_AUTH_TOKEN", "_OAUTH_TOKEN", "_CONFIG_DIR", "_BASE_URL", "CODEX_HOME")


@dataclass(frozen=True)
class RunInfo:
    """One run of one agent, with what its configuration says."""

    run_id: str
    name: str
    person: str
    started_ms: int  # since the epoch
    cwd: str
    env: dict[str, str]
    task: str | None = None
    project: str = ""  # the root of the repository that cwd was in at the start
    idle_seconds: float = 30.0  # of silence, before on_idle fires
    handler_timeout: float = 30.0  # seconds
    texts_max: int = TEXTS_MAX  # 0: any number
    end_seconds: float = 10.0  # for what the session-end hooks tell the agent
    offset: int = 0  # in the agent's output: what an earlier session has dealt with
    restarts: int = 0  # sessions of this run before this one


def account_of(kind: str, env: Mapping[str, str]) -> str:
    """Stands for the account whose usage limits hold for an agent of this kind: those that have it
    in common have the same settings folder and the same key. No key can be read from it."""
    names = sorted(name for name in env if name.endswith(_ACCOUNT) or name == "HOME")
    told = "\n".join([kind, *(f"{name}={env[name]}" for name in names)])
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def texts_max(env: Mapping[str, str]) -> int:
    """As many as messages between two agents; the same variable says how many."""
    given = env.get("RELAY_RATE_MAX", "")
    return int(given) if given.isdigit() else TEXTS_MAX
