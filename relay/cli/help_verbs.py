"""The verbs ``help`` and ``completions``, and the manual: what can be typed, said to a person, to a
shell and to ``man``. All of it is made from the declarations of the verbs themselves.

A shell asks for names of agents, automations and intents as they are needed; that starts nothing.
The manual's pages and docs/reference.md are for whoever packages relay, and for the documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from relay import __version__
from relay.broker.client import connect
from relay.cli import door, output
from relay.cli.parser import Parser
from relay.cli.table import prose
from relay.cli.verbs import ALIASES, MEANINGS_OF_STATUS, every, group_of, help_text, is_verb, verb
from relay.core.errors import RelayError, UsageError, nearest
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENTS

SHELLS = ("bash", "zsh", "fish")
#: Of the words that arguments have as ``offers``, "verbs" and "shells" are relay's own and
#: "commands" the shell's; for these and those of features a script asks ``relay completions``.
_AGENTS = "names"
_HEAD = """\
# Reference: the commands

Every command of `relay` with what it takes. `relay COMMAND --help` prints the same in a terminal,
and `relay help --man FOLDER` writes it as manual pages. This page is made by `relay help --all`.
"""


def add(verbs: Parser) -> None:
    said = verb(verbs, "help", "relay help\n  relay help send\n  relay help hooks list")
    said.add_argument(
        "words", nargs="*", metavar="COMMAND", offers="verbs", help="the command to explain"
    )
    said.add_argument("--all", action="store_true", help="the whole reference, as Markdown")
    said.add_argument("--man", metavar="FOLDER", help="write manual pages into FOLDER/man1")
    said.set_defaults(run=help_verb)
    script = verb(
        verbs,
        "completions",
        'eval "$(relay completions bash)"      (in ~/.bashrc)\n'
        '  eval "$(relay completions zsh)"       (in ~/.zshrc, after compinit)\n'
        "  relay completions fish | source       (in config.fish)",
    )
    script.add_argument(
        "shell",
        metavar="bash|zsh|fish",
        offers="shells",
        help="your shell",
    )
    script.set_defaults(run=completions_verb)


def help_verb(options: Any) -> int:
    """``relay help``: of relay, of a verb, or of a verb's verb."""
    if options.all or options.man:
        if options.man:
            written = write_pages(options.man)
            prose(f"{len(written)} pages written; read one with: man -l {written[0]}")
        else:
            for line in reference().splitlines():
                output.data(line)
        return 0
    if not options.words:
        prose(help_text(), titles=True)
        return 0
    name = ALIASES.get(options.words[0], options.words[0])
    if not is_verb(name):
        from relay.cli.command_line import unknown_verb

        raise unknown_verb(name)
    parser = group_of(name).verbs[name]
    for word in options.words[1:]:
        parser = parser.verb(word)
    return parser.print_help()


def completions_verb(options: Any) -> int:
    """``relay completions``: the script on stdout."""
    if options.shell not in SHELLS:
        tables = door.tables("NAMES")
        if options.shell not in (_AGENTS, *tables):
            close = nearest(options.shell, SHELLS)
            said = f"relay has no completions for {options.shell!r}"
            hint = f"did you mean {close}?" if close else f"it has them for {', '.join(SHELLS)}"
            raise UsageError(said, hint=hint)
        try:
            names = list(tables[options.shell]()) if options.shell in tables else _agents()
        except (RelayError, OSError):
            names = []  # at a tab nobody wants to read why
        for name in names:
            output.data(name)
        return 0
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    for line in makers[options.shell]():
        output.data(line)
    return 0


def _agents() -> list[str]:
    with connect(Home.from_env(), start=False) as client:
        return [one["name"] for one in client.request(AGENTS)["agents"]]


class _Place:
    """What can follow the words ``path``: words, options, and names (``names``: of what)."""

    def __init__(self, path: tuple[str, ...], parser: Parser) -> None:
        self.path = path
        self.words = list(parser.verbs)
        self.options: list[tuple[str, str, bool]] = []  # name, help, takes a value
        self.names = ""
        for one in parser.arguments:
            for name in one.names:
                self.options.append((name, str(one.how.get("help") or ""), not one.flag))
            if not one.names:
                offers = one.how.get("offers", "")
                own = list(every()) if offers == "verbs" else SHELLS if offers == "shells" else ()
                self.words += own or one.how.get("choices") or ()
                self.names = self.names or ("" if own else offers)

    @property
    def all(self) -> list[str]:
        return [*self.words, *(name for name, _, _ in self.options), "--help"]


def _places() -> Iterator[_Place]:
    for name in every():
        parser = group_of(name).verbs[name]
        yield _Place((name,), parser)
        for part, inner in parser.verbs.items():
            yield _Place((name, part), inner)


def _cases(indent: str) -> Iterator[str]:
    """Lines of a ``case`` of bash and zsh over "VERB PART", which set ``found`` and ``named``."""
    for place in sorted(_places(), key=lambda one: -len(one.path)):
        # With a part first: ``hooks list`` is among what ``hooks`` would match.
        pattern = f"{' '.join(place.path)}" if len(place.path) > 1 else f"{place.path[0]} "
        named = f" named={place.names}" if place.names else ""
        yield f"{indent}{_quoted(pattern)}*) found={_quoted(' '.join(place.all))}{named} ;;"


def _bash() -> Iterator[str]:
    yield "# relay: completions for bash"
    yield "_relay() {"
    yield "  local current=${COMP_WORDS[COMP_CWORD]} found= named="
    yield "  if [ $COMP_CWORD -le 1 ]; then"
    yield f"    found={_quoted(' '.join([*every(), '--help', '--version']))}"
    yield "  else"
    yield '    local path="${COMP_WORDS[1]} "'
    yield '    [ $COMP_CWORD -gt 2 ] && path="${COMP_WORDS[1]} ${COMP_WORDS[2]}"'
    yield "    case $path in"
    yield from _cases("      ")
    yield "    esac"
    yield "  fi"
    yield "  if [[ $named = commands && $current != -* ]]; then"
    yield '    COMPREPLY=($(compgen -c -- "$current")); return'
    yield "  elif [[ -n $named && $named != commands ]]; then"
    yield '    found="$found $(relay completions $named 2>/dev/null)"'
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$found" -- "$current"))'
    yield "}"
    yield "complete -o default -F _relay relay"


def _zsh() -> Iterator[str]:
    yield "#compdef relay"
    yield "_relay() {"
    yield "  local found= named= path_="
    yield "  if (( CURRENT <= 2 )); then"
    yield "    local -a verbs"
    yield "    verbs=("
    for name, text in every().items():
        yield f"      {_quoted(f'{name}:{text}')}"
    yield "    )"
    yield "    _describe verb verbs"
    yield "    return"
    yield "  fi"
    yield '  path_="${words[2]} "'
    yield '  (( CURRENT > 3 )) && path_="${words[2]} ${words[3]}"'
    yield "  case $path_ in"
    yield from _cases("    ")
    yield "  esac"
    yield "  if [[ $named == commands && ${words[CURRENT]} != -* ]]; then"
    yield "    _command_names; return"
    yield "  elif [[ -n $named && $named != commands ]]; then"
    yield '    found="$found $(relay completions $named 2>/dev/null)"'
    yield "  fi"
    yield "  compadd -- ${=found}"
    yield "  _files"
    yield "}"
    yield 'if [[ $funcstack[1] == _relay ]]; then _relay "$@"; else compdef _relay relay; fi'


def _fish() -> Iterator[str]:
    yield "# relay: completions for fish"
    first = "'test (count (commandline -opc)) -eq 1'"
    for name, text in every().items():
        yield f"complete -c relay -f -n {first} -a {name} -d {_fish_quoted(text)}"
    for place in _places():
        path = " ".join(place.path)
        # The words before the one that is being typed begin with the path.
        at = f"\"string match -q -- 'relay {path} *' (commandline -opc | string join ' ')' '\""
        if place.words:
            yield f"complete -c relay -f -n {at} -a {_fish_quoted(' '.join(place.words))}"
        if place.names:
            names = f"relay completions {place.names} 2>/dev/null"
            names = "__fish_complete_command" if place.names == "commands" else names
            yield f"complete -c relay -f -n {at} -a '({names})'"
        for option, text, valued in place.options:
            form = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            more = " -r" if valued else ""
            yield f"complete -c relay -n {at} {form}{more} -d {_fish_quoted(text)}"


def _quoted(text: str) -> str:
    """``text`` for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# -- the manual


def parsers() -> Iterator[Parser]:
    """Each verb's parser, and after it those of its own verbs."""
    for name in every():
        parser = group_of(name).verbs[name]
        yield parser
        yield from parser.verbs.values()


# -- docs/reference.md


def reference() -> str:
    parts = [_HEAD, "\n## Exit statuses\n\n| status | meaning |\n|---|---|\n"]
    parts += [f"| {status} | {_cell(text)} |\n" for status, text in MEANINGS_OF_STATUS.items()]
    for parser in parsers():
        level = "##" if parser.prog.count(" ") == 1 else "###"
        usage = " ".join(parser.usage())
        parts.append(f"\n{level} {parser.prog}\n\n{parser.description}\n\n```\n{usage}\n")
        parts += [f"\n{line}\n" for line in ("\n".join(parser.examples),) if line]
        parts.append("```\n")
        rows = [f"| `{_cell(form)}` | {_cell(text)} |\n" for form, text in parser.taken()]
        if rows:
            parts += ["\n| | |\n|---|---|\n", *rows]
    return "".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- manual pages


def write_pages(folder: str) -> list[str]:
    """Write ``relay.1`` and a page for each verb; their paths. Raises RelayError."""
    place = os.path.join(folder, "man1")
    pages = {"relay": _front()}
    for parser in parsers():
        name = parser.prog.replace(" ", "-")
        if parser.prog.count(" ") == 1:
            pages[name] = _page(parser)
    try:
        os.makedirs(place, exist_ok=True)
        for name, text in pages.items():
            with open(os.path.join(place, f"{name}.1"), "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise RelayError(
            f"cannot write {error.filename}: {error.strerror}", hint="name another folder"
        ) from error
    return [os.path.join(place, f"{name}.1") for name in pages]


def _front() -> str:
    lines = [
        _title("relay", "wrap command-line agents so that they can talk to each other"),
        ".SH SYNOPSIS\n.B relay\nVERB \\&...\n.SH VERBS\n",
    ]
    for name, text in every().items():
        lines.append(f".TP\n.BR relay-{_roff(name)} (1)\n{_roff(text)}\n")
    return "".join(lines) + _statuses()


def _page(parser: Parser) -> str:
    name = parser.prog.replace(" ", "-")
    parts = [_title(name, every()[parser.prog.split()[1]]), ".SH SYNOPSIS\n"]
    parts += _text([" ".join(one.usage()) for one in parser.verbs.values() or [parser]])
    parts.append(".SH DESCRIPTION\n")
    parts.append(_roff(parser.description).replace("\n\n", "\n.PP\n") + "\n")
    examples = list(parser.examples)
    for one in (parser, *parser.verbs.values()):
        taken = one.taken()
        if one is not parser:
            parts.append(f".SH {_roff(one.prog.upper())}\n{_roff(one.description)}\n")
            examples += one.examples
        elif taken:
            parts.append(".SH OPTIONS\n")
        parts += [f".TP\n.B {_roff(form)}\n{_roff(text)}\n" for form, text in taken]
    if examples:
        parts += [".SH EXAMPLES\n", *_text(examples)]
    statuses = "" if parser.stops else _statuses()  # its description names its own
    return "".join(parts) + statuses + ".SH SEE ALSO\n.BR relay (1)\n"


def _title(name: str, text: str) -> str:
    head = f'.TH {_roff(name.upper())} 1 "" "relay {__version__}" "relay"\n'
    return f"{head}.SH NAME\n{_roff(name)} \\- {_roff(text)}\n"


def _statuses() -> str:
    rows = [f".TP\n.B {status}\n{_roff(text)}\n" for status, text in MEANINGS_OF_STATUS.items()]
    return ".SH EXIT STATUS\n" + "".join(rows)


def _text(lines: list[str]) -> list[str]:
    return [".nf\n", *(f"{_roff(line)}\n" for line in lines), ".fi\n"]


def _roff(text: str) -> str:
    """``text`` without anything that roff would take for a request or an escape."""
    shown = text.replace("\\", "\\e").replace("-", "\\-")
    shown = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in shown)
    return re.sub(r"(?m)^(?=[.'])", r"\\&", shown)
