"""Bytes, both ways: nothing lost, added, changed or kept back."""

from __future__ import annotations

import hashlib

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import Stage

#: Ends that a decoder would choke on: half a character, half an escape, an endless string.
_BROKEN = b"\xff\xfe\xc3\x28\x1b[\x1b]0;\x1b\x1bP\x1bP1$q\x9b\x90\x1b[99999999999m\x00\x18\x1a"


def _noise(count: int, seed: bytes = b"noise") -> bytes:
    return hashlib.shake_128(seed).digest(count)


@behaviour("bytes", "1 MiB of random output and broken escapes arrives verbatim", expect=True)
def random_output(stage: Stage) -> bool:
    data = b"".join(_noise(4096, b"%d" % n) + _BROKEN for n in range(256))
    (stage.folder / "data").write_bytes(data)
    stage.terminal.raw()
    stage.run(stage.child("write(open(os.path.join(FOLDER, 'data'), 'rb').read())"))
    return bytes(stage.terminal.seen) == data


@behaviour("bytes", "256 KiB and an immediate exit: nothing is lost", expect=[5, 256 * 1024, True])
def last_words(stage: Stage) -> list[object]:
    stage.terminal.raw()
    status = stage.run(stage.child("write(b'x' * (256 * 1024 - 3) + b'end')\nos._exit(5)"))
    seen = bytes(stage.terminal.seen)
    return [status, len(seen), seen.endswith(b"xend")]


@behaviour("bytes", "a prompt without a newline is shown at once", expect=True)
def prompt_at_once(stage: Stage) -> bool:
    stage.start(stage.child("write(b'name? ')\nwait('go')"))
    stage.terminal.until(b"name? ")
    stage.go("go")
    stage.terminal.wait()
    return stage.terminal.seen == b"name? "
