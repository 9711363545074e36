"""Starting Codex CLI so that relay can hear it: hooks for this one run, by ``-c``.

Nothing is written to the user's files. Hooks that are new have to be trusted, or Codex asks about
them before anything else; the trust is given for exactly our own, by their hash, on the same
command line (hooks.py). Overrides by ``-c`` make Codex run without its shared background server,
and warn of it; ``--no-daemon`` says the same without the warning, and keeps the conversation in
one process, by which relay knows whose session file it reads.
"""

from __future__ import annotations

import os

from relay.agents.installed import npm_version, parse_version, which
from relay.agents.launch import Launch, Run, gated, told, word_set

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "@openai/codex"
#: The oldest version in which the hooks, their trust and the session file were seen as used here.
OLDEST = (0, 169, 0)
#: First words that start something else than a conversation in this terminal.
SUBCOMMANDS = word_set(
    "agents exec e review login logout mcp mcp-server plugin app-server remote-control completion"
    " update doctor sandbox debug apply a queue archive delete migrate-rollouts migrate-nfs-db"
    " unarchive cloud exec-server features help"
)
_ASIDE = word_set("-h --help -V --version")
#: Options that take the next word as their value.
_VALUED = word_set(
    "-c --config --enable --disable --remote --remote-auth-token-env -i --image -m --model"
    " --local-provider -p --profile -s --sandbox -C --cd --add-dir -a --ask-for-approval"
)


def converses(argv: list[str]) -> bool:
    """Whether ``argv`` starts a conversation (``codex exec`` and ``codex --version`` do not)."""
    options, words = _parse(argv[1:])
    if words and words[0] in SUBCOMMANDS:
        return False
    return not any(name in _ASIDE for name, _ in options)


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """The argv with our hooks in it, or as it was, with the reason in ``data["degraded"]``.

    ``data``: ``heard`` is False where the session file cannot be read or is not of a known form;
    ``hooks`` tells whether hooks were put in.
    """
    if not converses(argv):
        return Launch(list(argv), {}, "command", {})
    reason = _why_unheard(argv, env)
    if reason is not None:
        data: dict[str, Any] = {"heard": False, "hooks": False, "degraded": reason}
        data |= gated(run, reason) | told(run, reason)
        return Launch(list(argv), {}, "codex", data)
    from relay.agents.codex.hooks import flags

    options, _ = _parse(argv[1:])
    data = {"heard": True, "hooks": True, "program": argv[0]}
    chosen: list[str] = [] if any(name == "--no-daemon" for name, _ in options) else ["--no-daemon"]
    try:
        added, kept = flags(run, argv[1:])
    except ValueError as error:
        data["hooks"] = False
        reason = f"the hooks on the command line cannot be extended ({error})"
        data |= gated(run, reason) | told(run, reason)
        data["degraded"] = (
            f"no hooks were put in, because those on the command line cannot be extended ({error});"
            " a permission dialog is noticed on the screen only, and the model was not told how to"
            " send messages"
        )
        return Launch([argv[0], *chosen, *argv[1:]], {}, "codex", data)
    if run.port is None:
        data["degraded"] = "no loopback port could be bound for hooks; the session file is read"
    off = _why_no_gates(options, env, run)
    data |= gated(run, off) | told(run, off)
    return Launch([argv[0], *chosen, *added, *kept], {}, "codex", data)


def version_of(program: str, env: dict[str, str]) -> tuple[int, ...] | None:
    """The version of an installed Codex, without starting it; None when it cannot be told.

    It stands in the package around the program (npm), or in the path (Homebrew, the release's own
    folder of its background server).
    """
    path = which(program, env)
    if path is None:
        return None
    found = npm_version(path, PACKAGE)
    for part in [] if found else reversed(path.split("/")[:-1]):
        # ``0.169.0`` or ``0.169.0-x86_64-unknown-linux-musl``
        if part[:1].isdigit() and (found := parse_version(part)):
            break
    return found


def _why_no_gates(options: list[tuple[str, str]], env: dict[str, str], run: Run) -> str:
    if run.port is None:
        return "no loopback port could be bound for hooks"
    if not run.hooks:
        return ""
    from relay.agents.codex.settings import hooks_off

    off = hooks_off(options, env, os.getcwd())
    return f"{off} turns off all hooks (features.hooks)" if off else ""


def _why_unheard(argv: list[str], env: dict[str, str]) -> str | None:
    options, _ = _parse(argv[1:])
    if any(name == "--remote" for name, _ in options):
        return "with --remote the session is kept elsewhere: Codex is heard by its screen"
    version = version_of(argv[0], env)
    if version is None or version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        found = "cannot be told" if version is None else ".".join(map(str, version))
        return (
            f"relay knows the hooks and session files of Codex from {oldest} on (this version:"
            f" {found}); what it says is read from its screen"
        )
    return None


def _parse(arguments: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The options with their values, and the words that are none (a prompt after ``--`` is left
    out: no subcommand is meant there)."""
    options: list[tuple[str, str]] = []
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            break
        if len(word) < 2 or not word.startswith("-"):
            words.append(word)
        elif word in _VALUED:
            options.append((word, next(rest, "")))
        elif word.startswith("--"):
            name, _, value = word.partition("=")
            options.append((name, value))
        else:
            options.append((word[:2], word[2:].removeprefix("=")))
    return options, words
