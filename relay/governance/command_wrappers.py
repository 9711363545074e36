"""Programs that run others: shells, ``env``, ``find``, ``xargs`` and their like. Pure.

What they run counts. A shell or an interpreter that is given no text which can be read is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from relay.agents.tool_uses import patch_use
from relay.governance.command_arguments import (
    READ,
    RUN,
    CommandKind,
    CommandUse,
    UnknownArguments,
    approve,
    hazard,
    may_be_option,
    shown,
    unknown,
)
from relay.governance.project_commands import BUILDS
from relay.governance.shell_lines import ANY, Simple, Word

PYTHON = re.compile(r"python(?:\d(?:\.\d+)?)?")
_SHELLS = {"sh", "bash", "zsh", "dash", "ksh"}
_ACTIVATE = re.compile(r"(?:\./)?(?:\.venv|venv|env)/bin/activate")
#: Parts of names of variables by which programs and shells are told what to run or to read.
_HARMFUL = (
    r"\w*(?:PATH|PAGER|EDIT|VISUAL|HOME|SHELL|ENV|OPT|CMD|COMMAND|TMP|TEMP|IFS|LD_|DYLD|GIT|BASH|ZSH"
    r"|ZDOT|LESS|CONF|PS\d|PROMPT|GLOB|HIST|MAIL|PYTHON|NODE|NPM|RUST|CARGO|GO|JAVA|PERL|RUBY|LIB"
    r"|LOC|NLS|MAGIC|STTY|MALLOC|RELAY|WRAP|CC|CXX|FLAGS|MAKE|SSH|SUDO|ASK|PROXY|ARGV|FPATH|PWD"
    r"|PLUGIN|INIT|START|HOOK|EXEC|BIN|TOOL|LOAD|AGENT|BROWSER|TERMINFO|PRE)\w*"
)
#: Variables that change nothing but what they say; small ones are the line's own.
HARMLESS_NAMES = re.compile(
    rf"(?!{_HARMFUL}$)[A-Z][A-Z0-9_]*|(?!\w*path$)[a-z_][a-z0-9_]*|LC_\w+|NODE_ENV|PYTHONPATH"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|RUST_BACKTRACE|RUST_LOG|CGO_ENABLED"
)
#: relay's verbs that an agent may use; the broker decides which of them it refuses.
_RELAY = (
    "send inbox sent cancel show history status agents intent approve govern trust allow refuse"
    " held doctor help --help --version"
)


class Runner(Protocol):
    """What says of other commands in the same line what they do."""

    def words(self, words: Sequence[Word], simple: Simple) -> CommandUse:
        """What the program that ``words`` begin with does."""
        ...

    def text(self, text: str) -> CommandUse:
        """What a shell does that is given ``text``."""
        ...


Wrapper = Callable[[Runner, Sequence[Word], Simple, Simple | None], CommandUse]


def _behind(flags: str, valued: str = "", skip: int = 0) -> Wrapper:
    """It runs what stands behind its options and ``skip`` more words."""

    def wrapper(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
        rest = list(words)
        while rest and may_be_option(rest[0]):
            option = rest.pop(0)
            if not option.literal:
                raise UnknownArguments(f"{shown(option)} is only known when it is run")
            if option.text == "--":
                break
            if option.text in valued.split() and rest:
                rest.pop(0)
            elif not re.fullmatch(flags or "(?!)", option.text):
                raise UnknownArguments(f"{shown(option)} is not known here")
        return run.words(rest[skip:], simple) if rest[skip:] else READ

    return wrapper


def _env(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    rest = list(words)
    while rest and (match := re.match(r"(\w+)=|-i$|-$", rest[0].text)):
        if match[1] and not HARMLESS_NAMES.fullmatch(match[1]):
            return unknown(f"{match[1]} changes what programs do")
        rest.pop(0)
    if rest and may_be_option(rest[0]):
        raise UnknownArguments(f"{shown(rest[0])} is not known here")
    return run.words(rest, simple) if rest else READ


def _export(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    for word in words:
        name = word.text.partition("=")[0]
        if not HARMLESS_NAMES.fullmatch(name):
            return unknown(f"{shown(word)} changes what programs do")
    return READ


def _command(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    if words and words[0].literal and words[0].text in ("-v", "-V"):
        return READ
    return _behind("")(run, words, simple, None)


def _nohup(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    use = _behind("")(run, words, simple, None)
    return replace(use, writes=(*use.writes, "nohup.out"))


def _shell(run: Runner, words: Sequence[Word], simple: Simple, before: Simple | None) -> CommandUse:
    """A shell: with ``-c`` and its line; everything else could run anything."""
    if len(words) >= 2 and words[0].literal and re.fullmatch(r"-[lexu]*c", words[0].text):
        if not words[1].literal:
            return unknown("the shell's line is only known when it is run")
        return run.text(words[1].text)
    if [word.text for word in words] == ["--version"]:
        return READ
    fetched = before is not None and before.words[:1] and before.words[0].text in ("curl", "wget")
    if fetched and simple.after == "|":
        return approve("it runs what comes from the network")
    return unknown("a shell runs what nobody has read")


def _project_run(
    run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None
) -> CommandUse:
    """It runs a program of the project's, known only if it builds or tests."""
    rest = [word for word in words if word.text not in ("--no-install", "--yes", "-y", "--")]
    texts = [word.text for word in rest[:2]]
    if not rest or not rest[0].literal:
        raise UnknownArguments("which program runs is only known when it is run")
    if texts[0] in BUILDS or (PYTHON.fullmatch(texts[0]) and texts[1:] == ["-m"]):
        return run.words(rest, simple)
    return unknown(f"relay does not know what {shown(rest[0])} changes")


def _run_verb(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    verb = words[0].text if words and words[0].literal else ""
    if verb in ("run", "exec"):
        return _project_run(run, words[1:], simple, None)
    if verb in ("sync", "lock", "check", "install", "tree", "show", "list") and len(words) == 1:
        return RUN
    return unknown("relay does not know what this changes")


def _eval(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    if not all(word.literal for word in words):
        return unknown("what eval runs is only known when it is run")
    return run.text(" ".join(word.text for word in words))


def _source(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    if len(words) == 1 and words[0].literal and _ACTIVATE.fullmatch(words[0].text):
        return RUN
    return unknown("it runs a file that nobody has read")


def _python(
    run: Runner, words: Sequence[Word], simple: Simple, before: Simple | None
) -> CommandUse:
    texts = [word.text for word in words]
    if texts[:1] == ["-m"] and len(words) > 1 and words[1].literal and words[1].text in BUILDS:
        return run.words(words[1:], simple)
    if texts[:2] == ["-m", "relay"]:
        return _relay(run, words[2:], simple, before)
    if texts in (["--version"], ["-V"]):
        return READ
    if before is not None and before.words[:1] and before.words[0].text in ("curl", "wget"):
        return approve("it runs what comes from the network")
    return unknown("python runs code that nobody has read")


def _xargs(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    """It runs a program with words that only its input has."""
    more = (*words, Word(ANY, dynamic=True))
    return _behind(r"-[0rt]+|-[nPLI]\S+", "-n -P -L -I -d")(run, more, simple, None)


def _find(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    kept: list[Word] = []
    use = READ
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.literal and word.text in ("-exec", "-execdir"):
            inner: list[Word] = []
            while rest and rest[0].text not in (";", "+"):
                one = rest.pop(0)
                inner.append(replace(one, dynamic=True) if "{}" in one.text else one)
            rest = rest[1:]
            ran = run.words(inner, simple)
            use = ran if ran.kind is not CommandKind.READ else use
        else:
            kept.append(word)
    if bad := hazard(
        kept, "", "delete exec execdir ok okdir fprint fprint0 fprintf fls files0-from"
    ):
        return unknown(f"find with {shown(bad)} changes files that nobody can name")
    return (
        use if use is READ or use.kind is not CommandKind.WRITE else unknown("find runs a program")
    )


def _patch(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    """Codex's patches, which it takes from a shell's line, too."""
    text = words[0].text if len(words) == 1 and words[0].literal else simple.input
    if text is None or ANY in text or len(words) > 1:
        raise UnknownArguments("the patch is only known when it is run")
    use = patch_use(text)
    kind = CommandKind.UNKNOWN if use.blind else CommandKind.WRITE
    return CommandUse(kind, (), use.writes, use.deletes, use.moves, why=use.blind)


def _relay(run: Runner, words: Sequence[Word], simple: Simple, _: Simple | None) -> CommandUse:
    texts = [word.text for word in words]
    if not words or not words[0].literal or texts[0] not in _RELAY.split():
        return unknown(f"relay {texts[0] if texts else ''} is a person's".replace("  ", " "))
    if texts[0] == "intent" and hazard(words, "", "html output"):
        return unknown("relay intent log --html writes a file")
    return READ


#: Programs that run others, or other text.
WRAPPERS: dict[str, Wrapper] = {
    "env": _env,
    **dict.fromkeys(("export", "readonly", "local"), _export),
    "command": _command,
    **dict.fromkeys(("builtin", "exec", "setsid", "noglob", "nocorrect"), _behind("")),
    "nice": _behind(r"-n?-?\d+", "-n"),
    "stdbuf": _behind(r"-[ioe][L\d]+"),
    "timeout": _behind(r"--foreground|--preserve-status|-[ks]\w+|--signal=\w+", "-k -s", skip=1),
    **dict.fromkeys(("npx", "uvx"), _project_run),
    **dict.fromkeys(("uv", "poetry", "pipenv", "hatch", "pdm", "bundle"), _run_verb),
    "nohup": _nohup,
    **dict.fromkeys(_SHELLS, _shell),
    "eval": _eval,
    **dict.fromkeys(("source", "."), _source),
    "python": _python,
    "xargs": _xargs,
    "find": _find,
    **dict.fromkeys(("apply_patch", "applypatch"), _patch),
    "relay": _relay,
}
