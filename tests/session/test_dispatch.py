"""From finds to handlers."""

from __future__ import annotations

import json
from dataclasses import replace

from relay.core.errors import UsageError
from relay.directive.grammar import Match, TooLong, Unclosed
from relay.hooks.hook_types import CallEnd, CallOutcome, HookOutput
from relay.hooks.registry import BUILTIN, Registry
from relay.protocol import frames
from relay.session.detector import Detection
from relay.session.handler_lanes import HandlerLanes
from relay.session.session_commands import (
    AgentNotice,
    InjectText,
    NoteOver,
    PersonNote,
    RunHandlers,
    SendRequested,
)
from relay.session.session_events import HandlersEnded
from tests.session.playbook import find


def dispatcher(*names: str, builtin: str = "") -> HandlerLanes:
    registry = Registry()
    for name in names:
        namespace, _, target = name.partition(":")
        registry.add_pattern(namespace, target or "*", lambda target: None)
    if builtin:
        registry.add_pattern(builtin, "*", lambda target, message: None, source=BUILTIN)
    return HandlerLanes(registry, lambda: "new")


def told(commands: object) -> list[str]:
    assert isinstance(commands, list)
    return [command.text for command in commands if isinstance(command, AgentNotice)]


def test_one_namespace_keeps_its_order_and_another_does_not_wait_for_it() -> None:
    dispatch = dispatcher("log", "deploy")
    first, second, other = (
        find("log", "a", number=1),
        find("log", "b", number=2),
        find("deploy", "c", number=3),
    )
    assert list(dispatch.take(first)) == [RunHandlers(first)]
    assert list(dispatch.take(second)) == []
    assert list(dispatch.take(other)) == [RunHandlers(other)]
    assert list(dispatch.ended(HandlersEnded(first))) == [RunHandlers(second)]
    assert list(dispatch.ended(HandlersEnded(second))) == []
    assert not dispatch.idle
    assert list(dispatch.ended(HandlersEnded(other))) == [] and dispatch.idle


def test_what_handlers_answer_is_injected_and_their_failure_is_told_in_short() -> None:
    dispatch, heard = dispatcher("log"), find("log", "a")
    list(dispatch.take(heard))
    said = CallOutcome("log.py", CallEnd.DONE, result=HookOutput(inject=("done",)))
    failed = CallOutcome[HookOutput]("log.py", CallEnd.RAISED, error="secret detail")
    assert list(dispatch.ended(HandlersEnded(heard, [said, failed]))) == [
        NoteOver("log.py: "),  # what an earlier run of it, or of an earlier text, said
        InjectText("new", "done", heard.found),  # type: ignore[arg-type]
        PersonNote("log.py: secret detail"),
        AgentNotice("@log:a: its handler failed; relay status says why"),
    ]


def test_one_that_is_refused_is_told_and_does_not_stop_its_lane() -> None:
    dispatch = dispatcher("log")
    first, second = find("log", "a", number=1), find("log", "b", number=2)
    list(dispatch.take(first))
    list(dispatch.take(second))
    refused = HandlersEnded(first, error=UsageError("a thread's name is too long"))
    assert list(dispatch.ended(refused)) == [
        AgentNotice("not done: @log:a: a thread's name is too long"),
        RunHandlers(second),
    ]


def test_a_message_is_sent_at_once_unless_the_user_has_handlers_for_it() -> None:
    heard = find("relay", "Bob")
    dispatch = dispatcher(builtin="relay")
    _, sent = dispatch.take(heard)
    assert isinstance(sent, SendRequested) and sent.fields["to"] == ["Bob"] and dispatch.idle
    assert list(dispatcher("relay:Bob", builtin="relay").take(heard)) == [RunHandlers(heard)]


def test_a_target_without_a_handler_is_told_with_what_there_is() -> None:
    (text,) = told(list(dispatcher("deploy:staging").take(find("deploy", "stagging"))))
    assert "nothing handles @deploy:stagging" in text and "staging" in text


def test_mistakes_of_form_are_told() -> None:
    dispatch = dispatcher()
    unclosed = Detection("a", Unclosed("relay", "Bob"))
    (text,) = told(list(dispatch.take(unclosed)))
    assert text.endswith("never closed with a line >>>")
    (text,) = told(list(dispatch.take(replace(unclosed, drawn=True))))
    assert "\\>>>" in text and "blank line" in text
    (text,) = told(list(dispatch.take(replace(unclosed, drawn=True))))
    assert "one paragraph without <<<" in text and "\\>>>" not in text
    list(dispatch.take(Detection("c", Match("relay", "Bob", "x", {}, True, "@relay:Bob <<<"))))
    (text,) = told(list(dispatch.take(replace(unclosed, drawn=True))))
    assert "\\>>>" in text
    (text,) = told(list(dispatch.take(Detection("b", TooLong("relay", "Bob", 2_000_000)))))
    assert "2000000 bytes" in text


def test_what_waits_is_bounded_so_that_it_fits_into_a_checkpoint() -> None:
    dispatch = dispatcher("log")
    finds = [find("log", "x", "y" * 1_000_000, number) for number in range(10)]
    found = [command for one in finds for command in dispatch.take(one)]
    assert len(json.dumps(dispatch.state())) < frames.FRAME_MAX / 2
    assert dispatch.busy and told(found) == []
    # Once there is room the agent learns how many were refused.
    texts = [text for one in finds[:2] for text in told(list(dispatch.ended(HandlersEnded(one))))]
    assert len(texts) == 1 and texts[0].startswith("not done: 8 of what you said, from '@log:x yyy")


def test_many_that_nothing_handles_wait_behind_one_that_runs() -> None:
    dispatch = dispatcher("log:run")
    running = find("log", "run", number=0)
    list(dispatch.take(running))
    for number in range(1, 900):
        assert list(dispatch.take(find("log", "odd", number=number))) == []
    assert len(told(list(dispatch.ended(HandlersEnded(running))))) == 899 and dispatch.idle
