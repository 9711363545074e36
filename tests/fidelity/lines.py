"""The line discipline: modes, editing, echo, the keys that make signals."""

from __future__ import annotations

import termios
from typing import Any

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import Stage

#: Answers each read with what it was, until the line "end"; says which signals came.
_TALK = r"""
for number, name in ((signal.SIGINT, b'INT'), (signal.SIGQUIT, b'QUIT')):
    signal.signal(number, lambda n, frame, name=name: write(b'<' + name + b'>\n'))
write(b'READY')
while (data := hear()) != b'end\n':
    write(b'<' + repr(data).encode() + b'>\n')
os._exit(5)
"""


def _begin(stage: Stage) -> None:
    stage.start(stage.child(_TALK))
    stage.terminal.until(b"READY")


def _say(stage: Stage, keys: bytes) -> str:
    """Type, and return all that is shown up to the child's answer."""
    stage.terminal.seen.clear()
    stage.terminal.type(keys)
    return stage.terminal.until(b">\r\n").decode()


def _end(stage: Stage) -> bool:
    """The child ends by its own will; what becomes of its status is a row of another group."""
    stage.terminal.type(b"end\r")
    stage.terminal.wait(stage.limit)
    return True


def _change(stage: Stage, **changes: int) -> None:
    """Change the outer terminal: flags by ``iflag``/``lflag`` and ``no_…``, characters by name."""
    modes = stage.terminal.modes()
    for index, name in ((0, "iflag"), (3, "lflag")):
        modes[index] = (modes[index] | changes.pop(name, 0)) & ~changes.pop(f"no_{name}", 0)
    for name, value in changes.items():
        modes[6][getattr(termios, name)] = bytes([value])
    termios.tcsetattr(stage.terminal.slave, termios.TCSANOW, modes)
    assert stage.terminal.modes()[:4] == modes[:4], "the outer terminal did not take the modes"


def _named(modes: list[Any]) -> dict[str, object]:
    names = ("iflag", "oflag", "cflag", "lflag", "ispeed", "ospeed", "characters")
    return dict(zip(names, modes, strict=True))


@behaviour("line discipline", "the terminal starts with the modes of the one outside", expect={})
def initial_modes(stage: Stage) -> dict[str, object]:
    """What differs, and how it is."""
    _change(
        stage,
        iflag=termios.IXANY | getattr(termios, "IUTF8", 0),
        no_iflag=termios.IXON | termios.IMAXBEL,
        no_lflag=termios.ECHOCTL,
        VINTR=0x1F,
        VERASE=0x08,
    )
    *flags, characters = stage.terminal.modes()
    outside = _named([*flags, [c if isinstance(c, int) else c.hex() for c in characters]])
    source = (
        "m = termios.tcgetattr(0)\n"
        "show('modes', [*m[:6], [c if isinstance(c, int) else c.hex() for c in m[6]]])"
    )
    assert stage.run(stage.child(source)) == 0
    inside = _named(stage.shown("modes"))
    return {name: inside[name] for name in inside if inside[name] != outside[name]}


@behaviour("line discipline", "a line can be edited: erase, kill, word erase, literal next")
def cooked_editing(stage: Stage) -> list[object]:
    _begin(stage)
    lines = (b"plain\r", b"abX\x7fc\r", b"junk\x15good\r", b"one two\x17three\r", b"\x16\x03x\r")
    said = [_say(stage, line) for line in lines]
    assert "<b'one three\\n'>" in said[3] and "<b'\\x03x\\n'>" in said[4], said
    return [*said, _end(stage)]


@behaviour("line discipline", "unusual editing characters and echo modes")
def other_editing(stage: Stage) -> list[object]:
    _change(stage, no_iflag=termios.IXON, no_lflag=termios.ECHOCTL, VERASE=0x08, VKILL=0x18)
    _begin(stage)
    said = [_say(stage, line) for line in (b"ab\x08c\x7f\r", b"x\x01\x13\r", b"gone\x18here\r")]
    assert "<b'here\\n'>" in said[2], said
    return [*said, _end(stage)]


@behaviour("line discipline", "^D ends the input at an empty line, and pushes a begun one")
def end_of_input(stage: Stage) -> list[object]:
    _begin(stage)
    said = [_say(stage, keys) for keys in (b"\x04", b"par\x04", b"tial\r", b"\x04", b"on\r")]
    assert "<b''>" in said[0] and "<b'par'>" in said[1], said
    return [*said, _end(stage)]


@behaviour("line discipline", "a line of 5000 characters loses what the kernel lets it lose")
def long_line(stage: Stage) -> list[object]:
    _begin(stage)
    answer = _say(stage, b"x" * 5000 + b"\r").rpartition("<")[2]
    assert 4000 < len(answer) < 5000
    return [len(answer), _say(stage, b"next\r"), _end(stage)]


@behaviour("line discipline", "lines typed before the child reads are there when it does")
def typed_ahead(stage: Stage) -> str:
    stage.start(stage.child("tell('up')\nwait('go')\nwrite(b'READY')\n" + _TALK))
    stage.told("up")
    stage.terminal.type(b"one\rtwo\r")
    stage.terminal.until(b"two\r\n")
    stage.go("go")
    stage.terminal.until(b"<b'two\\n'>")
    stage.terminal.type(b"end\r")
    stage.terminal.wait(stage.limit)
    return stage.terminal.seen.decode()


@behaviour("line discipline", "lines typed while it still starts are read too", expect=[True, True])
def typed_at_the_start(stage: Stage) -> list[object]:
    stage.start(stage.child(_TALK))
    stage.terminal.type(b"one\rtwo\r")
    shown = stage.terminal.until(b"<b'two\\n'>")
    return [b"<b'one\\n'>" in shown, _end(stage)]


def _signal_key(stage: Stage, key: bytes, name: bytes) -> list[object]:
    """A key that makes a signal: the child hears it, the line is thrown away, all goes on."""
    _begin(stage)
    stage.terminal.seen.clear()
    stage.terminal.type(b"thrown away" + key)
    stage.terminal.until(b"<" + name + b">")
    echoed = b"^" + bytes([key[0] + 64])
    stage.terminal.until(echoed)
    return [_say(stage, b"kept\r").partition("kept")[2], _end(stage)]


@behaviour("line discipline", "^C goes to the child, and to it alone")
def interrupt(stage: Stage) -> list[object]:
    return _signal_key(stage, b"\x03", b"INT")


@behaviour("line discipline", r"^\ goes to the child, and to it alone")
def quit_key(stage: Stage) -> list[object]:
    return _signal_key(stage, b"\x1c", b"QUIT")


@behaviour("line discipline", "another interrupt character than ^C, and ^C as any key")
def other_interrupt(stage: Stage) -> list[object]:
    _change(stage, VINTR=0x1F)
    heard = _signal_key(stage, b"\x1f", b"INT")
    _begin(stage)
    return [*heard, _say(stage, b"a\x03b\r"), _end(stage)]


@behaviour("line discipline", "^S stops the output and ^Q lets it go on", expect=[True, True])
def flow_control(stage: Stage) -> list[object]:
    source = (
        "import select\n"
        "while not os.path.exists(os.path.join(FOLDER, 'done')):\n"
        "    write(b'.')\n"
        "    select.select([], [], [], 0.01)\n"
    )
    stage.start(stage.child(source))
    stage.terminal.until(b"....")
    stage.terminal.type(b"\x13")
    stage.until(lambda: not stage.terminal.read(0.3), "output that stops")
    stage.terminal.type(b"\x11")
    stage.terminal.seen.clear()
    goes_on = b"...." in stage.terminal.until(b"....")
    (stage.folder / "done").touch()
    return [goes_on, stage.terminal.wait(stage.limit) == 0]


@behaviour("line discipline", "a child makes the terminal raw, gets each key as it is, and back")
def raw_and_back(stage: Stage) -> list[object]:
    source = (
        "before = termios.tcgetattr(0)\n"
        "tty.setraw(0)\n"
        "write(b'RAW')\n"
        "write(b'<' + repr(read(9)).encode() + b'>\\r\\n')\n"
        "termios.tcsetattr(0, termios.TCSANOW, before)\n"
    )
    stage.start(stage.child(source + _TALK))
    stage.terminal.until(b"RAW")
    raw = _say(stage, b"a\r\x03\x1a\x1c\x04\x13\x11\x7f")
    assert "x03" in raw, raw
    stage.terminal.until(b"READY")
    return [raw.partition(">")[0], _say(stage, b"woX\x7frd\r"), _end(stage)]


@behaviour("line discipline", "a password is read without echo")
def no_echo(stage: Stage) -> list[object]:
    source = (
        "before = termios.tcgetattr(0)\n"
        "modes = termios.tcgetattr(0)\n"
        "modes[3] &= ~termios.ECHO\n"
        "termios.tcsetattr(0, termios.TCSAFLUSH, modes)\n"
        "write(b'Password: ')\n"
        "write(b'<' + repr(os.read(0, 100)).encode() + b'>\\n')\n"
        "termios.tcsetattr(0, termios.TCSADRAIN, before)\n"
    )
    stage.start(stage.child(source + _TALK))
    stage.terminal.until(b"Password: ")
    secret = _say(stage, b"secreX\x7ft\r")
    assert "<b'secret\\n'>" in secret, secret
    stage.terminal.until(b"READY")
    return [secret.partition(">")[0], _say(stage, b"shown\r"), _end(stage)]


@behaviour("line discipline", "the child waits for a key with a timeout of the terminal's own")
def read_timeout(stage: Stage) -> list[object]:
    source = (
        "modes = termios.tcgetattr(0)\n"
        "modes[3] &= ~(termios.ICANON | termios.ECHO)\n"
        "modes[6][termios.VMIN], modes[6][termios.VTIME] = 0, 1\n"
        "termios.tcsetattr(0, termios.TCSANOW, modes)\n"
        "nothing = os.read(0, 10)\n"
        "write(b'READY')\n"
        "while not (key := os.read(0, 10)): pass\n"
        "show('got', [nothing.hex(), key.hex()])\n"
    )
    stage.start(stage.child(source))
    stage.terminal.until(b"READY")
    stage.terminal.type(b"k")
    return [stage.shown("got"), stage.terminal.wait(stage.limit)]
