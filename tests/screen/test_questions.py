"""What counts as a question of a program's to its person, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relay.screen.questions import (
    DIALOG,
    LinePrompts,
    StandingQuestion,
    question_in_line,
    question_on_screen,
)
from tests.pump.fuzzing import fuzz


def asks(text: str, *, cursor: str = "█", shown: bool = True) -> str:
    """What a screen asks; ``█`` is where its cursor stands, else that is hidden."""
    rows = text.strip("\n").split("\n")
    at = next((n for n, row in enumerate(rows) if cursor in row), None)
    if at is None:
        return question_on_screen(rows, (0, 0), shown=False)
    place = rows[at].index(cursor), at
    rows[at] = rows[at].replace(cursor, "", 1)
    return question_on_screen(rows, place, shown=shown)


QUESTIONS = {
    "y-n": "Overwrite main.py? [y/N] █",
    "gptme": "  print(1)\n\nExecute code? [Y/n/c/e/a/?] █",
    "aider": "Add file to the chat? (Y)es/(N)o/(D)on't ask again [Yes]: █",
    "yes-no": "Are you sure you want to continue connecting (yes/no/[fingerprint])? █",
    "upper-case": "REMOVE ALL? (Y|N): █",
    "bare": "Proceed y/n █",
    "no-choices": "Do you want to run it now? █",
    "below": "Overwrite main.py? [y/N]\n> █",
    "any-key": "Your key is missing.\nPress any key to exit█",
    "enter": "Welcome to cline!\nPress Enter to continue...█",
    "enter-hidden-cursor": "Welcome!\n\n  Hit [Enter] to begin",
    "space": "Press space to continue █",
    "password": "Password for root: █",
    "api-key": "Enter your API key: █",
    "inquirer": "? What is your name › █",
    "select-by-number": "1. red\n2. green\nSelect a colour [1-2]: █",
    "more": "line\n--More--█",
    "in-a-frame": "some text\n╭────────────────╮\n│ Delete it? (y/n) │\n╰────────────────╯\n\n> █",
    "claude": "Do you want to proceed?\n ❯ 1. Yes\n   2. No, tell it what to do\n",
    "gemini": "│ Apply this change?      │\n│ ● 1. Yes, allow once │\n│   2. Yes, always  │",
    "chevron": "Allow command?\n› Yes\n  No\n",
    "trust": "╭───────────╮\n│ ▸ Trust this folder │\n│   Exit              │\n╰───────────╯",
    "theme": "Choose a theme\n\n❯ Dark\n  Light\n  Solarized\n\n> █",
    "hints": "Pick one\n> gpt-5\n  gpt-4\n\n↑/↓ to move, Enter to select█",
    "hints-only": "What now\n\nEnter to confirm · Esc to cancel",
    "words-in-a-dialog": "│  Your name?           │\n│ ┌───────────────────┐ │\n"
    "│ │  Name (optional)  │ │\n│ └───────────────────┘ │\n│   Enter to continue   │\n"
    "└───────────────────────┘\n┌──────┐\n│ >    │\n└──────┘",
    "secret-in-a-dialog": "│ Paste your key │\n│                │\n│ Enter save • Esc cancel │",
    "box-over-a-box": "  ┌─────────┐\n  │ Which?  │\n┌─│         │──┐\n│ │ one     │  │\n"
    "└─│ two     │──┘\n  └─────────┘",
    "words-or-a-choice": "│ Type to filter │\n│  one           │\n"
    "│ ↑/↓ navigate • Tab autocomplete • Enter select │\n\n> █",
    "ok": "   Something went wrong\n\n        [ OK ]\n",
    "dialog": "  Quit without saving?\n    < Yes >   No\n",
    "buttons": "│   [ Trust it ]   [ Leave ]   │",
    "plain-buttons": "│        Yes        Cancel      │",
    "modal-over-an-input-line": "hello\n\n   Install the update?\n   [ Yes ]  [ No ]\n\n> █",
    "radio": "( ) small\n(•) large\n",
    "radio-signs": "○ ask first\n● always run\n",
    "check-list": "❯ ◉ lint\n  ◯ test\n(space to toggle)",
}


@pytest.mark.parametrize("screen", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_of_a_full_screen_program_is_known(screen: str) -> None:
    assert asks(screen)


TALK = {
    "prompt": "hello\n\n> █",
    "box": "Hello\n╭───────╮\n│ > █   │\n╰───────╯\n  enter to send · ctrl+c to exit",
    "box-hidden-cursor": "● hi\n╭──────────╮\n│ >        │\n╰──────────╯\n  Press Enter to send",
    "answer-no": "● No, the tests fail because of\n  the parser, which needs a fix.\n\n> █",
    "answer-yes": "● Yes\n\n● Ran 3 commands\n\n> █",
    "quoted-higher-up": 'It asks "Overwrite? [y/N]" there.\nOverwrite? [y/N]\n\nfine\n\n> █',
    "quoted-above-a-box": "● It says:\n  Continue? (y/n)\n╭──────╮\n│ > █  │\n╰──────╯",
    "key-higher-up": "It printed:\n\nPress Enter to continue\n\nand waits.\n\n> █",
    "key-in-prose": "Then press any key to stop it.\nIt will end by itself.\n\n❯ █",
    "numbered-list": "● Do this:\n  1. install it\n  2. run it\n\n❯ █",
    "to-do-list": "● Plan\n  [x] read\n  [ ] write\n  ☐ test\n\n> █",
    "what-the-person-said": "❯ please do it as I said before, and then\n  tell me\n\n● done\n\n❯ █",
    "bullets": "● Read 3 files\n● Wrote main.py\n● Done\n\n> █",
    "status": "[  OK  ] Started the server\n[main] 3 files\n\n> █",
    "draft": "────────\n❯ is it so? I do not know█\n────────\n  ? for shortcuts",
    "question-of-the-person": "> what is in there?\n\nnothing\n> █",
    "footer": "> █\n\n  esc to interrupt   ctrl+t to show todos",
    "status-of-nanocoder": "  1. Use words.\n  2. Ask for files.\n\nWhat would you like?\n┃\n"
    "┃ > / commands, ! bash, ↑/↓ history\n┃\n\n▶ normal mode on",
    "status-below": "● hi\n╭────╮\n│ >  │\n╰────╯\n▶ normal mode on\n  ↑/↓ history · ctrl+o expand",
    "table": "┌────┬────┐\n│ a  │ b  │\n├────┼────┤\n│ 1  │ 2  │\n└────┴────┘\n╭─│ title │─╮\n> █",
    "edit": "╭────╮\n│ >  │\n╰────╯\n enter to send · esc to cancel",
    "frames-below": "❯ Ask me\n  ┃\n  ┃\n  ╰──\n",
    "arrow-list": "→ main.py changed because the parser failed\n  two tests run now\n> █",
}


@pytest.mark.parametrize("screen", TALK.values(), ids=TALK)
def test_what_an_agent_says_and_where_it_listens_is_no_question(screen: str) -> None:
    assert not asks(screen)


def in_line(text: str, prompts: LinePrompts | None = None, *, vouched: bool = False) -> str:
    """What a program that reads lines asks, its cursor at ``█``."""
    rows = text.split("\n")
    at = next((n for n, row in enumerate(rows) if "█" in row))
    place = rows[at].index("█"), at
    return question_in_line([row.rstrip("█") for row in rows], place, prompts, vouched=vouched)


@pytest.mark.parametrize(
    "text",
    [
        "Overwrite? [y/N] █",
        "Continue (yes/no)?█",
        "Execute? [Y/n/c/e/a/?] █",
        "Press ENTER to continue█",
        "Overwrite? [y/N]\n█",
        "Password: █",
        "Proceed?\n❯ 1. Yes\n  2. No\n█",
        "❯ Yes\n  No\n> █",
        "Pick one\n1) Yes\n2) No\n#? █",
        "Delete all?\n1) Yes 2) No\n> █",
        "1) red\n2) green\n\n█",
        "#? █",
        "Type DELETE to confirm: █",
        "Type DELETE to confirm:\n█",
        "Name of the branch: █",
        "Really drop it? █",
        "Continue?\n\n█",
        "Shall it go?\n█",
        "Fortfahren? [J/n] █",
        "Weiter (j/n): █",
        "¿Continuar? █",
        "Continuer ? (o/n) █",
        "Продолжить? [д/н] █",
        "続行しますか？ █",
        "続行しますか？\n█",
        "继续（是/否）：█",
        "هل تريد المتابعة؟ █",
        "Συνέχεια; █",
        "Συνέχεια\u037e\n█",
    ],
)
def test_a_question_of_a_line_program_is_known(text: str) -> None:
    assert in_line(text)


@pytest.mark.parametrize(
    "text",
    [
        *("█", ">>> █", "You: █", "User: █", "me> █", "Ask me anything: █", "[user]: █"),
        *("Overwrite? [y/N] n\n█", "Overwrite? [y/N]\nkept\n█", "ready█"),
        *("What shall I do next?\n> █", "Do this:\n1. install it.\n2. run it.\n> █", "3 files:\n█"),
        *(
            "'typed @relay:Bob are you there?'\n@relay:Bob are you there?\n\n█",
            "hi\n@relay:Bob are you\nthere?\n█",
        ),
    ],
)
def test_what_a_line_program_shows_else_is_no_question(text: str) -> None:
    assert not in_line(text)


def enter(prompts: LinePrompts, text: str) -> None:
    rows = text.split("\n")
    prompts.entered(rows, (len(rows[-1]), len(rows) - 1))


def test_a_prompt_that_comes_back_each_turn_is_no_question() -> None:
    prompts = LinePrompts()
    screen = "Bob [1]: hi\nhello\n1) Yes\n2) No\nBob [2]: █"
    assert in_line(screen, prompts)
    enter(prompts, "Bob [1]: ")
    assert in_line(screen, prompts), "a question may be asked again after a wrong answer"
    enter(prompts, "Bob [1]: hi\nhello\nBob [2]: ")
    assert not in_line(screen, prompts)
    # What asks in so many words is never learnt.
    for _ in range(2):
        enter(prompts, "Overwrite it? [y/N] ")
    assert in_line("Overwrite it? [y/N] █", prompts)
    assert in_line("Overwrite it? [y/N]\n> █", prompts)


def test_choices_were_answered_by_the_line_below_them_and_no_others() -> None:
    prompts = LinePrompts()
    asked = "Which?\n❯ 1. Yes\n  2. No\n"
    assert in_line(f"{asked}█", prompts) == DIALOG
    enter(prompts, asked)
    assert not in_line(f"{asked}1\nso be it\nUser: █", prompts)
    assert in_line(f"{asked}1\nno such choice\n{asked}█", prompts) == DIALOG
    assert in_line(f"{asked}█", prompts) == DIALOG, "asked again on a screen that has scrolled"


def test_last_words_of_a_program_for_which_a_person_vouches_may_end_as_they_like() -> None:
    assert not in_line("Name of the branch: █", vouched=True)
    assert not in_line("Shall it go?\n█", vouched=True)
    assert in_line("Shall it go? [y/N] █", vouched=True)


# -- what lies over a dialog for a moment ---------------------------------------------------------

#: Those that stand as they are, whatever the cursor does.
DIALOGS = {name: text for name, text in QUESTIONS.items() if asks(text) == DIALOG}


def covered(rows: list[str], left: int, top: int, width: int, height: int) -> list[str]:
    """``rows`` with a toast over them."""
    made = []
    for at, row in enumerate(rows):
        if top <= at < top + height:
            toast = ("▌ saved a file" + " " * width)[:width]
            row = row.ljust(left)[:left] + toast + row[left + width :]
        made.append(row.rstrip())
    return made


@pytest.mark.parametrize("text", DIALOGS.values(), ids=DIALOGS)
@fuzz(40)
@given(st.integers(5, 40), st.integers(0, 8), st.integers(3, 60), st.integers(1, 6))
def test_a_dialog_stands_while_a_toast_leaves_some_of_it(
    text: str, left: int, top: int, width: int, height: int
) -> None:
    rows = text.replace("█", " ").strip("\n").split("\n")
    watch = StandingQuestion()
    watch.known(rows)
    shown = covered(rows, left, top, width, height)
    whole = [at for at in watch._rows if shown[at] == rows[at]]
    parts = [at for at in watch._rows if sum(map(str.isalnum, rows[at][:left])) >= 5]
    assume(whole or any(len(rows[at]) < 25 for at in parts))
    for _ in range(2):
        assert question_on_screen(shown, (0, 0), shown=False) or watch.stands(shown)
    assert question_on_screen(rows, (0, 0), shown=False)
    for other in TALK.values():
        rows = other.replace("█", " ").strip("\n").split("\n")
        watch.known(text.replace("█", " ").strip("\n").split("\n"))
        assert not watch.stands(rows), "it is gone, and something else is drawn"


def test_a_question_in_words_that_was_answered_stands_no_more() -> None:
    watch = StandingQuestion()
    row = "Overwrite main.py? [y/N]"
    watch.known(["hello", row])
    assert watch.stands(["hello", row[:12] + "▌ saved a fil"])
    for answered in (["hello", row + " n", "kept"], ["hello", row, "kept", "> "], [row, "> "]):
        watch.known(["hello", row])
        assert not watch.stands(answered)
