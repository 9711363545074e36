"""When a prompt is proven: nothing is open where a shell or an interpreter is typed into."""

from __future__ import annotations

from typing import Any

import pytest

from relay.agents.base import TypingRules
from relay.agents.interpreters import at_prompt, may_be_primary
from relay.protocol import frames
from relay.session.prompt_watch import KEYS_PRESSED, NO_PROMPT, PromptWatch
from relay.session.typing_policy import Guards
from tests.session.test_typing_channel import FakeScreen, FakeTerminal

TYPED, ENTERED, CLEARED, INTERRUPTED = b"t", b"e", b"c", b"i"


class Shell:
    """A shell as its watch sees it: rows, keys, folder; ``shows`` is a prompt at rest."""

    def __init__(
        self, *, cooked: bool = False, comment: str = "", state: dict[str, Any] | None = None
    ) -> None:
        self.screen, self.terminal = FakeScreen(True), FakeTerminal(cooked)
        self.front, self.folder = True, "/home/me/shop"
        rules = TypingRules(
            is_shell=not comment,
            style="comment" if comment else "shell",
            comment=comment,
            at_prompt=at_prompt if comment else may_be_primary,
            in_front=lambda: self.front,
            folder=lambda: self.folder,
            home="/home/me",
        )
        self.watch = PromptWatch(self.screen, self.terminal, rules, state or {})
        self.guards = Guards(self.watch)
        self.now = 0.0

    def shows(self, line: str, behind: str = "") -> Shell:
        self.now += 0.01
        self.screen.rows, self.screen.cursor = ["old output", line + behind], (len(line), 1)
        self.guards.output(self.now)
        self.now += 5.0
        return self

    def press(self, *kinds: bytes) -> Shell:
        for kind in kinds:
            self.now += 0.1
            self.guards.activity(self.guards.sequence + 1, kind, self.now)
        return self

    @property
    def why(self) -> str:
        held = self.watch.blocked(self.now)
        return held.reason if held else ""


def learned(line: str = "me:~/shop$ ", **options: object) -> Shell:
    """A shell whose first prompt was seen, and at which the person has then entered something."""
    return Shell(**options).shows(line).press(TYPED, ENTERED)  # type: ignore[arg-type]


def test_the_first_prompt_is_proven_and_the_same_one_later() -> None:
    shell = Shell().shows("me:~/shop$ ")
    assert not shell.why
    shell.press(TYPED, ENTERED).shows("me:~/shop$ ", behind="          right prompt")
    assert not shell.why


@pytest.mark.parametrize("line", ["$ $ $ ", " $ $ "], ids=["whole", "last row"])
def test_a_prompt_once_for_each_of_several_lines_is_one(line: str) -> None:
    assert not learned("$ ").shows(line).why
    assert learned("$ ").press(TYPED).shows(line).why == KEYS_PRESSED
    assert learned("> ").shows("> > ").why == NO_PROMPT  # as that of an open quote


@pytest.mark.parametrize("line", ["> ", "", "dquote> ", "me:~/shop$ echo ", "    ", "x? ", "y$ "])
def test_any_other_line_is_not(line: str) -> None:
    assert learned().shows(line).why == NO_PROMPT


def test_a_prompt_is_learned_before_its_first_key_though_no_message_came() -> None:
    shell = Shell().shows("$ ")
    assert not shell.press(TYPED, ENTERED).shows("$ ").why


def test_nothing_is_typed_where_a_prompt_may_still_be_drawn() -> None:
    shell = Shell()
    shell.shows("loading")
    shell.now -= 4.99
    assert shell.why
    shell.now += 1.0
    assert not shell.why


@pytest.mark.parametrize("kind", [TYPED, CLEARED], ids=["text", "escape"])
def test_a_key_at_the_prompt_may_have_changed_the_line_editors_mode(kind: bytes) -> None:
    assert learned().shows("me:~/shop$ ").press(kind).shows("me:~/shop$ ").why == KEYS_PRESSED


def test_ctrl_c_ends_whatever_was_open_and_what_then_stands_there_is_a_prompt() -> None:
    shell = learned().shows("> ").press(TYPED, ENTERED).shows("> ").press(INTERRUPTED)
    assert shell.why  # nothing came of it yet
    assert shell.shows("> ^C").why
    assert not shell.shows("me:~/shop (main) 12:07$ ").why
    assert not shell.press(TYPED, ENTERED).shows("me:~/shop (main) 12:07$ ").why


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("me:~/shop$ ", "me:~/other/place$ "),
        ("me:~/shop$ ", "me:/srv$ "),
        ("/home/me/shop # ", "/srv # "),
        ("[shop]% ", "[srv]% "),
        ("~/shop> ", "~/o/place> "),
    ],
    ids=["home", "outside", "whole", "last name", "as fish"],
)
def test_a_prompt_may_show_another_folder(first: str, then: str) -> None:
    shell = learned(first)
    shell.folder = "/srv" if "srv" in then else "/home/me/other/place"
    assert not shell.shows(then).why
    shell.folder = "/home/me/shop"
    assert shell.shows(then).why == NO_PROMPT


@pytest.mark.parametrize(
    "line",
    ["me@host:~/shop$ ", "[shop] 12:07 # ", "➜  shop git:(main) ✗ ", "12:07 ~/shop ❯ "],
    ids=["bash", "clock", "branch", "arrow"],
)
def test_a_line_that_names_the_folder_and_ends_as_prompts_do_is_one(line: str) -> None:
    shell = Shell().press(TYPED, ENTERED).shows(line)  # typed ahead: no prompt was ever learned
    assert not shell.why
    shell.folder = "/srv"
    assert shell.shows(line).why


@pytest.mark.parametrize("line", ["Delete ~/shop? ", "path [~/shop]: ", "shop> ", "~/shop ", "> "])
def test_a_question_that_names_the_folder_is_no_prompt(line: str) -> None:
    assert Shell().press(TYPED, ENTERED).shows(line).why


def test_a_prompt_like_that_of_an_open_quote_is_no_proof() -> None:
    shell = learned("> ")
    assert shell.shows("> ").why == NO_PROMPT
    assert not shell.press(INTERRUPTED).shows("> ").why


@pytest.mark.parametrize(
    "draft", ["me:~/shop$ rm -r $ ", "me:~/shop$ rm it "], ids=["sign", "none"]
)
def test_a_draft_that_ctrl_c_leaves_is_no_prompt(draft: str) -> None:
    shell = learned().shows(draft).press(TYPED, INTERRUPTED).shows(draft)
    assert shell.why == NO_PROMPT  # the shell has another use for that key
    assert shell.press(INTERRUPTED).shows("me:~/shop$ rm it").why  # redrawn
    assert not shell.press(INTERRUPTED).shows("me: ").why  # another prompt, be it without a sign


@pytest.mark.parametrize("question", ["$ ", "copy to ~/shop > "], ids=["like", "folder"])
def test_what_the_kernel_edits_is_a_question_where_the_shell_edits_its_prompt(
    question: str,
) -> None:
    shell = Shell()
    shell.screen.bracketed_paste = False
    shell.shows("$ ").press(TYPED, ENTERED)
    shell.terminal.is_cooked = True
    assert shell.shows(question).why == NO_PROMPT
    after = Shell(state=shell.watch.state())
    after.screen.bracketed_paste, after.terminal.is_cooked = False, True
    assert after.shows(question).why == NO_PROMPT
    shell.terminal.is_cooked = False
    assert not shell.shows("$ ").why


def test_a_script_that_asks_for_a_key_before_the_first_prompt_is_not_answered() -> None:
    shell = Shell()
    shell.screen.bracketed_paste = False
    assert shell.shows("Ignore insecure directories and continue [y] or abort [n]? ").why
    shell.screen.bracketed_paste = True
    assert not shell.shows("me: ").why


def test_a_question_with_the_folders_name_in_a_word_is_no_prompt() -> None:
    shell = learned("[e]$ ")
    shell.folder = "/srv/e"
    assert shell.shows("new name > ").why == NO_PROMPT
    assert not shell.shows("[e] (main) $ ").why


def test_a_prompt_that_another_program_shows_is_none() -> None:
    shell = learned("$ ")
    shell.front = False
    assert shell.shows("$ ").why
    shell.front, shell.screen.bracketed_paste = True, False  # the read builtin, with such a prompt
    assert shell.shows("$ ").why


def test_pastes_of_a_program_that_has_just_ended_are_not_the_shells() -> None:
    shell = Shell(cooked=True)
    shell.screen.bracketed_paste = False
    shell.shows("$ ").press(TYPED, ENTERED)
    shell.screen.bracketed_paste = True  # its last picture; by now the shell is in front again
    shell.shows("Do you want to proceed?")
    shell.screen.bracketed_paste = False
    assert not shell.shows("$ ").why and not shell.watch.pastes
    assert learned("$ ").watch.pastes


def test_keys_that_another_program_has_read_open_nothing() -> None:
    shell = learned("$ ")
    shell.front = False
    shell.press(TYPED, CLEARED)  # in a full-screen program
    shell.front = True
    assert not shell.shows("$ ").why
    shell.front, shell.terminal.left = False, 1
    shell.press(CLEARED)  # typed ahead
    shell.front, shell.terminal.left = True, 0
    assert shell.shows("$ ").why == KEYS_PRESSED


def in_a_pager() -> Shell:
    shell = learned("$ ")
    shell.front = False
    shell.shows(":")
    shell.front = True  # it has ended by the time that the session is told of the key
    return shell


def test_the_key_that_ends_a_pager_opens_nothing() -> None:
    assert not in_a_pager().press(TYPED).shows("$ ").why


@pytest.mark.parametrize(
    "keys", [[TYPED, TYPED], [TYPED, CLEARED], [CLEARED]], ids=["two", "and escape", "escape"]
)
def test_a_further_key_may_have_been_for_the_shell(keys: list[bytes]) -> None:
    assert in_a_pager().press(*keys).shows("$ ").why == KEYS_PRESSED


def test_a_key_at_the_prompt_after_a_program_that_ended_by_itself_is_for_the_shell() -> None:
    assert in_a_pager().shows("$ ").press(TYPED).shows("$ ").why == KEYS_PRESSED


def test_a_question_before_the_first_prompt_is_none() -> None:
    assert Shell(cooked=True).shows("Load the keys? ").why
    assert not Shell(cooked=True).shows("# ").why


@pytest.mark.parametrize("line", ["... ", "(Pdb) x", "   ...> ", "name: ", "> "])
def test_an_interpreter_has_the_same_rule(line: str) -> None:
    shell = learned(">>> ", comment="# ")
    assert not shell.shows(">>> ").why
    assert shell.shows(line).why == "the interpreter is not at its prompt"


def test_a_next_session_knows_the_prompts_of_the_one_before_it() -> None:
    shell = learned("$ ")
    saved = shell.watch.state()
    after = Shell(state=saved).shows("$ ")
    assert after.why
    after.guards.activity(shell.guards.sequence, frames.ENTERED, after.now)
    assert not after.why
