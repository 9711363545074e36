"""What git does, and programs that build and test a project. Pure.

What such a program runs is the project's own code, so an intent is enough; but it must be given
nothing that makes it run something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from relay.governance.file_commands import (
    READ,
    CommandKind,
    CommandUse,
    Row,
    UnknownArguments,
    approve,
    hazard,
    options,
    pairs,
    paths_of,
    rows,
    unknown,
)
from relay.governance.shell_lines import Word

RUN = CommandUse(CommandKind.RUN)
#: A path that may lead out of the project, as a word or in an option.
_ELSEWHERE = re.compile(r"(?:^-\w|^|[=:,])((?:[/~]|\.\./|\.\.$|[^=:,]*/\.\.(?:/|$)).*)")
#: git's subcommands that change no file of the project, but for the options that are named below.
_GIT_READS = (
    "status log diff show blame grep ls-files ls-tree rev-parse rev-list describe cat-file shortlog"
    " merge-base show-ref for-each-ref whatchanged check-ignore diff-tree --version"
)
#: Those that only list with these words behind them, and none others.
_GIT_LISTS = {
    "branch": "-a -v -vv -r --list --show-current --all",
    "tag": "-l --list",
    "remote": "-v show get-url origin",
    "stash": "list show",
    "worktree": "list",
    "config": "-l --list",
}


def _git(name: str, words: Sequence[Word]) -> CommandUse:
    rest = [word for word in words if word.text != "--no-pager"]
    if len(rest) > 2 and rest[0].text == "-C" and rest[1].literal:
        use = _git(name, rest[2:])
        # A repository says what git runs: another one than that of the project may say anything.
        there = CommandUse(CommandKind.RUN, folders=paths_of(rest[1:2]))
        return there if use is READ else replace(use, kind=CommandKind.UNKNOWN, why="-C")
    verb = rest[0].text if rest and rest[0].literal else "-"
    words, texts = rest[1:], [word.text for word in rest[1:]]
    if verb in _GIT_READS.split():
        letters = "O" if verb == "grep" else ""
        bad = hazard(words, letters, "output ext-diff open-files-in-pager textconv filters")
        return unknown(f"git {verb} with {bad} does more than read") if bad else READ
    if verb in _GIT_LISTS:
        alone = verb not in ("stash", "worktree", "config") or bool(texts)
        if alone and set(texts) <= set(_GIT_LISTS[verb].split()):
            return READ
        return approve(f"git {verb} may change the repository itself")
    if verb in ("add", "commit"):
        return RUN
    if verb in ("checkout", "switch") and texts[:1] in (["-b"], ["-c"]) and len(texts) == 2:
        return RUN if words[1].literal else unknown("the branch is only known when it is run")
    if verb == "mv":
        return CommandUse(CommandKind.WRITE, moves=pairs(options(words, "fkv")[1]))
    if verb == "rm":
        return CommandUse(CommandKind.WRITE, deletes=_named(options(words, "rfq")[1]))
    if verb == "restore" and texts[:1] == ["--staged"]:
        options(words[1:], "q")  # no --worktree
        return RUN
    if verb == "restore" or (verb == "checkout" and texts[:1] == ["--"]):
        return CommandUse(CommandKind.WRITE, trees=_named(options(words, "q")[1]))
    if verb in ("push", "clean", "reset", "filter-branch", "update-ref", "gc", "reflog", "rebase"):
        return approve(f"git {verb} may change what is not easily brought back")
    return unknown(f"relay does not know what git {verb} changes")


def _named(words: Sequence[Word]) -> tuple[str, ...]:
    """Files that are named to a program that looks for globs itself."""
    paths = paths_of(words)
    if not paths or any(re.search(r"^:|[*?\[]", one) for one in paths):
        raise UnknownArguments("it looks for the files itself")
    return paths


def _runs(letters: str = "", names: str = "") -> Row:
    """It builds or tests, but for these options."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        bad = hazard(words, letters, names)
        if bad or any(word.dynamic for word in words):
            return unknown(f"{name} with {bad or 'these words'} can do anything else")
        elsewhere = map(_ELSEWHERE.search, (word.text for word in words))
        return CommandUse(CommandKind.RUN, folders=tuple(one[1] for one in elsewhere if one))

    return row


def _runs_only(verbs: str, letters: str = "", names: str = "") -> Row:
    """It builds or tests with these words behind its name, and may do anything with others."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        verb = words[0].text if words and words[0].literal else ""
        more = verb in ("install", "i") and len(words) > 1
        if verb not in verbs.split() or more:
            return unknown(f"relay does not know what {name} {verb} changes".replace("  ", " "))
        return _runs(letters, names)(f"{name} {verb}", words[1:])

    return row


def _make(name: str, words: Sequence[Word]) -> CommandUse:
    if any(re.match(r"SHELL|MAKE|\.|.*[$`]", word.text) for word in words):
        return unknown("make is given what to run")
    return _runs("fEIC", "file makefile eval include-dir directory")(name, words)


#: Programs that agents also run from a project's own folders of programs.
BUILDS: dict[str, Row] = {
    "pytest": _runs("", "basetemp override-ini junit-xml junitxml log-file"),
    **rows("mypy pyright flake8 pylint tox nox tsc jest vitest mocha unittest", _runs()),
    **rows("gradlew mvnw", _runs("I", "init-script")),
    "eslint": _runs("o", "output-file fix fix-dry-run init"),
    "ruff": _runs_only("check", "o", "fix fix-only output-file add-noqa config"),
}
PROJECT_PROGRAMS: dict[str, Row] = {
    **BUILDS,
    "git": _git,
    "make": _make,
    "cargo": _runs_only("build test check clippy bench", "CZ", "config fix target-dir"),
    "go": _runs_only("build test vet", "oC", "exec toolexec overlay modfile vettool"),
    **rows(
        "npm yarn pnpm bun",
        _runs_only("test t run ci install i ls", "gC", "prefix script-shell"),
    ),
    **rows("gradle mvn", _runs("I", "init-script")),
    "cmake": _runs_only("--build"),
    **rows("sudo doas su", lambda name, _: approve(f"{name} acts as somebody else")),
    **rows(
        "shutdown reboot crontab systemctl launchctl",
        lambda name, _: approve(f"{name} changes the machine"),
    ),
}
