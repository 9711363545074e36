"""The standard conversation: what an agent is asked to say, and what of it must be heard. Pure.

An agent is asked by messages of relay's own, and answers with exactly the text that they hold. In
that text a few words in brackets stand for others (``FORM``), so that a message is one line
whatever takes it, and no address stands in it that could be taken for the agent's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: What each question begins with.
FORM = (
    "Please answer with exactly the text between BEGIN and END, and with nothing else. In it [NL]"
    " stands for the end of a line, [AT] for an at sign, [SENDER] for the name of the agent that"
    " sent you this."
)
COUNTING = " [COUNT 60] stands for the numbers from 1 to 60, each on a line of its own."
#: Seconds for which the model is to pause within a message.
PAUSE_SECONDS = 5
PAUSING = (
    f" [PAUSE {PAUSE_SECONDS}] stands for no text: say nothing for {PAUSE_SECONDS} seconds there,"
    " and then the rest."
)
RUNNING = (
    " [RUN x] stands for no text: run the command x with your shell tool, and say the rest only if"
    " you have no such tool."
)
SENDER, RECEIVER = "sender", "receiver"
LONG, FENCE, ESCAPE = "a long message", "not from a fence", "not what is escaped"
TWICE, AGAIN, BLOCK = "twice the same", "and again later", "a block"
REPLY, PAUSE = "a reply", "a pause within it"
REST, WHOLE, BUSY = "at rest", "long and whole", "while it works"
DRAFT, DIALOG, SEEN = "beside a draft", "with a dialog open", "seen is true"
ROWS = {
    **dict.fromkeys((REPLY, LONG, PAUSE, FENCE, ESCAPE, TWICE, AGAIN, BLOCK), SENDER),
    **dict.fromkeys((REST, WHOLE, BUSY, DRAFT, DIALOG, SEEN), RECEIVER),
}
#: How an agent that is heard by its screen is told to write these (relay.agents.launch).
AS_TOLD = {
    FENCE: "with words before the @",
    ESCAPE: "with words before the @",
    BLOCK: "in paragraphs, ended by \\>>>",
}
#: Where a terminal takes one line at a time, a message of several lines is sent as one.
IN_LINES = " So does ⏎ (or a lone |), where the text is one line."
TO = "[AT]relay:[SENDER]"
_WIDE = "please check the tests in the source folder and report back, " * 4 + "for sure"


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that an agent is asked to say; ``token`` stands in each message of it.

    ``heard`` are the messages that must come of it, in order; ``lines``: with their line breaks.
    """

    text: str
    heard: tuple[str, ...]
    lines: bool = False
    form: str = FORM

    @property
    def body(self) -> str:
        """The message that asks for it."""
        return f"{self.form} BEGIN {self.text} END"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table: whether it ``holds`` (None: it could not be tried), and why.

    ``as_told``: it does where the agent writes as its primer tells it, and not otherwise.
    """

    side: str
    what: str
    holds: bool | None
    reason: str
    as_told: bool = False


def simple(token: str, words: str = "an answer") -> Ask:
    return Ask(f"{TO} {words} {token}", (f"{words} {token}",))


def long(token: str) -> Ask:
    """A message that a terminal divides into several rows."""
    said = f"{token} {_WIDE}"
    return Ask(f"I tell you now.[NL][NL]{TO} {said}", (said,))


def pausing(token: str, sender: str) -> tuple[Ask, str, str]:
    """A message in which the model pauses; and what its screen shows of it before and after that.

    Neither stands in the question.
    """
    said = f"first to [SENDER] {token}, [PAUSE {PAUSE_SECONDS}]then to [SENDER] {token}"
    first, then = f"first to {sender} {token},", f"then to {sender} {token}"
    return Ask(f"{TO} {said}", (f"{first} {then}",), form=FORM + PAUSING), first, then


def fences(token: str) -> Sequence[Ask]:
    """A fence with an address in it, and a message behind it; as it is, and as an agent is told."""
    after = f"behind the fence {token}"
    return [
        Ask(
            f"An example:[NL][NL]```[NL]{before}{TO} from the fence {token}[NL]```[NL][NL]"
            f"{TO} {after}",
            (after,),
        )
        for before in ("", "as in ")
    ]


def escapes(token: str) -> Sequence[Ask]:
    """An address that is not meant, and a message behind it; escaped, and as an agent is told."""
    after = f"behind the escaped {token}"
    return [
        Ask(f"{before}{TO} escaped {token}[NL][NL]{TO} {after}", (after,))
        for before in ("\\", "as in ")
    ]


def twice(token: str) -> Ask:
    """Two messages of the same words."""
    said = f"the same words {token}"
    return Ask(f"{TO} {said}[NL][NL]{TO} {said}", (said, said))


def blocks(token: str) -> Sequence[Ask]:
    """A block of several lines; as it is, and as an agent is told: in paragraphs."""
    lines = (f"first line {token}", "the second one", "", "and one behind an empty one")
    body = "\n".join(lines)
    paragraphs = "".join(f"[NL][NL]{line}" for line in lines if line)
    return [
        Ask(f"{TO} <<<[NL]{'[NL]'.join(lines)}[NL]>>>", (body,), lines=True),
        Ask(f"{TO} <<<{paragraphs}[NL][NL]\\>>>[NL]", (body,), lines=True),
    ]


def whole(token: str) -> Ask:
    """A message of many lines, of which the first, one in the middle and the last are told back."""
    said = tuple(f"{part} {token} '\"`$(x) & {'y' * 40}" for part in ("first", "middle", "last"))
    filler = [f"Line {number} of the lines between, so that it is long." for number in range(8)]
    first, middle, last = (f"{TO} {words}" for words in said)
    lines = [first, "", *filler, "", middle, "", *filler, "", last]
    return Ask("\n".join(["", *lines, ""]), said, form=FORM + IN_LINES)


def counting(token: str) -> Ask:
    """An answer that takes a while."""
    said = f"counted {token}"
    return Ask(f"[COUNT 60][NL][NL]{TO} {said}", (said,), form=FORM + COUNTING)


def running(token: str, command: str) -> Ask:
    """A command, for which the agent may want permission."""
    said = f"no tool {token}"
    return Ask(f"[RUN {command}][NL]{TO} {said}", (said,), form=FORM + RUNNING)


def judged(ask: Ask, heard: Sequence[str]) -> tuple[bool, str]:
    """Whether ``heard`` is what must come of ``ask``, and what about it is worth a line."""
    expected = list(ask.heard)
    if list(heard) == expected:
        return True, ""
    if [solid(body) for body in heard] == [solid(body) for body in expected]:
        if not ask.lines:
            return True, "with line breaks of its own"
        kept = [_written(body) for body in heard] == [_written(body) for body in expected]
        return kept, "without its empty lines" if kept else "heard with other line breaks"
    if not heard:
        return False, "not heard"
    extra = [body for body in heard if solid(body) not in map(solid, expected)]
    if len(heard) != len(expected) and not extra:
        return False, f"heard {len(heard)} times, said {len(expected)} times"
    return False, f"heard: {shown(extra[0] if extra else heard[0])}"


def _written(text: str) -> list[str]:
    return [solid(line) for line in text.split("\n") if line.strip()]


def solid(text: str) -> str:
    """``text`` with all white space alike."""
    return " ".join(text.split())


def shown(text: str) -> str:
    """``text`` for a reason of one line."""
    words = solid(text)
    return f"“{words if len(words) <= 60 else words[:59] + '…'}”"
