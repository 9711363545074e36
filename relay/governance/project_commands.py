"""Programs that build, test and keep a project: test runners, package managers, git. Pure.

What such a program runs is the project's own code, so an intent is enough; but it must be given
nothing that makes it run something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from relay.governance.command_arguments import (
    READ,
    RUN,
    CommandKind,
    CommandUse,
    Row,
    UnknownArguments,
    approve,
    hazard,
    may_be_option,
    options,
    path_of,
    rows,
    shown,
    unknown,
)
from relay.governance.file_commands import pairs
from relay.governance.shell_lines import Word


def _runs(letters: str = "", names: str = "") -> Row:
    """It builds or tests, but for these options."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        bad = hazard(words, letters, names)
        return RUN if bad is None else unknown(f"{name} with {shown(bad)} can do anything else")

    return row


def _runs_only(verbs: str, letters: str = "", names: str = "") -> Row:
    """It builds or tests with these words behind its name, and may do anything with others."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        verb = words[0].text if words and words[0].literal else ""
        if verb not in verbs.split():
            return unknown(f"relay does not know what {name} {verb} changes".replace("  ", " "))
        if verb in ("install", "i", "add") and any(not may_be_option(one) for one in words[1:]):
            return unknown(f"{name} {verb} changes what the project depends on")
        return _runs(letters, names)(f"{name} {verb}", words[1:])

    return row


def _make(name: str, words: Sequence[Word]) -> CommandUse:
    if any(re.match(r"(SHELL|MAKE\w*|\.\w+)\s*[:+?]?=|.*[$`]", word.text) for word in words):
        return unknown("make is given what to run")
    return _runs("fE", "file makefile eval")(name, words)


def _formats(checks: str, changes: str = "") -> Row:
    """A formatter: it looks, with one of ``checks``, or changes what it is given by name."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        if any(word.literal and word.text in checks.split() for word in words):
            return _runs("o", "output-file")(name, words)
        given = [word for word in words if word.text not in (*changes.split(), "-q", "--quiet")]
        if not given or any(map(may_be_option, given)):
            return unknown(f"{name} changes files that it finds itself")
        return CommandUse(CommandKind.WRITE, trees=_pathspecs(given))

    return row


def _ruff(name: str, words: Sequence[Word]) -> CommandUse:
    if words and words[0].text == "format":
        return _formats("--check --diff")("ruff format", words[1:])
    if words and words[0].text == "check" and any(word.text == "--fix" for word in words):
        return _formats("", "--fix")("ruff check --fix", words[1:])
    return _runs_only("check rule version", "o", "fix fix-only output-file add-noqa config")(
        name, words
    )


# -- git

#: Subcommands that change no file of the project, whatever is behind them but for the options.
_GIT_READS = (
    "status log diff show blame annotate grep ls-files ls-tree rev-parse rev-list describe cat-file"
    " shortlog merge-base name-rev show-ref for-each-ref count-objects whatchanged check-ignore"
    " check-attr diff-tree diff-index diff-files cherry range-diff version"
)


def _git(name: str, words: Sequence[Word]) -> CommandUse:
    rest = list(words)
    while rest and rest[0].text in ("--no-pager", "--version", "--no-optional-locks"):
        rest.pop(0)
    if len(rest) > 2 and rest[0].text == "-C" and not may_be_option(rest[1]):
        use = _git(name, rest[2:])
        known = use.kind in (CommandKind.READ, CommandKind.APPROVE)
        return use if known else unknown("git -C works elsewhere")
    if not rest:
        return READ
    verb = rest.pop(0)
    if not verb.literal or verb.text.startswith("-"):
        return unknown(f"git {shown(verb)} can run anything")
    return _git_verb(verb.text, rest)


def _git_verb(verb: str, words: list[Word]) -> CommandUse:
    plain = [word.text for word in words if word.literal]
    first = plain[0] if plain else ""
    operands = [text for text in plain if not text.startswith("-")]
    all_plain = len(plain) == len(words)
    if verb in _GIT_READS.split():
        letters = "O" if verb == "grep" else ""
        bad = hazard(
            words, letters, "output ext-diff open-files-in-pager upload-pack exec textconv"
        )
        return READ if bad is None else unknown(f"git {verb} with {shown(bad)} does more than read")
    if verb in ("branch", "tag", "remote", "stash", "worktree", "reflog", "config", "submodule"):
        return _git_list(verb, words, first, operands, all_plain)
    if verb in ("add", "stage", "commit"):
        return RUN
    if verb == "fetch" and all_plain and all(re.fullmatch(r"[\w./-]*", one) for one in plain):
        return _runs("u", "upload-pack")("git fetch", words)
    if verb in ("rm", "mv"):
        flags = "rfnq" if verb == "rm" else "fknv"
        given, named = options(words, flags, "", "cached force dry-run quiet")
        if verb == "mv":
            return CommandUse(CommandKind.WRITE, moves=pairs(given, named))
        return CommandUse(CommandKind.WRITE, deletes=_pathspecs(named))
    if verb in ("checkout", "switch", "restore"):
        return _git_checkout(verb, words)
    if verb in ("push", "clean", "filter-branch", "update-ref", "gc", "prune", "replace"):
        return approve(f"git {verb} cannot be taken back")
    if verb == "reset":
        soft = all_plain and not any(text.startswith("-") and text != "-q" for text in plain)
        if "--soft" in plain or "--mixed" in plain or (soft and operands[:1] in ([], ["HEAD"])):
            return RUN
        return approve("git reset may throw changes away")
    return unknown(f"relay does not know what git {verb} changes")


def _git_list(
    verb: str, words: list[Word], first: str, operands: list[str], all_plain: bool
) -> CommandUse:
    """Subcommands that list or change, as the words behind them say."""
    reads = {
        "branch": {"", "-a", "-v", "-vv", "-r", "--list", "--show-current", "--all", "--contains"},
        "tag": {"", "-l", "--list"},
        "remote": {"", "-v", "show", "get-url"},
        "stash": {"list", "show"},
        "worktree": {"list"},
        "reflog": {"", "show"},
        "config": {"--get", "--get-all", "-l", "--list", "list", "get"},
        "submodule": {"status"},
    }
    if first in reads[verb] and (all_plain or first):
        bad = hazard(
            words[1:], "dDmMcCfeuo", "delete move copy force edit set unset output replace"
        )
        return READ if bad is None else unknown(f"git {verb} with {shown(bad)} changes something")
    if (
        verb in ("branch", "tag")
        and all_plain
        and not any(_GIT_LOSES.match(one.text) for one in words)
    ):
        return RUN
    if verb in ("branch", "tag", "config", "reflog"):
        return approve(f"git {verb} {first} changes the repository itself".replace("  ", " "))
    return unknown(f"relay does not know what git {verb} {first} changes".replace("  ", " "))


_GIT_LOSES = re.compile(r"-[dDmMcCfeu]|--(d|m|c|f|e|s|u)")


def _git_checkout(verb: str, words: list[Word]) -> CommandUse:
    """A new branch changes no file; files that are named are changed; everything else may be."""
    if verb != "restore" and len(words) == 2 and words[0].text in ("-b", "-c", "--create"):
        path_of(words[1])
        return RUN
    texts = [word.text for word in words]
    if verb == "checkout" and "--" in texts and texts.index("--") <= 1:
        named = words[texts.index("--") + 1 :]
    elif verb == "restore":
        given, named = options(words, "SWq", "s", "staged worktree quiet source=")
        if given.keys() & {"S", "staged"} and not given.keys() & {"W", "worktree"}:
            return RUN
    else:
        return unknown(f"git {verb} may change any file")
    if not (paths := _pathspecs(named)):
        return unknown(f"git {verb} may change any file")
    return CommandUse(CommandKind.WRITE, trees=paths)


def _pathspecs(words: Sequence[Word]) -> tuple[str, ...]:
    """Files that are named to git, which expands globs itself."""
    paths = tuple(map(path_of, words))
    for one in paths:
        if re.search(r"^:|[*?\[]", one):
            raise UnknownArguments(f"git looks for files that match {one!r}")
    return paths


#: Programs that agents also run from a project's own folders of programs.
BUILDS: dict[str, Row] = {
    **rows("pytest py.test", _runs("", "basetemp override-ini junit-xml junitxml log-file")),
    **rows("mypy pyright flake8 pylint tox nox tsc jest vitest mocha rspec phpunit ctest", _runs()),
    **rows("gradle gradlew mvn mvnw", _runs("I", "init-script")),
    **rows("shellcheck yamllint unittest", _runs()),
    "eslint": _runs("o", "output-file fix fix-dry-run init"),
    **rows("black isort", _formats("--check --check-only --diff")),
    "prettier": _formats("--check -c --list-different -l", "--write -w"),
    "ruff": _ruff,
}
#: Programs that build, test and keep a project, and those that are a person's to run.
PROJECT_PROGRAMS: dict[str, Row] = {
    **BUILDS,
    "git": _git,
    **rows("make gmake", _make),
    "ninja": _runs("fCt"),
    "cargo": _runs_only(
        "build b test t check c clippy doc bench tree metadata nextest",
        "CZ",
        "config fix target-dir",
    ),
    "go": _runs_only(
        "build test vet list version", "oC", "exec toolexec overlay o modfile vettool"
    ),
    **rows(
        "npm yarn pnpm bun",
        _runs_only(
            "test t run run-script ci install i ls list outdated", "gC", "prefix script-shell"
        ),
    ),
    "cmake": _runs_only("--build"),
    "bazel": _runs_only("build test query"),
    "dotnet": _runs_only("build test"),
    "swift": _runs_only("build test"),
    "pip": _runs_only("list show freeze check"),
    "golangci-lint": _runs_only("run", "", "fix"),
    "gofmt": _formats("-l -d", "-w"),
    "rustfmt": _formats("--check"),
    **rows("sudo doas su pkexec run0", lambda name, _: approve(f"{name} acts as somebody else")),
    **rows(
        "shutdown reboot halt poweroff mkfs fdisk crontab at systemctl launchctl",
        lambda name, _: approve(f"{name} changes the machine"),
    ),
}
