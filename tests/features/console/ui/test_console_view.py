"""The console's state and what it shows, without a terminal: rows in, the screen's text out."""

from __future__ import annotations

from typing import Any

import pytest

from relay.core.errors import NotFound, RelayError
from relay.core.visible import columns_of
from relay.features.console.console_state import LINES_MAX, ConsoleState
from relay.features.console.console_view import ASCII, UNICODE, Signs, paint, styled_rows_shown
from relay.features.console.console_words import (
    BrokerRequest,
    OwnVerb,
    RelayVerb,
    completions,
    read,
)
from relay.protocol.item_ops import ITEM_ANSWER
from relay.protocol.message_ops import SEND
from relay.screen.dialogs import ABOVE

pytestmark = pytest.mark.unit

NOW = 10_000_000  # 02:46
VERBS = {"status": "the broker and every agent", "attach": "take an agent's terminal over"}
QUESTION = {
    "id": "q-1",
    "agent": "Bob",
    "kind": "question",
    "what": "Bash command\n  rm -rf build\x1b[2J\nDo you want to proceed?",
    "choices": [{"key": "1", "label": "Yes"}, {"key": "2", "label": "No"}],
    "chosen": 0,
    "since_ms": NOW,
    "until_ms": None,
}
HELD = {**QUESTION, "id": "01HELDHELD", "agent": "Carol", "kind": "held"}
HELD["choices"] = [{"key": "yes", "label": "deliver"}, {"key": "no", "label": "refuse all"}]


def agent(name: str, state: str = "idle", reason: str | None = None, unread: int = 0) -> Any:
    return {
        "name": name,
        "state": state,
        "reason": reason,
        "kind": "claude",
        "cwd": "/home/kim/shop",
        "unread": unread,
        "since_ms": NOW - 190_000,
    }


def said(id_: str, sender: str, to: list[str], body: str) -> dict[str, Any]:
    fields = {"id": id_, "from": sender, "to": to, "body": body, "at_ms": NOW}
    return {"what": "message", "from_kind": "agent", "thread": "t1", **fields}


def delivery(id_: str, to: str, state: str, reason: str | None = None) -> dict[str, Any]:
    return {"what": "delivery", "id": id_, "to": to, "state": state, "reason": reason}


@pytest.fixture
def state() -> ConsoleState:
    """Bob's dialog waits, Carol is limited, Alice has asked Bob, and reported to the person."""
    made = ConsoleState("kim", "box")
    agents = [agent("Alice", "busy"), agent("Bob", "blocked", "asks to use Bash", 1)]
    made.start_with([*agents, agent("Carol", "limited", "until 21:00")], [QUESTION, HELD], [])
    made.apply(
        [
            said("01A", "Alice", ["Bob"], "run the tests, please, " + "and again " * 9),
            delivery("01A", "Bob", "seen"),
            said("01B", "Alice", ["Carol", "Bob"], "who is there?"),
            delivery("01B", "Carol", "held", "the 21st in a row"),
            said("01C", "Alice", ["kim"], "All green.\n漢字\u202e and \x1b]0;pwned\x07"),
            delivery("01C", "kim", "submitted"),
        ]
    )
    return made


def shown(state: ConsoleState, width: int, height: int, signs: Signs = UNICODE) -> list[str]:
    painted = paint(state, width, height, NOW, signs)
    lines = ["".join(text for _, text in row) for row in painted.rows]
    assert len(lines) == height
    assert max(map(columns_of, lines)) <= width
    return lines


@pytest.mark.parametrize(
    "size", [(80, 24), (40, 15), (40, 12), (200, 50), (20, 5)], ids=lambda s: f"{s[0]}"
)
def test_every_size_holds_what_matters_and_no_control(
    state: ConsoleState, size: tuple[int, int]
) -> None:
    text = "\n".join(shown(state, *size))
    assert "3 agents" in text and "? help" in text
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    for page in ("help", "screen"):
        state.beside = page
        shown(state, *size)
    if size[0] >= 40:
        state.beside = ""
        assert "Bob" in text and "? Bob asks: Bash command" in text
        assert "All green." in text and "Carol: held (the 21st in a row)" in text
    if size[0] >= 80:
        assert "1 question waits, 1 message is held" in text and "1 unread" in text
        assert "02:46 ✓ Alice → Bob: run the tests" in text and "asks to use Bash" in text
        assert "rm -rf build^[[2J" in text and "[1 Yes · 2 No]" in text


def test_arrows_type_a_choice_and_leave_other_words_alone(state: ConsoleState) -> None:
    state.answer("q-1")
    assert [state.choice("", 1), state.choice("2", -1), state.choice("1 why", 1)] == [
        *("2", "1", "2 why")
    ]
    assert state.choice("because", 1) == "" == state.choice("2x", 1)
    state.typed = "2"
    assert "> 2  No" in "\n".join(shown(state, 80, 24))


def test_in_few_rows_a_question_is_read_to_its_end_page_by_page(state: ConsoleState) -> None:
    state.answer("q-1")
    read: list[str] = []
    while True:
        painted = paint(state, 20, 5, NOW)
        read += ["".join(text for _, text in row) for row in painted.rows]
        if painted.at_end[0]:
            break
        state.scroll(-painted.page_rows)
    state.page = 99
    assert paint(state, 20, 5, NOW).above < 9  # many steps at once go no farther than its end
    state.page = 0
    first = paint(state, 20, 4, NOW)
    assert not first.read and not first.marked  # its first choice has the focus, and is not there
    state.page, state.typed, state.follows = 1, "2", True  # the choice of the arrows is in sight
    assert any("> 2  No" in row for row in shown(state, 20, 4))
    for text in ("Bash command", "rm -rf build", "Do you want to", "1  Yes", "2  No"):
        assert any(text in row for row in read), text


def test_of_a_flood_that_is_held_the_reason_stands_once_and_nobody_has_it_unread(
    state: ConsoleState,
) -> None:
    for number in range(9):
        state.apply([said(f"02{number}", "Bob", ["Carol"], f"message {number}")])
        state.apply([delivery(f"02{number}", "Carol", "held", "too many")])
    text = "\n".join(shown(state, 80, 30))
    assert text.count("held (too many)") == 1 and "Carol (" not in text
    assert text.count("Bob → Carol: message") == 1 and "message 8" in text
    assert "and others before it" in text and "All green" in text
    state.whole = True
    assert "\n".join(shown(state, 80, 30)).count("Bob → Carol: message") == 9
    state.apply([delivery("020", "Carol", "queued")])
    assert "Carol (1)" in "\n".join(shown(state, 80, 30))


SIZES = [(20, 6), (40, 12), (80, 24), (120, 40), (200, 50)]


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("many", [0, 1, 6, 40])
def test_any_number_of_agents_fits_and_the_chosen_one_is_in_sight(
    many: int, size: tuple[int, int]
) -> None:
    state = ConsoleState("kim", "box")
    state.start_with([agent(f"漢字{n}", reason="🎉" * 30) for n in range(many)], [], [])
    for _ in range(max(1, many)):
        state.choose(1, NOW)
        text = "\n".join(shown(state, *size))
        assert (f"▸{state.chosen}"[:6] if many else "0 agents") in text
    state.open_chosen()
    screen: list[Any] = [[("🎉 wide 漢字 " * 20, {})]] * 60
    state.screen, state.screen_of = styled_rows_shown(screen), state.chosen
    for lift in (0, 9):
        state.lift = lift
        assert ("wide" in "\n".join(shown(state, *size))) == bool(many)


def test_who_needs_somebody_is_listed_first_and_numbers_in_names_count(
    state: ConsoleState,
) -> None:
    state.apply([{"what": "agent", **agent(f"W{n}")} for n in (10, 2)])
    names = [row["name"] for row in state.listed()]
    assert names == ["Bob", "Carol", "Alice", "W2", "W10"]


@pytest.mark.parametrize("size", [(80, 24), (140, 40), (40, 15)], ids=lambda s: f"{s[0]}")
def test_what_a_click_chooses_is_what_stands_there(
    state: ConsoleState, size: tuple[int, int]
) -> None:
    state.apply([{"what": "agent", **agent(f"W{n}")} for n in range(40)])

    def chosen(text: str) -> set[tuple[str, str]]:
        """What clicks on a text choose, wherever it stands."""
        painted = paint(state, *size, NOW)
        lines = ["".join(piece for _, piece in row) for row in painted.rows]
        at = [
            (columns_of(line[: line.index(text)]), n)
            for n, line in enumerate(lines)
            if text in line
        ]
        return {painted.link_at(*one) for one in at}

    assert chosen("▸Bob") == {("agent", "Bob")} and chosen("? Bob asks") == {("item", "q-1")}
    assert chosen("W1 ") <= {("agent", "W1")} and chosen("traffic") == {("", "")}
    assert chosen("Alice → Bob") <= {("", "")}
    state.answer("q-1")
    assert chosen("1  Yes") == {("choice", "1")} and chosen("2  No") == {("choice", "2")}
    assert chosen("Do you want") == {("", "")} == chosen("Enter answers")


def test_of_a_question_whose_beginning_may_be_missing_the_end_is_listed(
    state: ConsoleState,
) -> None:
    state.items["q-1"] = {**QUESTION, "what": f"{ABOVE}\n{'old ' * 60}\nDelete all?"}
    assert "Delete all? [1 Yes" in "\n".join(shown(state, 80, 24))


def test_a_screen_is_shown_in_its_colours_and_without_its_bytes(state: ConsoleState) -> None:
    styles: list[Any] = [
        {"fg": 1, "bold": True},
        {"bg": 33},
        {"fg": "#010203", "faint": True},
        {"bg": 255},
    ]
    spans = [("a\x1b]0;x\x07", styles[0]), *(("漢" * 30, style) for style in styles[1:])]
    state.choose(1, NOW)
    state.beside, state.screen, state.screen_of = (
        "screen",
        styled_rows_shown([spans, [("  ", {})]]),
        state.chosen,
    )
    rows = paint(state, 80, 24, NOW).rows
    shown = next(row for row in rows if "a^[]0;x^G" in row[0][1])
    assert [style for style, _ in shown] == ["bold fg:ansired", "bg:#0087ff", "dim fg:#010203"]
    assert sum(columns_of(text) for _, text in shown) <= 80
    for wrong in ("x", [7], [[["x"]]], [[[1, {}]]], [[["x", {"fg": "red class:x"}]]], [[["x", 1]]]):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            styled_rows_shown(wrong)


def test_a_wider_screen_is_moved_over_and_shown_as_it_is(state: ConsoleState) -> None:
    row = "\u276f\xa0say @relay:Bob hi \ue0b0 " + "漢" * 30 + "the end"
    state.beside, state.screen_of = "screen", state.chosen
    state.screen = styled_rows_shown([[(row, {})]])
    text = "\n".join(shown(state, 60, 24))
    assert "\u276f say @relay:Bob hi \ue0b0 漢" in text and "the end" not in text
    assert f"screen of {state.chosen} (← → columns 1 to 60 of 89)" in text
    state.pan = paint(state, 60, 24, NOW).pan_max
    text = "\n".join(shown(state, 60, 24))
    assert "the end" in text and "columns 30 to 89 of 89" in text


def test_a_higher_screen_shows_its_end_and_can_be_scrolled(state: ConsoleState) -> None:
    state.beside, state.screen_of = "screen", state.chosen
    state.screen = styled_rows_shown([[(f"line {n}", {})] for n in range(40)])
    lines = shown(state, 80, 24)
    assert any(line.startswith("line 39") for line in lines) and "line 0" not in lines
    state.lift = paint(state, 80, 24, NOW).lift_max
    assert "line 0" in [line.strip() for line in shown(state, 80, 24)]
    assert paint(state, 200, 60, NOW).lift_max == 0  # there is room for all of it
    # The gap above an input line at the bottom is one row where room is short.
    state.lift = 0
    texts = ["the answer", *[""] * 36, "────", "> ", "────"]
    state.screen = styled_rows_shown([[(text, {})] for text in texts])
    assert any(line.startswith("the answer") for line in shown(state, 80, 24))


def test_only_agents_that_have_the_words_are_listed_until_esc(state: ConsoleState) -> None:
    state.want("claude LIMIT")
    assert state.chosen == "Carol"
    text = "\n".join(shown(state, 80, 24))
    assert "1 of 3 agents: claude LIMIT" in text and "Bob   " not in text
    state.back()
    assert len(state.listed()) == 3


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_agents_of_other_machines_stand_below_those_here(
    state: ConsoleState, size: tuple[int, int]
) -> None:
    rows = [
        {"name": "Dan@moon", "here": True, "seen_ms": NOW},
        {"name": "Eve@mars\x1b[2J", "here": False, "seen_ms": NOW - 3 * 3_600_000},
    ]
    assert state.take_elsewhere(rows) and not state.take_elsewhere(rows)
    text = "\n".join(shown(state, *size))
    assert "Dan@moon" in text and "away 3h" in text
    assert "\x1b" not in text and "Alice" in text
    state.take_elsewhere([rows[0] | {"name": f"Dan{n}@moon"} for n in range(99)])
    assert all(len(row) <= size[0] for row in shown(state, *size))


def test_what_the_broker_says_at_its_return_takes_the_place_of_all_counts(
    state: ConsoleState,
) -> None:
    assert state.unread and state.items
    state.start_with([agent("Alice")], [], [])
    assert not state.unread and not state.items and list(state.agents) == ["Alice"]


def test_an_answer_stands_below_its_question_when_the_console_is_opened_again(
    state: ConsoleState,
) -> None:
    asked = {"id": "01Q", "kind": "message", "from": "kim", "to": "Alice", "body": "which word?"}
    said_then = {**asked, "id": "01T", "kind": "turn", "from": "Alice", "to": "kim", "body": "plum"}
    turn = {"state": "completed", "started_ms": NOW, "tokens_in": None, "tokens_out": None}
    rows = [
        {**asked, "state": "seen", "created_ms": NOW + 1},
        {**said_then, "state": "turn", "created_ms": NOW + 2000, "cause": "01Q", "meta": turn},
    ]
    for _ in range(2):  # also after the broker was away
        state.start_with([agent("Alice")], [], rows)
        lines = [line.text for line in state.lines][-2:]
        assert lines == ["which word?", "Alice: turn completed after 2.0 s  plum"]


def test_without_utf8_and_colour_all_of_it_is_said_in_ascii(state: ConsoleState) -> None:
    text = "\n".join(line for line in shown(state, 100, 30, ASCII) if "漢" not in line)
    assert "+ Alice -> Bob" in text and "=0/2 Alice -> Carol, Bob" in text
    assert text.replace("·", "").isascii()


def test_what_is_painted_to_the_person_is_what_they_have_seen(state: ConsoleState) -> None:
    assert paint(state, 80, 24, NOW).seen == ("01C",)
    state.apply([said(f"02{n}", "Alice", ["Bob"], "more") for n in range(40)])
    assert paint(state, 80, 24, NOW).seen == ()
    state.scroll(30)
    assert "01C" in paint(state, 80, 24, NOW).seen
    state.apply([said("03", "Alice", ["Bob"], "newer")])
    assert "1 newer" in "\n".join(shown(state, 80, 24))
    state.apply([delivery("01C", "kim", "seen")])
    assert not state.unread


def test_an_agent_called_like_the_end_of_an_id_gets_no_answer_for_it(state: ConsoleState) -> None:
    mine = {**QUESTION, "id": "Q000ABCD", "agent": "Bob"}
    state.apply([{"what": "item", "item": mine, "open": True}])
    assert state.item_of("ABCD") == mine
    named = {**QUESTION, "id": "Q0000002", "agent": "ABCD"}
    state.apply([{"what": "item", "item": named, "open": True}])
    assert state.item_of("ABCD") is None
    assert state.item_of("Q000ABCD") == mine


def test_an_item_is_shown_whole_and_what_is_typed_answers_just_that_one(
    state: ConsoleState,
) -> None:
    state.chosen = "Alice"
    state.answer_next()
    text = "\n".join(shown(state, 80, 24))
    assert "↑↓ or a number, Enter answers, Esc later" in text
    assert "  rm -rf build^[[2J" in text and "> 1  Yes" in text and "  2  No" in text
    asked = read("2", state, VERBS)
    assert asked == BrokerRequest(ITEM_ANSWER, {"id": "q-1", "choice": "2"})
    state.apply([{"what": "item", "item": QUESTION, "open": False, "answer": "No", "by": "kim"}])
    with pytest.raises(NotFound, match="is over"):
        read("2", state, VERBS)
    state.back()
    assert read("2", state, VERBS) == BrokerRequest(SEND, {"to": "Bob", "body": "2"})
    assert "kim answered Bob: No" in "\n".join(shown(state, 80, 24))


@pytest.mark.parametrize(
    ("typed", "op", "fields"),
    [
        ("hello", "send", {"to": "Alice", "body": "hello"}),
        ("@Bob hello you", "send", {"to": "Bob", "body": "hello you"}),
        ("@relay:Bob: hello", "send", {"to": "Bob", "body": "hello"}),
        ("@Bob,Carol hi", "send", {"to": ["Bob", "Carol"], "body": "hi"}),
        ("#build hi", "send", {"to": "#build", "body": "hi"}),
        ("/reply thanks", "send", {"to": "Alice", "body": "thanks", "thread": "t1"}),
        ("/answer --all no", "item_answer", {"id": ["01HELDHELD"], "choice": "no"}),
        ("/answer Bob 1", "item_answer", {"id": "q-1", "choice": "1"}),
        ("/answer carol no too often", None, {"choice": "no", "note": "too often"}),
        ("/cancel 01b", "cancel", {"id": "01B"}),
        ("/interrupt Bob", "ask", {"agent": "Bob", "kind": "interrupt", "request": {}}),
    ],
    ids=lambda value: value if isinstance(value, str) and value[:1] in "@#/" else "",
)
def test_words_become_requests(
    state: ConsoleState, typed: str, op: str | None, fields: dict[str, Any]
) -> None:
    state.chosen = "Alice"
    asked = read(typed, state, VERBS)
    assert isinstance(asked, BrokerRequest)
    assert asked.op == (op or "item_answer")
    left = "left out 1 (Bob): it has choices of its own" if "--all" in typed else ""
    assert asked.done.startswith(left)
    assert fields.items() <= asked.fields.items()


def test_verbs_of_relay_get_the_terminal_and_mistakes_say_what_to_do(state: ConsoleState) -> None:
    assert read("/peek Bob", state, VERBS) == OwnVerb("screen", "Bob")
    assert read('/attach "Bob" --x', state, VERBS) == RelayVerb(("attach", "Bob", "--x"))
    assert read("  ", state, VERBS) is None
    assert read("/sc Bob", state, VERBS) == OwnVerb("screen", "Bob")
    assert read("/kill Bob", state, {**VERBS, "release": ""}) == RelayVerb(("release", "Bob"))
    state.chosen = "Bob"
    mistakes = {
        "/atach x": "/attach",
        "/s": "/screen or /send or /status",
        "/answer 1": "NAME",
        "@Bob": "text",
        "2": "/answer Bob 2",
        "/allow Bob": "/items",
    }
    for typed, hint in mistakes.items():
        with pytest.raises(RelayError) as error:
            read(typed, state, VERBS)
        assert hint in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("/at", ["/attach "]),
        ("@A", ["@Alice "]),
        ("@Bob,C", ["Carol"]),
        ("#", ["#build "]),
        ("/answer Bob ", ["1", "2"]),
        ("/screen c", ["Carol "]),
        ("hello @A", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_completion(state: ConsoleState, typed: str, found: list[str]) -> None:
    state.channels = ["#build"]
    assert [new for new, _, _ in completions(typed, state, VERBS)] == found


def test_everything_that_is_kept_is_bounded(state: ConsoleState) -> None:
    for n in range(LINES_MAX + 10):
        state.apply([said(f"05{n:05}", "Alice", ["Bob"], "x" * 20)])
    state.apply([{"what": "agent", **agent(f"W{n}", "gone")} for n in range(600)])
    items = ({**HELD, "id": f"i{n}"} for n in range(300))
    state.apply([{"what": "item", "open": True, "item": item} for item in items])
    assert len(state.lines) == LINES_MAX and state.message("0500000") is None
    assert len(state.agents) <= 500 and len(state.items) <= 200
