"""The grammar: from the lines that an agent says to the messages that they hold.

``docs/patterns.md`` describes it for users. The scanner is a state machine over complete lines; it
is in one of four states: nothing open, in a code fence, in a message (one paragraph), in a block
(``<<<`` to ``>>>``). Everything that changes the state is in this file; what a single line is
stands in ``line_parser``. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from relay.core.message import BODY_MAX
from relay.directive.line_parser import Fence, Head, LineParser

#: How ``\>>>`` stands on a screen that shows it as it was said, or in HTML's spelling.
DRAWN_ENDS = ("\\>>>", "&gt;>>", "&gt;&gt;&gt;", "\\&gt;>>", "\\&gt;&gt;&gt;")
#: Of unclosed blocks right behind one another this many are looked into for what they hide.
UNCLOSED_MAX = 20


@dataclass(frozen=True, slots=True)
class Match:
    """A message. ``raw`` is its first line as said; ``block`` whether it stood in ``<<<``."""

    namespace: str
    target: str
    body: str
    attributes: dict[str, str]
    block: bool
    raw: str


@dataclass(frozen=True, slots=True)
class Unclosed:
    """A block that was still open when its stream ended: nothing of it is sent.

    It ends at the next head that stands in it; what begins there is found for itself.
    """

    namespace: str
    target: str


@dataclass(frozen=True, slots=True)
class TooLong:
    """A message of ``size`` bytes of UTF-8, more than the scanner takes: it is not sent."""

    namespace: str
    target: str
    size: int


@dataclass(frozen=True, slots=True)
class Continued:
    """A message that was complete at a pause went on after it with ``text``, which is not sent.

    ``again``: its first line was drawn once more, with more behind it: that is found for itself.
    """

    namespace: str
    target: str
    text: str
    again: bool = False


Found = Match | Unclosed | TooLong | Continued


@dataclass(slots=True)
class _Open:
    """A message that is being collected. Beyond the limit only its size is kept."""

    namespace: str
    target: str
    attributes: dict[str, str]
    raw: str
    block: bool
    indent: int
    marker: int | None
    glyph: bool
    lines: list[str] = field(default_factory=list)
    size: int = 0
    too_long: bool = False
    headed: bool = False  # the first of the lines stood behind the head
    depth: int = 0  # nested blocks inside this one
    next_head: int | None = None  # which of the lines in a block is the first head

    def add(self, line: str, limit: int) -> None:
        first = not self.lines and not self.size
        self.size += _utf8_length(line) + (0 if first else 1)
        if self.size > limit:
            self.too_long = True
            self.lines.clear()
        if not self.too_long:
            self.lines.append(line)

    def body(self) -> str:
        """The lines as they are sent: a message loses the indentation that its head accounts for.

        All further lines lose the same, so that they keep their form.
        """
        if self.block or self.indent == 0:
            return "\n".join(self.lines)
        head, more = self.lines[: self.headed], self.lines[self.headed :]
        common = min((len(line) - len(line.lstrip(" ")) for line in more), default=0)
        cut = min(common, self.indent)
        return "\n".join([*head, *(line[cut:] for line in more)])


class Scanner:
    """Finds the messages in the lines of one stream. It never raises, whatever the text is.

    ``namespaces`` are the registered ones; bodies of more than ``body_max`` bytes of UTF-8 are
    answered with TooLong. Memory is bounded by ``body_max`` and the longest line; with 0 nothing is
    kept but the state. ``drawn``: the lines are read off a screen, where ``\\>>>`` closes a block
    whether the renderer of the program takes the backslash for Markdown's, shows it, or draws
    ``&gt;``.
    """

    def __init__(
        self, namespaces: Collection[str], *, body_max: int = BODY_MAX, drawn: bool = False
    ) -> None:
        self._drawn = drawn
        self._parser = LineParser(namespaces)
        self._body_max = body_max
        self._fence: Fence | None = None
        self._message: _Open | None = None
        self._paused: _Open | None = None  # what the last line belongs to, complete at a pause

    @property
    def open(self) -> bool:
        """Whether a message or a block is being collected."""
        return self._message is not None

    @property
    def inside(self) -> str:
        """What the next line stands in: ``fence``, ``message``, ``block``, or nothing."""
        if self._message is not None:
            return "block" if self._message.block else "message"
        return "fence" if self._fence is not None else ""

    def line(self, text: str) -> list[Found]:
        """Take one complete line, without its line end; return what it completed."""
        message, self._paused = self._message, None
        if message is not None:
            if message.block:
                return self._line_in_block(message, text)
            return self._line_in_message(message, text)
        if self._fence is not None:
            if self._fence.closed_by(text):
                self._fence = None
            return []
        return self._line_in_nothing(text) if is_marked(text) else []  # nearly no line is

    def pause(self) -> list[Found]:
        """The stream rests: a message is complete, a block and a fence stay open."""
        if self._message is None or self._message.block:
            return []
        self._paused = replace(self._message, lines=[], next_head=None)
        return self._finish()

    def goes_on(self, text: str) -> list[Found]:
        """The next line, ``text``, goes on with what was complete at the last pause."""
        was, self._paused = self._paused, None
        if was is None:
            return []
        about = was.namespace, was.target, text.strip()
        if self._parser.head(text) is not None:
            return [Continued(*about, again=True)] if text.startswith(was.raw) else []
        ends = not about[2] or about[2][0] == ">" or self._parser.fence(text) is not None
        return [] if ends or self._next_item(was, text) else [Continued(*about)]

    def end(self) -> list[Found]:
        """The stream is over: an open block is a mistake, and swallows nothing that was said after.

        The scanner is as new afterwards.
        """
        found: list[Found] = []
        for _ in range(UNCLOSED_MAX):
            self._fence = None
            message, self._paused = self._message, None
            if message is None:
                return found
            if not message.block:
                return found + self._finish()
            self._message = None
            found.append(Unclosed(message.namespace, message.target))
            if message.next_head is not None:
                for line in message.lines[message.next_head :]:
                    found += self.line(line)
        self._message = self._fence = None
        return found

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs to go on, as JSON values."""
        open_ = {"fence": self._fence, "message": self._message, "paused": self._paused}
        return {name: None if one is None else asdict(one) for name, one in open_.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from ``state()``. Raises ValueError when it is no such state."""
        try:
            fence, message, paused = state["fence"], state["message"], state.get("paused")
            self._fence = None if fence is None else Fence(**fence)
            self._message = None if message is None else _Open(**deepcopy(message))
            self._paused = None if paused is None else _Open(**deepcopy(paused))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the state of a scanner: {error}") from error

    def _line_in_nothing(self, text: str) -> list[Found]:
        self._fence = self._parser.fence(text)
        if self._fence is None:
            head = self._parser.head(text)
            if head is not None:
                return self._begin(head, text)
        return []

    def _line_in_message(self, message: _Open, text: str) -> list[Found]:
        bare = text.strip()
        if not bare or bare[0] == ">":
            return self._finish()
        fence = self._parser.fence(text)
        if fence is not None:
            self._fence = fence
            return self._finish()
        head = self._parser.head(text)
        if head is not None:
            return self._finish() + self._begin(head, text)
        if self._next_item(message, text):
            return self._finish()
        message.add(self._parser.unescape(text.rstrip()), self._body_max)
        return []

    def _next_item(self, message: _Open, text: str) -> bool:
        """Whether ``text`` begins the item after the one in which the message's head stood.

        After a glyph only a glyph does: a list under it is part of what is being said. What is
        drawn may stand a column further right, where the rest of the text has scrolled away.
        """
        item = None if message.marker is None else self._parser.item(text)
        if item is None or message.marker is None:
            return False
        indent, glyph = item
        return indent <= message.marker + self._drawn and (glyph or not message.glyph)

    def _line_in_block(self, message: _Open, text: str) -> list[Found]:
        bare = text.strip()
        if bare == ">>>" or (self._drawn and bare in DRAWN_ENDS):
            if message.depth == 0:
                return self._finish()
            message.depth -= 1
        elif bare == "\\>>>" and message.depth == 0:
            text = text.replace("\\>>>", ">>>", 1)
        elif "@" in text:
            head = self._parser.head(text)
            if head is not None:
                message.depth += head.block and not head.closed
                if message.next_head is None:
                    message.next_head = len(message.lines)
        message.add(text, self._body_max)
        return []

    def _begin(self, head: Head, raw: str) -> list[Found]:
        message = _Open(
            namespace=head.namespace,
            target=head.target,
            attributes=head.attributes,
            raw=raw,
            block=head.block,
            indent=head.indent,
            marker=head.marker,
            glyph=head.glyph,
        )
        if not self._body_max:
            message.raw, message.target, message.attributes = "", "", {}
        self._message = message
        if head.block:
            if head.text:
                message.add(head.text, self._body_max)
            return self._finish() if head.closed else []
        # A fence ends a message even when it stands right behind the head: what follows is code.
        self._fence = self._parser.fence(head.text)
        if self._fence is not None:
            return self._finish()
        if head.text:
            message.headed = True
            message.add(self._parser.unescape(head.text), self._body_max)
        return []

    def _finish(self) -> list[Found]:
        message = self._message
        assert message is not None
        self._message = None
        if message.too_long:
            return [TooLong(message.namespace, message.target, message.size)]
        return [
            Match(
                namespace=message.namespace,
                target=message.target,
                body=message.body(),
                attributes=message.attributes,
                block=message.block,
                raw=message.raw,
            )
        ]


def is_marked(text: str) -> bool:
    """Whether ``text`` has what a line needs that begins anything."""
    return "@" in text or "```" in text or "~~~" in text


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
