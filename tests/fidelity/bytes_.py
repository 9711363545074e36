"""Bytes, both ways: nothing lost, added, changed or kept back."""

from __future__ import annotations

import contextlib
import hashlib
import os

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import Stage

_MIB = 1 << 20
#: Ends that a decoder would choke on: half a character, half an escape, an endless string.
_BROKEN = b"\xff\xfe\xc3\x28\x1b[\x1b]0;\x1b\x1bP\x1bP1$q\x9b\x90\x1b[99999999999m\x00\x18\x1a"


#: As a full-screen program begins.
_RAW = "tty.setraw(0)\ntell('ready')\n"


def _ready(stage: Stage) -> None:
    """Wait until the child is in raw mode, and all of the wrapper is there to disturb it."""
    stage.told("ready")
    stage.settle()


def _noise(count: int, seed: bytes = b"noise") -> bytes:
    return hashlib.shake_128(seed).digest(count)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- out


@behaviour("bytes", "1 MiB of random output and broken escapes arrives verbatim", expect=True)
def random_output(stage: Stage) -> bool:
    data = b"".join(_noise(4096, b"%d" % n) + _BROKEN for n in range(256))
    (stage.folder / "data").write_bytes(data)
    stage.terminal.raw()
    data_of = "open(os.path.join(FOLDER, 'data'), 'rb').read()"
    stage.start(stage.child(f"{_RAW}wait('go')\nwrite({data_of})"))
    _ready(stage)
    stage.go("go")
    stage.terminal.wait(stage.limit)
    return bytes(stage.terminal.seen) == data


@behaviour("bytes", "256 KiB and an immediate exit: nothing is lost", expect=[256 * 1024, True])
def last_words(stage: Stage) -> list[object]:
    stage.terminal.raw()
    stage.run(stage.child(f"{_RAW}write(b'x' * (256 * 1024 - 3) + b'end')\nos._exit(5)"))
    seen = bytes(stage.terminal.seen)
    return [len(seen), seen.endswith(b"xend")]


@behaviour("bytes", "a prompt without a newline is shown at once", expect=True)
def prompt_at_once(stage: Stage) -> bool:
    return _shown_at_once(stage, b"name? ", b"")


@behaviour("bytes", "half a UTF-8 character is passed on at once", expect=True)
def half_a_character(stage: Stage) -> bool:
    return _shown_at_once(stage, b"\xe2\x82", b"\xac")


def _shown_at_once(stage: Stage, first: bytes, then: bytes) -> bool:
    """Whether ``first`` is shown before the child is allowed to write ``then``."""
    stage.start(stage.child(f"write({first!r})\nwait('go')\nwrite({then!r})"))
    stage.terminal.until(first)
    stage.go("go")
    stage.terminal.wait()
    return first + then in stage.terminal.seen


# -- in


@behaviour(
    "bytes", "all 256 byte values arrive as input in raw mode", expect=bytes(range(256)).hex()
)
def all_bytes_in(stage: Stage) -> str:
    stage.start(stage.child(f"{_RAW}tell('got', read(256))"))
    _ready(stage)
    stage.terminal.type(bytes(range(256)))
    return stage.told("got").hex()


_SUM = f"import hashlib\ntell('got', hashlib.sha256(read({_MIB})).hexdigest().encode())\n"


@behaviour("bytes", "1 MiB pasted into a child that reads late", expect=True)
def paste_into_a_late_reader(stage: Stage) -> bool:
    paste = _noise(_MIB)
    stage.start(stage.child(f"{_RAW}wait('go')\n{_SUM}"))
    _ready(stage)
    taken = _type_until_full(stage, paste)
    stage.go("go")
    stage.terminal.type(paste[taken:])
    return stage.told("got").decode() == _digest(paste)


def _type_until_full(stage: Stage, data: bytes) -> int:
    """Type what the terminal takes without waiting for anybody; how much that was."""
    master, taken = stage.terminal.master, 0
    os.set_blocking(master, False)
    with contextlib.suppress(BlockingIOError):
        while taken < len(data):
            taken += os.write(master, data[taken : taken + 4096])
    return taken


@behaviour(
    "bytes", "1 MiB pasted while the child writes 1 MiB before it reads", expect=[True, _MIB]
)
def paste_against_output(stage: Stage) -> list[object]:
    paste = _noise(_MIB)
    source = f"{_RAW}wait('go')\nwrite(b'o' * {_MIB})\n{_SUM}wait('read')"
    _start(stage, source)
    stage.terminal.type(paste)
    same = stage.told("got").decode() == _digest(paste)
    stage.go("read")
    stage.terminal.wait()
    return [same, stage.terminal.seen.count(b"o")]


# -- what terminals and programs say to each other: (name, program to terminal, terminal to program)

_PROTOCOLS = [
    ("kitty keyboard", b"\x1b[>31u\x1b[?u\x1b[=5;2u\x1b[<u", b"\x1b[?31u\x1b[97:65;6:3u\x1b[13;2u"),
    ("bracketed paste", b"\x1b[?2004h\x1b[?2004l", b"\x1b[200~one\rtwo\x03\x1b[201~"),
    ("focus events", b"\x1b[?1004h\x1b[?1004l", b"\x1b[I\x1b[O"),
    (
        "SGR mouse",
        b"\x1b[?1003h\x1b[?1006h\x1b[?1016h",
        b"\x1b[<0;200;150M\x1b[<35;1;1m\x1b[<64;9;9M",
    ),
    ("synchronised output", b"\x1b[?2026hx\x1b[?2026l", b"\x1b[?2026;1$y"),
    ("OSC 8 (links)", b"\x1b]8;id=1;https://example.org/?a=b\x1b\\link\x1b]8;;\x1b\\", b"\t"),
    ("OSC 52 (clipboard)", b"\x1b]52;c;aGVsbG8=\x07\x1b]52;c;?\x07", b"\x1b]52;c;aGVsbG8=\x07"),
    ("OSC 133 and 633 (prompts)", b"\x1b]133;A\x07$ \x1b]133;C\x07\x1b]633;P;Cwd=/\x07", b"\x0e"),
    ("OSC 9;4 (progress)", b"\x1b]9;4;1;50\x1b\\\x1b]9;4;0\x07", b"\x0f"),
    ("sixel", b'\x1bPq"1;1;6;6#0;2;0;0;0#0!6~-\x1b\\', b"\x1b[?1;0;256S"),
    ("kitty graphics", b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\", b"\x1b_Gi=31;OK\x1b\\"),
    ("XTGETTCAP", b"\x1bP+q544e;524742\x1b\\", b"\x1bP1+r544e=787465726d\x1b\\"),
]


def _start(stage: Stage, source: str) -> None:
    stage.terminal.raw()
    stage.start(stage.child(source))
    _ready(stage)
    stage.go("go")


def _protocol(name: str, to_terminal: bytes, to_program: bytes) -> None:
    sentence = f"{name}: verbatim in both directions"

    @behaviour("bytes", sentence, expect=[True, to_program.hex()], name=name)
    def run(stage: Stage) -> list[object]:
        said = to_terminal + b"END"
        source = f"{_RAW}wait('go')\nwrite({said!r})\ntell('got', read({len(to_program)}))"
        _start(stage, source)
        seen = stage.terminal.until(b"END")
        stage.terminal.type(to_program)
        return [seen == said, stage.told("got").hex()]


# -- queries: the test is the terminal that answers

_QUERIES = [
    ("DA1", b"\x1b[c", b"\x1b[?62;22;52c"),
    ("cursor position", b"\x1b[6n", b"\x1b[7;13R"),
    ("background colour (OSC 11)", b"\x1b]11;?\x1b\\", b"\x1b]11;rgb:1e1e/2e2e/3e3e\x1b\\"),
    ("mode state (DECRQM)", b"\x1b[?2026$p", b"\x1b[?2026;2$y"),
]
_ASK = """
got = b""
while not got.endswith(b"!"):
    got += read(1)
tell("got", got)
"""


def _query(name: str, query: bytes, answer: bytes) -> None:
    sentence = f"{name}: asked of the real terminal, answered by it alone, once"

    @behaviour("bytes", sentence, expect=[1, answer.hex()], name=name)
    def run(stage: Stage) -> list[object]:
        _start(stage, f"{_RAW}wait('go')\nwrite({query + b'END'!r})\n{_ASK}")
        asked = stage.terminal.until(b"END").count(query)
        if asked:
            stage.terminal.type(answer)
        stage.terminal.type(b"!")
        return [asked, stage.told("got")[:-1].hex()]


for _each in _PROTOCOLS:
    _protocol(*_each)
for _each in _QUERIES:
    _query(*_each)
