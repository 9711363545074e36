"""``relay completions``: what each shell offers, asked of the shells themselves; and the manual."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ptyprocess import PtyProcess

from relay.cli.help_verbs import parsers
from relay.cli.verbs import VERBS, every
from relay.core.paths import Home
from tests.broker.support import register
from tests.cli.fixtures import Run
from tests.support import wait_until


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``relay`` is this one."""
    program = tmp_path / "bin" / "relay"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m relay "$@"\n')
    program.chmod(0o755)
    # The shells start in a home of their own: no configuration of a person's is read.
    return {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
    }


def offered(shell: str, lines: list[str], env: dict[str, str], tmp_path: Path) -> list[set[str]]:
    """The words that ``shell`` offers at the end of each line."""
    script = tmp_path / "script"
    if shell == "zsh":
        return in_zsh(lines, env, tmp_path)
    if shell == "fish":
        answers = [said(["fish", "-c", FISH, script, line], env) for line in lines]
        return [{row.split("\t")[0] for row in rows} for rows in answers]
    return [set(said(["bash", "-c", BASH, "bash", script, *one.split(" ")], env)) for one in lines]


BASH = '''. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _relay
printf "%s\\n" "${COMPREPLY[@]}"'''
FISH = "source $argv[1]; complete -C $argv[2]"
ZSH = """
autoload -Uz compinit; compinit -u -d $HOME/dump; eval "$(cat $HOME/script)"
zstyle ':completion:*' verbose no
_told() { compstate[insert]=; compstate[list]=; print -rl -- $matched >$HOME/found; : >$HOME/done }
compadd() { local -a hits; builtin compadd -O hits "$@"; matched+=($hits); builtin compadd "$@" }
_ask() { typeset -ga matched=(); _main_complete; _told }
zle -C ask complete-word _ask; bindkey '^X' ask; PS1='READY> '
"""


def said(command: list[object], env: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [str(word) for word in command], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "", done.stderr
    return done.stdout.split("\n")[:-1]


def in_zsh(lines: list[str], env: dict[str, str], tmp_path: Path) -> list[set[str]]:
    (tmp_path / ".zshrc").write_text(ZSH)
    shell = PtyProcess.spawn(["zsh", "-i"], env=env, dimensions=(24, 200))
    found, done = tmp_path / "found", tmp_path / "done"
    answers = []
    try:
        seen = b""
        while b"READY> " not in seen:
            seen += shell.read()
        for line in lines:
            shell.write(b"\x15" + line.encode() + b"\x18")
            wait_until(done.exists, what=f"zsh to offer something for {line!r}")
            answers.append(set(found.read_text().split()))
            done.unlink()
    finally:
        shell.close(force=True)
    return answers


#: What is typed, some of what is to be offered, and some of what is not.
CASES = {
    "relay ": (set(VERBS), {"--mode"}),
    "relay sen": ({"send", "sent"}, {"agents", "--mode"}),
    "relay send Bob --m": ({"--mode"}, {"--from", "send"}),
    "relay hooks ": ({"list", "test"}, {"send", "--grep"}),
    "relay broker st": ({"status", "stop"}, {"run"}),
    "relay help hi": ({"history"}, {"send"}),
    "relay completions z": ({"zsh"}, {"bash"}),
    "relay send Z": ({"Zoe"}, {"send"}),
    "relay automation info b": ({"beat"}, {"send", "Bob"}),
}


def test_each_shell_offers_what_the_parser_takes_and_the_names_of_agents(
    path: dict[str, str], tmp_path: Path, relay: Run, broker_home: Home
) -> None:
    beat = tmp_path / "beat.py"
    beat.write_text("automation = {'name': 'beat', 'description': 'x', 'handler': print}")
    relay("automation", "register", str(beat))
    with register(broker_home, "Zoe"):
        for shell in filter(shutil.which, ("bash", "zsh", "fish")):
            (tmp_path / "script").write_text(relay("completions", shell).stdout)
            answers = offered(shell, list(CASES), path, tmp_path)
            for (line, (wanted, unwanted)), found in zip(CASES.items(), answers, strict=True):
                assert wanted <= found and not unwanted & found, (shell, line, found)


def test_names_are_asked_for_without_starting_anything(relay: Run, broker_home: Home) -> None:
    done = relay("completions", "names")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not os.path.exists(broker_home.broker_socket)


def test_every_verb_has_a_page_that_names_what_it_takes(relay: Run, tmp_path: Path) -> None:
    relay("help", "--man", str(tmp_path))
    pages = {page.stem: page.read_text() for page in (tmp_path / "man1").iterdir()}
    assert set(pages) == {"relay", *(f"relay-{name}" for name in every())}
    for parser in parsers():
        page = pages["-".join(parser.prog.split()[:2])].replace("\\-", "-")
        assert [
            form for form, _ in parser.taken() if f".B {form}\n".isascii() and form not in page
        ] == []
    # No line is a request but those of the page's own, and nothing is lost in an escape.
    own = (".TH", ".SH", ".TP", ".PP", ".B", ".BR", ".nf", ".fi")
    lines = [line for page in pages.values() for line in page.splitlines()]
    assert {line.split()[0] for line in lines if line.startswith((".", "'"))} <= set(own)


def test_what_cannot_be_written_is_said(relay: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = relay("help", "--man", str(tmp_path / "file"))
    assert done.returncode == 1 and "cannot write" in done.stderr
