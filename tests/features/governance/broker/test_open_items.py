"""What waits for the person is one list, and is answered in one way: over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.core.errors import NotDelivered, NotFound, RelayError, UsageError
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE, ANSWER
from tests.broker.support import Json, Session
from tests.features.governance.broker.test_approvals import Bench, asked, asking, error_of
from tests.support import unchecked

QUESTION = {
    "id": "00AA11BB22CC33DD",
    "what": "Bash command\nrm -rf build\nDo you want to proceed?",
    "choices": [{"key": "1", "label": "Yes"}, {"key": "2", "label": "No, tell it why"}],
    "chosen": 0,
    "since_ms": 7,
}

MORE: Json = {"agent": "Bob", "kind": "question", "until_ms": None, "about": [], "details": {}}


async def asks(bob: Session, question: Json | None) -> None:
    await unchecked(bob.client).request(
        AGENT_STATE, state="blocked", reason="asks", question=question
    )


def answers(bench: Bench, push: Json, **answer: Any) -> Any:
    return bench.bob.client.request(ANSWER, id=push["id"], **answer)


@pytest.mark.usefixtures("served")
async def test_a_question_is_answered_where_it_stands_and_each_answer_is_stored(home: Home) -> None:
    async with asking(home) as bench:
        await asks(bench.bob, QUESTION)
        [item] = (await bench.person("items"))["rows"]
        assert item == {**QUESTION, **MORE}
        wrong = await error_of(bench.person("item_answer", id="33DD", choice="perhaps"))
        assert isinstance(wrong, UsageError) and wrong.hint == "1: Yes; 2: No, tell it why"
        answering = asyncio.ensure_future(bench.person("item_answer", id="33dd", choice="no"))
        push = await bench.bob.until(lambda: bench.bob.pushes and bench.bob.pushes[-1])
        assert (push["kind"], push["by"]) == ("choose", "person")
        assert push["request"] == {"id": QUESTION["id"], "choice": 1}
        await asks(bench.bob, None)  # its session sees first that the question is gone
        await answers(bench, push, response={"chosen": "No, tell it why", "gone": True})
        told = await answering
        assert told["choice"]["key"] == "2" and told["gone"] and told["item"] == item
        assert (await bench.person("items"))["rows"] == []
        assert isinstance(
            await error_of(bench.person("item_answer", id="33DD", choice="1")), NotFound
        )

        # The session looks again: another question may stand there now.
        await asks(bench.bob, QUESTION)
        late = asyncio.ensure_future(bench.person("item_answer", id="33DD", choice="1"))
        push = await bench.bob.until(lambda: len(bench.bob.pushes) > 1 and bench.bob.pushes[-1])
        error = {"code": "stale", "message": "it is gone", "hint": "", "status": 4}
        await answers(bench, push, error=error)
        assert isinstance(await error_of(late), NotDelivered)
        rows = (await bench.person("history", kind="answer"))["rows"]
        meta = [row["meta"] for row in rows]
        assert [row["body"] for row in rows] == ["No, tell it why", "Yes", "Yes"]
        assert [one.get("failed") for one in meta] == [None, None, "it is gone"]
        assert meta[0]["agent"] == "Bob" and "pid" in meta[0]["by"]


@pytest.mark.usefixtures("served")
async def test_approvals_and_questions_are_one_list_for_the_person_alone(home: Home) -> None:
    async with asking(home) as bench:
        waiting = bench.ask(asked("git push"))
        await bench.waiting()
        await asks(bench.bob, QUESTION)
        question, approval = (await bench.person("items"))["rows"]
        assert question["kind"] == "question" and approval["kind"] == "approval"
        several = [approval["id"], question["id"]]
        alone = await error_of(bench.person("item_answer", id=several, choice="yes"))
        assert isinstance(alone, UsageError) and "yes or no" in alone.message
        forged = await error_of(bench.person("event", kind="answer", body="Yes"))
        assert forged.code == "forbidden"
        await bench.person("item_answer", id=approval["id"][-8:], choice="y", note="once")
        answer = await waiting
        assert answer.granted and answer.note == "once"
        [row] = (await bench.person("history", kind="answer"))["rows"]
        assert (row["body"], row["meta"]["kind"], row["meta"]["note"]) == (
            "Yes",
            "approval",
            "once",
        )


@pytest.mark.usefixtures("served")
async def test_a_question_goes_with_its_agent(home: Home) -> None:
    async with asking(home) as bench:
        async with Session(home, "Ann", run="r2") as ann:
            await asks(ann, QUESTION)
            assert len((await bench.person("items"))["rows"]) == 1
        async with asyncio.timeout(20):
            while (await bench.person("items"))["rows"]:
                await asyncio.sleep(0.02)
        gone = await error_of(bench.person("item_answer", id="33DD", choice="1"))
        assert isinstance(gone, RelayError) and gone.hint == "what waits: relay items"
