"""Whatever order the two reports of a message come in, and whatever is lost: heard once, whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.agents.claude.transcript import DISPLAY_GRACE, Messages, MessagesState, TranscriptRecord
from relay.core.source_events import End, Line, SourceEvent
from relay.core.state import from_json, to_json

LINES = st.lists(st.sampled_from(["", "a", "b", "@relay:Bob a", "a b"]), min_size=1, max_size=6)


def pieces_of(text: str, cuts: list[bool]) -> list[str]:
    """As Claude Code sends it: whole lines, the rest with the last piece."""
    pieces = [""]
    for number, line in enumerate(text.splitlines(keepends=True)):
        if number and cuts[number % len(cuts)]:
            pieces.append("")
        pieces[-1] += line
    return pieces


def words(events: list[SourceEvent]) -> dict[str, list[str]]:
    heard: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, Line):
            heard.setdefault(event.stream, []).append(event.text)
    return {stream: "\n".join(lines).strip("\n").split("\n") for stream, lines in heard.items()}


@settings(max_examples=100)
@given(st.data())
def test_every_message_is_heard_once(data: st.DataObject) -> None:
    saved = MessagesState()
    messages, events = Messages(saved), []
    said: list[list[str]] = []
    now = 0.0
    for number in range(data.draw(st.integers(1, 3), label="messages")):
        text = "\n".join(data.draw(LINES, label="lines")).strip("\n") or "x"
        said.append(text.split("\n"))
        cuts = data.draw(st.lists(st.booleans(), min_size=1, max_size=4), label="cuts")
        pieces = pieces_of(text, cuts)
        reports: list[int | None] = [*range(len(pieces)), None]  # None: the transcript
        for report in data.draw(st.permutations(reports), label="order"):
            if report is None:
                record = TranscriptRecord(
                    "said", 0, text=text, message_id=f"api{number}", uuid=f"u{number}"
                )
                events += messages.transcript(record, now)
                continue
            lost = data.draw(st.sampled_from([False, False, False, True]), label="lost")
            if lost:
                continue
            final = report == len(pieces) - 1
            event = {"message_id": f"m{number}", "index": report, "delta": pieces[report]}
            events += messages.display({**event, "final": final, "prompt_id": ""}, now)
        now += DISPLAY_GRACE
        events += messages.settle(now)
        saved = from_json(MessagesState, to_json(saved))
        messages = Messages(saved)
    now += 10 * DISPLAY_GRACE
    events += messages.settle(now)
    assert list(words(events).values()) == said
    assert all(not event.aborted for event in events if isinstance(event, End))
