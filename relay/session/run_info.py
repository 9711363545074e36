"""The run that a session serves."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

#: Texts that handlers may give the agent within a minute in which the person says nothing.
TEXTS_MAX = 60
#: The endings of variables that say whose account an agent uses.
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
    account: str = ""  # whose usage limits hold for the agent, see account_of
    task: str | None = None
    project: str = ""  # the root of the repository that cwd was in at the start
    idle_seconds: float = 30.0  # of silence, before on_idle fires
    handler_timeout: float = 30.0  # seconds
    texts_max: int = TEXTS_MAX  # 0: any number
    end_seconds: float = 10.0  # for what the session-end hooks tell the agent
    offset: int = 0  # in the agent's output, up to which earlier sessions have handled it
    restarts: int = 0  # sessions of this run before this one


def account_of(kind: str, env: Mapping[str, str]) -> str:
    """A hash of the account whose usage limits apply to an agent of this kind: agents with the same
    settings folder and the same key have it in common. It does not reveal the key."""
    names = sorted(name for name in env if name.endswith(_ACCOUNT) or name == "HOME")
    told = "\n".join([kind, *(f"{name}={env[name]}" for name in names)])
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def texts_max(env: Mapping[str, str]) -> int:
    """The limit of messages between two agents, by the same variable."""
    given = env.get("RELAY_RATE_MAX", "")
    return int(given) if given.isdigit() else TEXTS_MAX
