"""What counts as a question of a program's to its person, and what does not."""

from __future__ import annotations

import pytest

from relay.screen.questions import question_in_line, question_on_screen


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
    "key-in-prose": "Then press any key to stop it.\nIt will end by itself.\n\n❯ █",
    "numbered-list": "● Do this:\n  1. install it\n  2. run it\n\n❯ █",
    "to-do-list": "● Plan\n  [x] read\n  [ ] write\n  ☐ test\n\n> █",
    "what-the-person-said": "❯ please do it as I said before, and then\n  tell me\n\n● done\n\n❯ █",
    "bullets": "● Read 3 files\n● Wrote main.py\n● Done\n\n> █",
    "status": "[  OK  ] Started the server\n[main] 3 files\n\n> █",
    "draft": "────────\n❯ is it so? I do not know█\n────────\n  ? for shortcuts",
    "question-of-the-person": "> what is in there?\n\nnothing\n> █",
    "footer": "> █\n\n  esc to interrupt   ctrl+t to show todos",
    "arrow-list": "→ main.py changed because the parser failed\n  two tests run now\n> █",
}


@pytest.mark.parametrize("screen", TALK.values(), ids=TALK)
def test_what_an_agent_says_and_where_it_listens_is_no_question(screen: str) -> None:
    assert not asks(screen)


@pytest.mark.parametrize(
    "text",
    [
        "Overwrite? [y/N] █",
        "Continue (yes/no)?█",
        "Execute? [Y/n/c/e/a/?] █",
        "Press ENTER to continue█",
        "Overwrite? [y/N]\n█",
        "Password: █",
    ],
    ids=["y-n", "yes-no", "many", "enter", "on-the-row-above", "password"],
)
def test_a_question_of_a_line_program_is_known(text: str) -> None:
    rows = text.split("\n")
    assert question_in_line([row.rstrip("█") for row in rows], (rows[-1].index("█"), len(rows) - 1))


@pytest.mark.parametrize(
    "text",
    ["█", ">>> █", "You: █", "Overwrite? [y/N] n\n█", "Overwrite? [y/N]\nkept\n█", "ready█"],
    ids=["nothing", "python", "chat", "answered", "higher-up", "word"],
)
def test_what_a_line_program_shows_else_is_no_question(text: str) -> None:
    rows = text.split("\n")
    at = rows[-1].index("█"), len(rows) - 1
    assert not question_in_line([row.rstrip("█") for row in rows], at)
