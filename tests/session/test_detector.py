"""Lines in, finds with ids out."""

from __future__ import annotations

import pytest

from relay.core.source_events import Line, Pause
from relay.directive.grammar import Match
from relay.session import detector as detector_module
from relay.session.detector import DirectiveDetector

RUN = "01K0000000000000000000RUN1"


def detector() -> DirectiveDetector:
    return DirectiveDetector(RUN, 1_700_000_000_000, {"relay", "deploy"})


def said(target: DirectiveDetector, *lines: str, stream: str = "screen") -> list[str]:
    """The ids of what these lines and a pause complete."""
    ids = []
    for line in lines:
        ids += [heard.id for heard in target.feed(Line(stream, line))]
    return ids + [heard.id for heard in target.feed(Pause(stream))]


def test_the_same_words_twice_on_purpose_are_two_messages() -> None:
    first, second, third = said(detector(), *["@relay:Bob OK", ""] * 3)
    assert len({first, second, third}) == 3


def test_a_session_that_hears_the_same_again_finds_the_same_ids() -> None:
    lines = ["@relay:Bob OK", "", "text", "@relay:Bob OK", "", "@deploy:staging now", ""]
    assert said(detector(), *lines) == said(detector(), *lines)


def test_a_restored_hearing_goes_on_in_the_middle_of_a_message() -> None:
    whole = said(detector(), "@relay:Bob OK", "", "@relay:Bob one", "two", "")
    first = detector()
    ids = [
        h.id
        for line in ("@relay:Bob OK", "", "@relay:Bob one")
        for h in first.feed(Line("screen", line))
    ]
    second = detector()
    second.restore(first.state())
    found = second.feed(Line("screen", "two")) + second.feed(Line("screen", ""))
    assert ids + [heard.id for heard in found] == whole
    assert isinstance(found[0].found, Match) and found[0].found.body == "one\ntwo"


def test_what_was_forgotten_gets_a_new_id_when_it_is_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old id would be taken for a repetition, and the message would not be sent."""
    monkeypatch.setattr(detector_module, "COUNTS_MAX", 3)
    said = ["ping", "ping", "a", "b", "c", "ping", "a", "d", "e", "f", "ping"]

    def ids(first: DirectiveDetector, upto: int) -> list[str]:
        second = detector()
        out = []
        for number, body in enumerate(said):
            if number == upto:
                second.restore(first.state())
            target = first if number < upto else second
            for event in (Line("screen", f"@relay:Bob {body}"), Pause("screen")):
                out += [heard.id for heard in target.feed(event)]
        return out

    whole = ids(detector(), len(said))
    assert len(set(whole)) == len(said)
    assert all(ids(detector(), upto) == whole for upto in range(len(said)))


def test_another_run_or_stream_has_other_ids() -> None:
    other = DirectiveDetector("01K0000000000000000000RUN2", 1_700_000_000_000, {"relay"})
    mine = said(detector(), "@relay:Bob OK")
    assert mine != said(other, "@relay:Bob OK")
    assert mine != said(detector(), "@relay:Bob OK", stream="message-1")


def test_streams_do_not_mix() -> None:
    target = detector()
    target.feed(Line("m1", "@relay:Bob one"))
    target.feed(Line("m2", "@relay:Ann two"))
    (first,) = target.feed(Line("m1", ""))
    assert isinstance(first.found, Match) and first.found.body == "one"
