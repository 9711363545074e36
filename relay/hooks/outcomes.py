"""What is asked of a handler, and what became of it. No I/O."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from relay.hooks.hook_model import Callee

_TEXT_MAX = 4000

R = TypeVar("R")
#: What a handler returned, and its name for people, to what that means. Raises HandlerError.
Read = Callable[[object, str], R]


@dataclass(slots=True)
class Call(Generic[R]):
    """One handler to be called, whose answer ``read`` makes sense of.

    ``arguments`` gives all that is offered to it; it is called where the handler is. ``timeout`` in
    seconds; None means the handler's own, else the configured one.
    """

    callee: Callee
    arguments: Callable[[], Sequence[object]]
    read: Read[R]
    timeout: float | None = None

    def begin(self) -> object:
        """Call the handler, here and now."""
        return self.callee.binding.call(self.callee.function, self.arguments())


class End(StrEnum):
    """How a call ended."""

    DONE = "done"
    RAISED = "raised"
    TIMEOUT = "timeout"
    NONSENSE = "nonsense"
    OFF = "off"
    REFUSED = "refused"


@dataclass(slots=True)
class Outcome(Generic[R]):
    """One call of one handler. ``duration`` in seconds; ``error`` is one line for people.

    ``result`` is what the handler said, read; None unless ``ok``. ``trace`` is where in the user's
    code it was raised.
    """

    handler: str
    end: End
    result: R | None
    error: str
    duration: float
    trace: str = ""

    @property
    def ok(self) -> bool:
        return self.end is End.DONE


def one_line(error: BaseException) -> str:
    """What was raised and where, for people."""
    try:
        text = traceback.format_exception_only(error)[-1].strip()
    except Exception:  # its __str__ raises
        text = type(error).__name__
    where = _frames(error)
    place = f" (line {where[-1].lineno} in {where[-1].name})" if where else ""
    return " ".join(text.split())[:_TEXT_MAX] + place


def trace(error: BaseException) -> str:
    """The part of the traceback that is the user's."""
    return "".join(traceback.format_list(_frames(error)))[-_TEXT_MAX:]


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    own = __file__.rpartition("/")[0]
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(own)
    ]
