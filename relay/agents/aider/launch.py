"""Starting aider so that relay can hear it: an LLM history and a file to read, for this one run.

aider logs the conversation with its model, roles and all, when it is told a file for it. By
default it has none, so ours stands in the run's folder; where the user has one, theirs is read and
nothing is changed. The chat history and the input history stay what and where they are.
"""

from __future__ import annotations

import os

from relay.agents.aider.settings import Settings, Unclear
from relay.agents.installed import pip_version
from relay.agents.launch import Launch, Run, after_module
from relay.agents.primer import primer
from relay.core.files import make_private_folder

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "aider-chat"
#: The file that tells the model how to talk to others, in the run's folder.
PRIMER = "relay-primer.md"
#: The oldest version whose LLM history has been seen.
OLDEST = (0, 86, 2)
#: Flags with which aider does one thing and ends, or is no program of the terminal.
_ONCE = frozenset(
    (
        "-h",
        "--help",
        "--version",
        "--message",
        "--msg",
        "-m",
        "--message-file",
        "-f",
        "--commit",
        "--lint",
        "--test",
        "--apply",
        "--apply-clipboard-edits",
        "--show-repo-map",
        "--show-prompts",
        "--exit",
        "--list-models",
        "--models",
        "--just-check-update",
        "--upgrade",
        "--update",
        "--install-main-branch",
        "--gui",
        "--browser",
        "--shell-completions",
    )
)


def converses(argv: list[str]) -> bool:
    """Whether ``argv`` starts a conversation (``aider --message …`` and the like do not)."""
    return not Settings(_split(argv)[1], {}, os.sep).given(*_ONCE)


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """The argv with our files in it, or as it was, with the reason in ``data["degraded"]``."""
    if not converses(argv):
        return Launch(list(argv), {}, "command", {})
    data: dict[str, Any] = {}
    before, arguments = _split(argv)
    flags: list[str] = []
    problems: list[str] = []
    try:
        settings = Settings(arguments, env, os.getcwd())
        data["lines"] = _takes_lines(settings, env)
        flags += _history(argv, env, run, settings, data)
    except (OSError, Unclear, _Problem) as error:
        problems.append(f"aider is heard by its screen: {_words(error)}")
    if run.primer:
        try:
            flags += _told(run, Settings(arguments, env, os.getcwd()))
            if data.get("own") is False:
                # Other aiders may write into the person's own history; ours shows what it reads.
                data["mark"] = os.path.join(os.path.basename(run.folder), PRIMER)
        except (OSError, Unclear) as error:
            problems.append(f"aider was not told how to talk to others: {_words(error)}")
    if problems:
        data["degraded"] = "; ".join(problems)
    return Launch([*before, *flags, *arguments], {}, "aider", data)


class _Problem(Exception):
    """Why aider's own words cannot be had."""


def _words(error: Exception) -> str:
    if isinstance(error, Unclear):
        return f"the settings for {error} cannot be read"
    return str(error)


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The program (``aider``, ``python -m aider``), and its arguments."""
    start = after_module(argv) or 1
    return argv[:start], argv[start:]


def _takes_lines(settings: Settings, env: dict[str, str]) -> bool:
    """Whether aider reads plain lines instead of having an input line of its own."""
    dumb = env.get("TERM", "dumb") in ("dumb", "unknown", "")
    return dumb or settings.given("--no-fancy-input")


def _history(
    argv: list[str], env: dict[str, str], run: Run, settings: Settings, data: dict[str, Any]
) -> list[str]:
    """The flags that make aider log what its model says; ``data`` learns where."""
    version = version_of(argv, env)
    if version is None:
        raise _Problem("its version cannot be told")
    if version < OLDEST:
        raise _Problem(f"versions before {'.'.join(map(str, OLDEST))} are not known")
    theirs = settings.path("--llm-history-file")
    if theirs is not None:
        data["history"], data["own"] = theirs, False
        try:
            facts = os.stat(theirs)
            data["from"] = [facts.st_ino, facts.st_size]
        except FileNotFoundError:
            data["from"] = [0, 0]
        return []
    path = os.path.join(_folder(run), "aider-llm-history")
    data["history"], data["own"], data["from"] = path, True, [0, 0]
    return ["--llm-history-file", path]


def _told(run: Run, settings: Settings) -> list[str]:
    """The flags that make aider read the primer, with what the user has it read anyway.

    A ``--read`` on the command line takes the place of those in the settings, so these go along.
    """
    where, theirs = settings.values("--read")
    path = os.path.join(_folder(run), PRIMER)
    with open(path, "w", encoding="utf-8") as file:
        file.write(primer(run.name, run.namespaces))
    again = [] if where == "flag" else theirs
    return [word for name in [*again, path] for word in ("--read", name)]


def _folder(run: Run) -> str:
    if not run.folder:
        raise OSError("this run has no folder")
    make_private_folder(run.folder)
    return run.folder


def version_of(argv: list[str], env: dict[str, str]) -> tuple[int, ...] | None:
    """The version of the aider that ``argv`` starts, without starting it; None: nobody knows."""
    path = _found(argv[0], env)
    if path is None:
        return None
    # A virtual environment's own Python is a link that leads out of it; its scripts may be links
    # that lead into it.
    return pip_version(path, PACKAGE) or pip_version(os.path.realpath(path), PACKAGE)


def _found(program: str, env: dict[str, str]) -> str | None:
    if os.sep in program:
        return os.path.abspath(program)
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return None
