"""Shell envelopes in real shells: they print nothing and execute nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pexpect
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.directive.envelope import envelope

from . import fuzzed_shells
from .test_envelope import message

SHELLS = [name for name in ("bash", "dash", "zsh", "fish", "ksh", "sh") if shutil.which(name)]
DONE = "the end was reached"
SAID = "said"

HOSTILE = [
    "'; touch X; '",
    "\\'; touch X; '",
    "\\\\'; touch X; '",
    "'\\''; touch X; '\\''",
    "a\\",
    "\\",
    "'",
    "''",
    "\\'\\",
    "$(touch X) `touch X` ${X:=1} $'\\x27; touch X'",
    "!ls !! !$ ^a^b^ '!ls \\!ls",
    "\n!ls\n^a^b\n/exit\n; touch X\n& touch X\n| touch X\n> X\n# x",
    "x\r\ntouch X\r\n",
    "\x03touch X\n\x04",
    "\x1b[201~\ntouch X\n",
    "\x16\n touch X\n\x0f",
    "\t\ttouch X\t*\t~/\t",
    "<<EOF\ntouch X\nEOF",
    "((( [[ { case x in",
    "% %1 =ls ~ * ? [a-z]",
    "„Anführung“ ’; touch X; ’ £ 日本語 😀",
    "' " * 600,
    "\\" * 2000,
    "x" * 5000 + "'; touch X",
]


def home_of(folder: Path) -> str:
    """A home beside ``folder``: some shells write into theirs, which is no fault of the text."""
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    return str(home)


def run(shell: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}.get(shell, [])
    return subprocess.run(
        [shell, *options],
        input=f"{text}\necho {DONE}\n",
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": home_of(folder), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_bodies_do_nothing(shell: str, tmp_path: Path) -> None:
    text = "\n".join(envelope(message(body), style="shell").text for body in HOSTILE)
    result = run(shell, text, tmp_path)
    assert (result.stdout, result.stderr, result.returncode) == (f"{DONE}\n", "", 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", [x for x in SHELLS if x in ("bash", "zsh", "dash", "fish")])
def test_random_bodies_do_nothing_in_whatever_is_open(shell: str) -> None:
    assert fuzzed_shells.run(shell, "1", 800) == ""
    assert fuzzed_shells.run(shell, "1", 100, plain=True) != ""  # it would have been noticed


WORDS = st.sampled_from(
    [
        "'",
        '"',
        "\\",
        "$(touch X)",
        "`touch X`",
        "; touch X;",
        "!",
        "!!",
        "\n",
        "\r",
        "\x1b",
        "a ",
        "é",
    ]
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(WORDS, max_size=12).map("".join), max_size=20))
def test_no_mixture_does_anything(
    tmp_path_factory: pytest.TempPathFactory, many: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("shell")
    text = "\n".join(envelope(message(body), style="shell").text for body in many)
    result = run("bash", text, folder)
    assert (result.stdout, result.stderr) == (f"{DONE}\n", "")
    assert list(folder.iterdir()) == []


def as_fish_reads(line: str) -> list[str]:
    """The words of ``line`` by fish's rules, where a backslash also works inside single quotes."""
    words, word, quoted = [], "", False
    chars = iter(line)
    for char in chars:
        if char == "\\":
            after = next(chars)
            word += after if not quoted or after in "'\\" else char + after
        elif char == "'":
            quoted = not quoted
        elif char == " " and not quoted:
            words.append(word)
            word = ""
        else:
            word += char
    assert not quoted
    return [*words, word]


@given(st.lists(WORDS).map("".join))
@example("a\\")
@example("\\'")
def test_all_shells_read_a_line_alike(body: str) -> None:
    for line in envelope(message(body), style="shell").lines:
        words = shlex.split(line)
        assert words[0] == ":"
        assert len(words) == 2
        assert as_fish_reads(line) == words


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("shell", [x for x in SHELLS if x in ("bash", "zsh")])
def test_typed_at_a_prompt_with_history_expansion(shell: str, locale: str, tmp_path: Path) -> None:
    options = {"bash": ["--norc", "--noprofile", "-i", "-H"], "zsh": ["-f", "-i"]}[shell]
    child = pexpect.spawn(
        shell,
        options,
        cwd=str(tmp_path),
        env={
            "PATH": os.environ["PATH"],
            "HOME": home_of(tmp_path),
            "LC_ALL": locale,
            "TERM": "dumb",
            "PS1": "ready> ",
            "HISTFILE": "",
            "INPUTRC": "/dev/null",
        },
        encoding="utf-8",
        codec_errors="replace",
        timeout=20,
    )
    child.delaybeforesend = None
    try:
        child.expect_exact("ready> ")
        for body in HOSTILE[:16]:
            made = envelope(message(body), style="shell", ascii_only=locale == "C")
            for line in made.lines:
                child.send(f"{line}\r")
                # The shell itself tells what it took the words for: $_ is the last argument.
                child.send(f'printf %s "$_" > {SAID}; echo $?"|"$((6 * 7))\r')
                child.expect(r"\D0\|42\r")
                assert "not found" not in child.before
                assert (tmp_path / SAID).read_text() == shlex.split(line)[1]
    finally:
        child.close(force=True)
    assert [path.name for path in tmp_path.iterdir()] == [SAID]
