"""The size of the terminal, in characters and pixels, from the start and when it changes."""

from __future__ import annotations

from typing import Any

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import Stage

#: Tells of each size that a SIGWINCH announces, until a key is pressed.
_WATCHER = """
import json  # which show() would: a handler must not, another signal may come in its middle
def changed(*_):
    rows, columns, x, y = size()
    tell(f"{rows}-{columns}")
    show(f"{rows}-{columns}-{x}-{y}", size())
signal.signal(signal.SIGWINCH, changed)
tty.setraw(0)
tell("ready")
os._exit(len(read(1)) + 2)
"""


@behaviour("size", "the size is right from the start", expect=[37, 91])
def initial_size(stage: Stage) -> Any:
    return _initial(stage)[:2]


@behaviour("size", "the size in pixels is right too", expect=[910, 740])
def initial_pixels(stage: Stage) -> Any:
    return _initial(stage)[2:]


def _initial(stage: Stage) -> Any:
    stage.terminal.resize(91, 37, 910, 740)
    stage.run(stage.child("show('size', size())"))
    return stage.shown("size")


@behaviour("size", "a change arrives with SIGWINCH", expect=b"")
def resize(stage: Stage) -> bytes:
    stage.start(stage.child(_WATCHER))
    stage.told("ready")
    stage.terminal.resize(100, 50, 1000, 1000)
    return stage.told("50-100")


@behaviour("size", "a change of pixels alone arrives with SIGWINCH", expect=[24, 80, 960, 600])
def resize_of_pixels(stage: Stage) -> Any:
    stage.start(stage.child(_WATCHER))
    stage.told("ready")
    stage.terminal.resize(80, 24, 960, 600)
    return stage.shown("24-80-960-600")


@behaviour(
    "size",
    "a storm of 200 resizes: the last size arrives with a SIGWINCH, and the child goes on",
    expect=3,
)
def storm_of_resizes(stage: Stage) -> int:
    stage.start(stage.child(_WATCHER))
    stage.told("ready")
    for n in range(199):
        stage.terminal.resize(20 + n, 10 + n % 50)
    stage.terminal.resize(333, 111)
    stage.told("111-333")
    stage.terminal.type(b"q")
    return stage.terminal.wait()
