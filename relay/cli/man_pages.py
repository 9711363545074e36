"""The manual, made from the declarations of the verbs: pages for ``man``, and docs/reference.md.

They are for whoever packages relay, and for the documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from relay import __version__
from relay.cli.parser import Parser
from relay.cli.verbs import MEANINGS_OF_STATUS, every, group_of
from relay.core.errors import RelayError

_HEAD = """\
# Reference: the verbs

Every verb of `relay` with what it takes. `relay help VERB` prints the same in a terminal, and
`relay help --man FOLDER` writes it as manual pages. This page is made from the verbs themselves:
`relay help --all` prints it.
"""


def parsers() -> Iterator[Parser]:
    """Each verb's parser, and after it those of its own verbs."""
    for name in every():
        parser = group_of(name).verbs[name]
        yield parser
        yield from parser.verbs.values()


# -- docs/reference.md


def reference() -> str:
    """The whole reference, in Markdown."""
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
