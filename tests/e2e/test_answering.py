"""An agent is looked at, answered and interrupted from another shell, in a real terminal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from relay.core.paths import Home
from relay.ui.watching import Watching
from tests.e2e.asked import run_one
from tests.e2e.wrapped import python, relay, relay_json, wait_registered, wrapped
from tests.support import found

#: Asks three times, in words of the kernel's line editor.
LINES = "for n in range(3):\n    print('GOT', input(f'Continue with {min(n, 1)}? [y/N] '))\n"
#: A full-screen program with a list, a spinner beside it, and a second question after the first.
LIST = r"""
import os, select, sys, termios, tty
tty.setraw(0)
at, asked, spin = 0, 0, 0
def draw():
    rows = [f'\x1b[1mQuestion {asked}\x1b[0m', 'Which one do you want?', '']
    rows += [f'{"❯" if n == at else " "} {c}' for n, c in enumerate(('Red', 'Green', 'Blue'))]
    spinner = '…' if is_busy else '|/-'[spin % 3]
    rows += ['', f'↑/↓ to move, Enter to select {spinner}']
    os.write(1, ('\x1b[H\x1b[2J' + '\r\n'.join(rows)).encode())
os.write(1, b'\x1b[?1049h\x1b[?25l')
while asked < 2:
    is_busy = os.path.exists(sys.argv[1] + '.busy')
    draw()
    if not select.select([] if is_busy else [0], [], [], 0.15)[0]:
        spin += 1
        continue
    key = os.read(0, 3)
    open(sys.argv[1] + '.keys', 'ab').write(key[-1:])
    if key == b'\x1b[B': at = min(at + 1, 2)
    if key == b'\x1b[A': at = max(at - 1, 0)
    if key == b'\r':
        open(sys.argv[1], 'a').write(('Red', 'Green', 'Blue')[at] + '\n')
        asked, at = asked + 1, 0
os.write(1, b'\x1b[?25h\x1b[?1049l')
"""


def question(agent: str = "Bob", unlike: object = "") -> dict[str, Any]:
    """The item of this agent, once it is another one than ``unlike``."""

    def there() -> dict[str, Any] | None:
        rows = relay_json("items")
        return next((one for one in rows if one["agent"] == agent and one["id"] != unlike), None)

    return found(there)


def test_questions_in_words_are_answered_once_each_and_peeked_at(isolated_home: Path) -> None:
    home = Home(str(isolated_home))
    with Watching(home, kinds=["item"]) as watching, wrapped(python(LINES), name="Bob") as bob:
        wait_registered("Bob")
        item = question()
        assert item["choices"] == [{"key": "y", "label": "Yes"}, {"key": "n", "label": "No"}]
        [agent] = relay_json("agents")
        assert (agent["state"], agent["reason"]) == ("blocked", "asks: Continue with 0? [y/N]")
        assert relay("peek", "Bob") == "Continue with 0? [y/N]\n"
        assert "y: Yes; n: No" in relay("answer", "Bob", "perhaps", status=2)
        assert relay("answer", "bob", "YES") == "Bob: Yes\n"
        bob.wait_for("GOT y")
        second = question(unlike=item["id"])
        # The person answers it at the terminal: what is asked then is another one, though alike.
        bob.type("n\r")
        bob.wait_for("GOT n")
        question(unlike=second["id"])
        assert "no agent or waiting item" in relay("answer", second["id"], "yes", status=3)
        relay("answer", "Bob", "no")
        bob.wait_for("GOT n.*GOT n")
        said: list[str] = []
        while len(said) < 2:
            rows = watching.next_rows(20)
            said += [row["answer"] for row in rows if not row["open"] and row["answer"]]
        assert said == ["Yes", "No"]
    stored = relay_json("ledger", "query", "SELECT body FROM events WHERE kind = 'answer'")
    assert [row["body"] for row in stored] == ["Yes", "No"]


#: Reads lines, and asks in each of these ways.
ASKS = """
import sys
for asked in (
    "Which?\\n1) Red\\n2) Blue\\n#? ", "Proceed?\\n❯ 1. Yes\\n  2. No\\n", "¿Continuar? "
):
    sys.stdout.write(asked); sys.stdout.flush()
    print("GOT", sys.stdin.readline().strip())
while True:
    sys.stdout.write("User: "); sys.stdout.flush()
    line = sys.stdin.readline()
    print("READ", line.strip(), "\\nShall I go on?\\n1. yes\\n2. no")
"""


def test_a_program_that_reads_lines_gets_no_message_for_an_answer() -> None:
    with wrapped(python(ASKS), name="Bob") as bob:
        wait_registered("Bob")
        first = question()
        assert [one["label"] for one in first["choices"]] == ["Red", "Blue"]
        relay("send", "Bob", "hello")
        assert relay("answer", "Bob", "blue") == "Bob: Blue\n"
        bob.wait_for("GOT 2")
        second = question(unlike=first["id"])
        assert relay("answer", "Bob", "no") == "Bob: No\n"
        bob.wait_for("GOT 2.*GOT 2")
        third = question(unlike=second["id"])
        assert third["choices"] == [] and third["what"].endswith("¿Continuar?")
        bob.type("sí\r")
        bob.wait_for("GOT sí")
        # Its prompt comes back each turn, whatever it has said above.
        bob.wait_for("READ Relay message")
        relay("send", "Bob", "and again")
        bob.wait_for("READ Relay message.*READ Relay message.*and again")


def test_in_a_list_the_focus_is_moved_and_confirmed_once(tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    program = [*python(LIST), str(answers)]
    with wrapped(program, name="Bob") as bob:
        wait_registered("Bob")
        first = question()
        labels = [one["label"] for one in first["choices"]]
        assert (labels, first["chosen"]) == (["Red", "Green", "Blue"], 0)
        assert first["what"] == "Question 0\nWhich one do you want?"
        shown = relay_json("peek", "Bob", "--color")
        assert ["Question 0", {"bold": True}] in shown["spans"][0]
        assert relay("answer", "Bob", "blue") == "Bob: Blue\n"
        second = question(unlike=first["id"])
        assert answers.read_text() == "Blue\n"
        assert "no agent or waiting item" in relay("answer", first["id"], "blue", status=3)
        # What it gets while it is busy moves the focus later, and once.
        busy = tmp_path / "answers.busy"
        busy.touch()
        bob.wait_for("select …")
        for _ in range(2):
            assert "the focus does not move" in relay("answer", "Bob", "2", status=4)
        busy.unlink()
        bob.wait_for("❯ Green")
        assert relay("answer", second["id"], "2") == "Bob: Green\n"
        assert bob.wait() == 0
    assert answers.read_text() == "Blue\nGreen\n"
    assert (tmp_path / "answers.keys").read_bytes() == b"BB\rB\r"


#: Numbers of programs that ask at their start, at rest, after a paste and after Enter.
SEEDS = range(8)


def test_nothing_reaches_a_question_and_seen_is_true(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda seed: run_one(seed, tmp_path), SEEDS))
    assert [outcome for outcome in outcomes if outcome.fault] == []
    assert sum(outcome.state == "seen" for outcome in outcomes) >= len(SEEDS) // 2
