from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from relay.core.errors import NotFound, Timeout, UsageError
from relay.core.message import BODY_MAX, QueueMode
from relay.hooks import context as context_module
from relay.hooks.context import (
    OUTPUT_BYTES_MAX,
    OUTPUT_ENTRIES_MAX,
    Context,
    LaterList,
    Receipt,
    Recent,
    recent_output,
)
from tests.hooks.fakes import IDENTITY, FakeActions, context


def test_it_says_who_the_agent_is_under_both_spellings() -> None:
    ctx = context(FakeActions())
    assert (ctx.agent_id, ctx.agent_name, ctx.session_id) == ("alice", "Alice", "RUN1")
    assert (ctx.agentId, ctx.agentName, ctx.sessionId) == ("alice", "Alice", "RUN1")
    assert (ctx.working_dir, ctx.workingDir, ctx.task) == ("/", "/", "the task")


def test_an_unknown_attribute_names_the_nearest() -> None:
    ctx = context(FakeActions())
    with pytest.raises(AttributeError, match="did you mean 'agent_name'"):
        _ = ctx.agentNam
    with pytest.raises(AttributeError, match="did you mean 'working_dir'"):
        _ = ctx.working_dirs
    assert not hasattr(ctx, "__html__")


def test_actions_are_handed_over_and_give_ids() -> None:
    actions = FakeActions()
    ctx = context(actions)
    assert ctx.inject("to you") == "ID1"
    assert ctx.send(" Bob ", "hello", mode="steer", thread="t1").id == "ID2"
    assert ctx.relay.send("Bob", "hello").wait() == "ID3"
    assert ctx.relay.broadcast("everyone") == "ID4"
    assert ctx.notify("errors", "one") == "ID5"
    assert actions.done == [
        ("inject", "to you"),
        ("send", "Bob", "hello", QueueMode.STEER, "t1"),
        ("send", "Bob", "hello", None, None),
        ("send", "*", "everyone", None, None),
        ("notify", "errors", "one"),
    ]


async def test_agents_are_a_list_and_can_be_awaited() -> None:
    known = [{"name": "Bob"}, {"name": "Eve"}]
    ctx = context(FakeActions(known))
    agents = ctx.relay.agents()
    assert [agent["name"] for agent in agents] == ["Bob", "Eve"]
    assert (len(agents), agents[1], agents[:1]) == (2, {"name": "Eve"}, [{"name": "Bob"}])
    assert (await ctx.relay.agents()) == known


def test_a_refusal_reaches_who_waits() -> None:
    actions = FakeActions()
    actions.refusal = NotFound("nobody is called Bob")
    ctx = context(actions)
    receipt = ctx.send("Bob", "hello")
    assert receipt == "ID1"  # unasked, it says nothing
    with pytest.raises(NotFound):
        receipt.wait()

    async def send() -> None:
        await ctx.send("Bob", "hello")

    with pytest.raises(NotFound):
        asyncio.run(send())


async def test_awaiting_gives_the_id_when_the_answer_comes_later() -> None:
    future: Future[object] = Future()
    asyncio.get_running_loop().call_soon(future.set_result, {})
    assert (await Receipt("ID", future)) == "ID"


async def test_a_handler_that_is_cancelled_does_not_cancel_what_it_sent() -> None:
    future: Future[object] = Future()

    async def send() -> None:
        await Receipt("ID", future)

    task = asyncio.ensure_future(send())
    await asyncio.wait({task}, timeout=0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not future.cancelled()
    future.set_result({})


def test_waiting_ends_and_never_blocks_a_loop() -> None:
    open_future: Future[object] = Future()
    with pytest.raises(Timeout):
        Receipt("ID", open_future).wait(timeout=0)

    async def block() -> None:
        Receipt("ID", open_future).wait()

    with pytest.raises(UsageError) as caught:
        asyncio.run(block())
    assert caught.value.hint == "use await"

    async def count() -> int:
        return len(LaterList(Future()))

    with pytest.raises(UsageError):
        asyncio.run(count())


@pytest.mark.parametrize("text", ["", "  \n", None, 3, b"bytes", "x" * (BODY_MAX + 1)])
def test_a_text_that_cannot_be_sent_is_refused_at_once(text: str) -> None:
    actions = FakeActions()
    ctx = context(actions)
    for action in (ctx.inject, lambda t: ctx.send("Bob", t), lambda t: ctx.notify("x", t)):
        with pytest.raises(UsageError):
            action(text)
    assert actions.done == []


@pytest.mark.parametrize("to", ["", " ", None])
def test_a_message_needs_a_receiver(to: str) -> None:
    with pytest.raises(UsageError, match="receiver"):
        context(FakeActions()).send(to, "hello")
    with pytest.raises(UsageError, match="topic"):
        context(FakeActions()).notify(to, "hello")


def test_a_mode_that_is_none_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(UsageError) as caught:
        context(FakeActions()).send("Bob", "hello", mode="steering")
    assert "'steer'" in caught.value.hint


def test_output_is_bounded_in_number_and_size() -> None:
    output = recent_output()
    for number in range(OUTPUT_ENTRIES_MAX + 5):
        output.append(str(number))
    ctx = Context(IDENTITY, FakeActions(), output=output)
    assert len(ctx.output) == OUTPUT_ENTRIES_MAX
    assert ctx.output[0] == "5"
    output.append("ä" * (OUTPUT_BYTES_MAX // 2))
    assert len(ctx.output) == 1
    output.append("x")
    assert ctx.output == ["x"]
    output.append("y" * (OUTPUT_BYTES_MAX + 1))
    assert ctx.output == []
    output.append("z")
    assert ctx.output == ["z"]


def test_what_a_handler_does_to_the_list_changes_nothing() -> None:
    recent: Recent[str] = Recent(3, 1000)
    ctx = Context(IDENTITY, FakeActions(), output=recent)
    ctx.output.append("x")
    assert ctx.output == []


def test_without_the_feature_that_has_it_a_part_of_ctx_is_missed_by_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_module, "named", lambda table, name: None)
    ctx = Context(IDENTITY, FakeActions())
    with pytest.raises(AttributeError, match="ctx has no 'memory': neither relay nor a feature"):
        _ = ctx.memory


def test_env_is_a_copy() -> None:
    ctx = context(FakeActions())
    ctx.env["HOME"] = "elsewhere"
    assert ctx.env == {"HOME": "/home/alice"}
    assert IDENTITY.env == {"HOME": "/home/alice"}
