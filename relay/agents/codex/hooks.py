"""Our hooks for one run of Codex, as ``-c`` flags, and the trust in exactly these.

Codex keeps a hash of each hook that the person has trusted. What it hashes is the hook in a
normal form; its own ``hooks/list`` names the key and the hash, and both are computed here alike. A
hash that is wrong would make Codex ask about the hook at its start, so a form that is not the one
that was seen at work is never used (launch.OLDEST).
"""

from __future__ import annotations

import hashlib
import json

from relay.agents.hook_scripts import ANSWER_TIMEOUT, asker, reporter
from relay.agents.launch import GATE_TIMEOUT, Run
from relay.agents.primer import primer

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

#: Seconds that a hook may take. Codex allows Interrupt and SessionEnd no more than this.
TIMEOUT = 3
#: Reported in the background: nothing waits for them.
REPORTED = ("SessionStart", "UserPromptSubmit", "PermissionRequest", "Stop", "Interrupt")
#: Seconds that an answer is waited for: Codex would let the tool run when it loses patience itself.
PATIENCE = GATE_TIMEOUT - ANSWER_TIMEOUT - 2
#: What the model is told of a tool that could not be asked about.
UNASKED = "relay has hooks for tool calls and could not ask them, so this was not run"
#: How Codex names the layer of its configuration that ``-c`` makes.
_LAYER = "/<session-flags>/config.toml"


def flags(run: Run, arguments: list[str]) -> tuple[list[str], list[str]]:
    """The flags to add, and the user's own arguments without those that went into them.

    Of several ``-c`` for one key Codex takes the last, so hooks that the user gives are taken into
    ours, before them. Raises ValueError where theirs are of a form that cannot be extended.
    """
    theirs, kept = _take(arguments)
    trust = theirs.pop("state", {})
    if not isinstance(trust, dict):
        raise ValueError("hooks.state is no table")
    added: list[str] = []
    for event, groups in ours(run).items():
        before = theirs.pop(event, [])
        if not isinstance(before, list):
            raise ValueError(f"hooks.{event} is no list")
        for number, group in enumerate(groups, len(before)):
            for place, hook in enumerate(group["hooks"]):
                key = f"{_LAYER}:{_snake(event)}:{number}:{place}"
                trust[key] = {"trusted_hash": trusted_hash(event, hook)}
        added += ["-c", f"hooks.{event}={_toml([*before, *groups])}"]
    for event, value in theirs.items():
        added += ["-c", f"hooks.{event}={_toml(value)}"]
    return [*added, "-c", f"hooks.state={_toml(trust)}"], kept


def ours(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Our hooks, by event, in the form of Codex's configuration."""
    chosen: dict[str, list[dict[str, Any]]] = {}
    if run.port is not None:
        report = {"type": "command", "command": reporter(), "timeout": TIMEOUT, "async": True}
        more = ("PreCompact",) if "PreCompress" in run.hooks else ()
        chosen = {event: [{"hooks": [dict(report)]}] for event in (*REPORTED, *more)}
        if "BeforeTool" in run.hooks:
            chosen["PreToolUse"] = [{"hooks": [_ask(UNASKED)]}]
        # Messages may go to the model with the answer, so it is asked for in any case.
        chosen["PostToolUse"] = [{"hooks": [_ask() if "AfterTool" in run.hooks else _steered()]}]
    if run.primer:
        chosen.setdefault("SessionStart", []).append({"hooks": [_tell(run)]})
    return chosen


def trusted_hash(event: str, hook: dict[str, Any]) -> str:
    """What Codex knows a trusted hook by, one without a matcher."""
    normal = {"async": False, **hook}
    identity = {"event_name": _snake(event), "hooks": [normal]}
    whole = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(whole.encode()).hexdigest()


def _ask(why: str = "") -> dict[str, Any]:
    """A hook that Codex waits for; with ``why`` it refuses where there is no answer."""
    return {"type": "command", "command": asker(PATIENCE, why), "timeout": GATE_TIMEOUT}


def _steered() -> dict[str, Any]:
    """A hook by which messages come in: where there is no answer at once, Codex goes on."""
    return {"type": "command", "command": asker(TIMEOUT - 1), "timeout": TIMEOUT}


def _tell(run: Run) -> dict[str, Any]:
    """A hook that gives the model the primer when a session starts, resumes or was compacted."""
    text = primer(run.name, run.namespaces)
    output = {"hookEventName": "SessionStart", "additionalContext": text}
    quoted = json.dumps({"hookSpecificOutput": output}).replace("'", "'\\''")
    return {"type": "command", "command": f"printf '%s' '{quoted}'", "timeout": TIMEOUT}


def _take(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The user's own ``-c hooks.…``, by what follows the dot, and the other arguments."""
    theirs: dict[str, Any] = {}
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            kept += [word, *words]
            continue
        taken, given = [word], None
        if word in ("-c", "--config"):
            given = next(words, None)
            taken += [] if given is None else [given]
        elif word.startswith("--config="):
            given = word.partition("=")[2]
        elif word.startswith("-c") and not word.startswith("--"):
            given = word[2:].removeprefix("=")
        key, _, value = (given or "").partition("=")
        if key.strip().partition(".")[0] != "hooks":
            kept += taken
            continue
        _, dot, name = key.strip().partition(".")
        if not dot or "." in name or '"' in name:
            raise ValueError(f"{key.strip()} is not one event's")
        theirs[name] = _parsed(value)
    return theirs, kept


def _parsed(value: str) -> Any:
    import tomllib  # only for those who give hooks of their own

    return tomllib.loads(f"value = {value}")["value"]


def _toml(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, dict):
        pairs = (f"{_text(key)}={_toml(item)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"a value of the type {type(value).__name__}")


def _text(text: str) -> str:
    # A basic string of TOML escapes as JSON does, but for DEL and for surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _snake(event: str) -> str:
    """``UserPromptSubmit`` -> ``user_prompt_submit``."""
    return "".join("_" + c.lower() if c.isupper() else c for c in event).lstrip("_")
