"""How the verbs print: data to stdout, chatter to stderr, times as ISO 8601 in UTC.

What is printed for people obeys no terminal, whichever field it comes from (relay.core.visible);
in JSON such characters are escaped.
"""

from __future__ import annotations

import io
import os
import sys
import time

from relay.core.errors import RelayError, UsageError
from relay.core.visible import broken_in, is_visible, visible, visible_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from relay.protocol.op import Speaker

Json = dict[str, "Any"]

_BODY_SHOWN = 60
#: The colours of tones; what needs somebody is red.
SGR = {
    "bold": "1",
    "faint": "2",
    "name": "36",
    "choice": "33",
    "need": "1;31",
    "good": "32",
    "work": "33",
}


def iso(ms: int | None) -> str | None:
    """A time in milliseconds since the epoch as ISO 8601 in UTC."""
    if ms is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(ms // 1000)) + f"{ms % 1000:03d}Z"


def short_path(path: str) -> str:
    """A path as a person would write it here: from the current folder, or from ~."""
    here, home = os.getcwd() + os.sep, os.path.expanduser("~") + os.sep
    if path.startswith(here):
        return path.removeprefix(here)
    return f"~/{path.removeprefix(home)}" if path.startswith(home) else path


def shaped(row: Mapping[str, Any], names: Iterable[str]) -> Json:
    """These fields of a row, as scripts rely on them: ``created_at`` is its ``created_ms``."""
    return {
        name: iso(row[f"{name[:-3]}_ms"]) if name.endswith("_at") else row[name] for name in names
    }


def clock(ms: int, now_ms: int) -> str:
    """A time for a person, in local time: with its day unless it is of the last 24 hours."""
    recent = 0 <= now_ms - ms < 86_400_000
    return time.strftime("%H:%M:%S" if recent else "%Y-%m-%d %H:%M", time.localtime(ms // 1000))


def prepare() -> None:
    """Let no character that the terminal's encoding lacks end a verb with an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class OutputFailed(RelayError):
    """stdout cannot be written: the disk is full, or the caller has closed it."""

    code = "output"

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"the output cannot be written: {error.strerror or error}",
            hint="send it somewhere else, or make room there",
        )


class writing:
    """Raises OutputFailed for a stdout that cannot be written; a reader that has gone is none."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise OutputFailed(error) from error


def data(text: str) -> None:
    """One line of data on stdout."""
    _write(visible(text))


def lines(text: str) -> None:
    """Data of several lines on stdout."""
    _write(visible_lines(text))


def styled(rows: Iterable[list[tuple[str, Json]]]) -> None:
    """Rows of texts with their styles (relay.screen.styled_rows) on stdout."""
    from relay.screen.styled_rows import sgr

    for row in rows:
        _pieces((text, sgr(style)) for text, style in row)


def coloured() -> bool:
    """Whether what stdout shows to a person may have colours."""
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return terminal and not os.environ.get("NO_COLOR")


def toned(pieces: Iterable[tuple[str, str]]) -> None:
    """One line on stdout of texts with their tones (relay.core.visible), in colour where that may
    be."""
    colours = SGR if coloured() else {}
    _pieces((text, f"\x1b[{colours[how]}m" if how in colours else "") for text, how in pieces)


def _pieces(pieces: Iterable[tuple[str, str]]) -> None:
    """One line of texts, each after the sequence that styles it. A pattern that a style divides is
    broken, too: such a line is shown without styles."""
    pieces = list(pieces)
    plain = visible("".join(text for text, _ in pieces))
    shown = [(visible(text), how) for text, how in pieces]
    if "".join(text for text, _ in shown) == plain:
        plain = "".join(f"{how}{text}\x1b[0m" if how else text for text, how in shown)
    _write(plain)


def _write(text: str) -> None:
    with writing():
        sys.stdout.write(text + "\n")


def headed(line: str) -> None:
    """One line of relay's own help on stdout; titles are bold where that may be."""
    title, colon, rest = line.partition(":")
    if colon and title[:1] != " " and (not rest or title == "usage") and coloured():
        line = f"\x1b[{SGR['bold']}m{title}:\x1b[0m{rest}"
    with writing():
        sys.stdout.write(line + "\n")


def flush() -> None:
    with writing():
        sys.stdout.flush()


def note(text: str) -> None:
    """One line of chatter on stderr, after the data that came before it."""
    try:  # noqa: SIM105 - contextlib imports much of the library
        sys.stdout.flush()
    except OSError:  # nobody reads it: the end of the verb says so
        pass
    sys.stderr.write(visible(text) + "\n")


def note_of_backslash(text: str) -> None:
    """Where the exact ``text`` counts: say if it was shown with a backslash that it has not."""
    if found := broken_in(text):
        note(f"relay added the backslash in {found} so that no wrapped terminal hears it")


def asked(question: str) -> str | None:
    """What the person answers at the terminal, in one line; None at the end of the input."""
    flush()
    sys.stderr.write(f"{visible(question)} ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None


def agreed(question: str, *, yes: bool = False) -> bool:
    """Whether the person agrees, in words at the terminal or by ``yes``. Raises UsageError where
    nobody can be asked."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "this must be confirmed, and there is no terminal to ask on", hint="add --yes"
        )
    return (asked(f"{question} [y/N]") or "").lower() in ("y", "yes")


def as_json(value: object) -> None:
    import json

    _write(_escaped(json.dumps(value, ensure_ascii=only_ascii(), indent=2)))


def as_json_line(value: object) -> None:
    """``value`` as one line of JSON on stdout, at once."""
    import json

    _write(_escaped(json.dumps(value, ensure_ascii=only_ascii())))
    flush()


def _escaped(document: str) -> str:
    """JSON says the same with these escaped, and no terminal obeys it."""
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(c if is_visible(c) or c == "\n" else _json_escape(c) for c in document)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def only_ascii() -> bool:
    """Whether stdout may lack other characters."""
    return (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"


def error(failure: RelayError, *, in_json: bool) -> None:
    """The error, for a person on stderr, or for a program on stdout."""
    if in_json:
        fields: Json = {"code": failure.code, "message": failure.message, "hint": failure.hint}
        fields.update(failure.details)
        as_json({"error": fields})
        return
    note(f"relay: {failure.message}")
    for line in failure.hint.splitlines():
        note(f"  {line}")


def state_text(row: Mapping[str, object]) -> str:
    if row["state"] is None:
        return "-"  # it was sent to nobody
    return f"{row['state']} ({row['reason']})" if row.get("reason") else str(row["state"])


def summary(body: str | None) -> str:
    text = " ".join((body or "").split())
    return text if len(text) <= _BODY_SHOWN else text[: _BODY_SHOWN - 1] + "…"


def speaker() -> Speaker:
    """Inside an agent's tools a request is that agent's. Of a run without its token (some agents
    keep such variables from their tools) the broker knows by the kernel, or refuses it."""
    run, token = os.environ.get("RELAY_RUN"), os.environ.get("RELAY_TOKEN")
    return {"auth": {"run": run, "token": token or ""}} if run else {}
