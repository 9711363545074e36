"""What waits for the person is one list, answered in one way; sessions ask over a real socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import pytest

from relay.broker import ops_query
from relay.broker.async_client import AsyncClient
from relay.broker.client import connect
from relay.broker.server import wall_ms
from relay.core.agent_names import owner_name
from relay.core.errors import NotDelivered, NotFound, RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.features.governance import broker as governance_broker
from relay.features.governance.gate import ApprovalAnswer, ApprovalRequest, BrokerApprover
from relay.features.governance.ops import APPROVAL_ASK, APPROVAL_WITHDRAW
from relay.protocol.agent_ops import AGENT_STATE, ANSWER
from relay.protocol.item_ops import ITEM_ANSWER, ITEMS
from tests.broker.support import Json, Session, kill_broker, stop_broker
from tests.support import unchecked


def asked(what: str = "git push", seconds: float = 60.0, **more: Any) -> ApprovalRequest:
    texts = {"tool": "Bash", "why": "it changes what others see", "intent": "INT-001"}
    places = {"root": "/src/shop", "cwd": "/src/shop"}
    call = {"id": new_ulid(wall_ms()), "what": what, "asked_ms": wall_ms(), "seconds": seconds}
    return ApprovalRequest(**{**call, **texts, **places, **more})


class Bench:
    """Bob's session, and the person at a shell."""

    def __init__(self, home: Home, bob: Session, person: AsyncClient) -> None:
        self.home = home
        self.bob = bob
        self._person = person
        self.approver = BrokerApprover(bob.client)
        self.tasks: list[asyncio.Task[ApprovalAnswer]] = []

    def ask(self, request: ApprovalRequest | None = None) -> asyncio.Task[ApprovalAnswer]:
        self.tasks.append(asyncio.ensure_future(self.approver.ask(request or asked())))
        return self.tasks[-1]

    async def waiting(self, count: int = 1) -> list[Json]:
        """What the person is shown, once it is ``count``."""
        async with asyncio.timeout(20):
            while len(rows := (await self._person.request(ITEMS))["rows"]) != count:
                await asyncio.sleep(0.01)
        return [dict(row) for row in rows]

    async def decide(self, choice: str, *which: object, note: str = "") -> list[Json]:
        """Answer these items."""
        fields: Json = {"id": list(which), "choice": choice, "note": note}
        answer = await self._person.request(ITEM_ANSWER, **fields)
        return [dict(row) for row in answer["answers"]]

    async def person(self, op: str, **fields: Any) -> Json:
        answer: Json = await unchecked(self._person).request(op, **fields)
        return answer


@asynccontextmanager
async def asking(home: Home) -> AsyncIterator[Bench]:
    person = AsyncClient(home, on_push=lambda _: None)
    async with Session(home, "Bob") as bob:
        await person.open()
        bench = Bench(home, bob, person)
        try:
            yield bench
        finally:
            for task in bench.tasks:
                task.cancel()
            await asyncio.gather(*bench.tasks, return_exceptions=True)
            await person.close()


async def error_of(awaited: Awaitable[Any]) -> RelayError:
    with pytest.raises(RelayError) as caught:
        await awaited
    return caught.value


@pytest.mark.usefixtures("served")
async def test_the_person_says_yes_to_one_call_and_no_to_another(home: Home) -> None:
    async with asking(home) as bench:
        push, clean = asked("git push"), asked("git clean -fdx")
        answers = bench.ask(push), bench.ask(clean)
        rows = {row["what"]: row for row in await bench.waiting(2)}
        shown = rows["Bash: git push"]
        assert shown["about"] == ["it changes what others see", "for INT-001, in /src/shop"]
        places = {"root": "/src/shop", "cwd": "/src/shop"}
        texts = {
            "always": "",
            "tool": "Bash",
            "why": "it changes what others see",
            "intent": "INT-001",
        }
        assert shown["details"] == places | texts
        assert shown["until_ms"] - shown["since_ms"] == 60_000
        [agent] = (await bench.person("agents"))["agents"]
        assert agent["reason"] == "waits for your yes or no: relay items"
        await bench.decide("yes", push.id[-8:])
        yes = await answers[0]
        assert yes.granted and yes.by.startswith(owner_name()) and f"(pid {os.getpid()})" in yes.by
        await bench.decide("no", clean.id.lower(), note="keep the notes")
        no = await answers[1]
        assert (no.granted, no.note) == (False, "keep the notes")
        assert await bench.waiting(0) == []
        [agent] = (await bench.person("agents"))["agents"]
        assert agent["reason"] is None
        # One notice for calls that wait together.
        [notice] = (await bench.person("inbox"))["rows"]
        assert notice["from"] == "relay" and notice["thread"] == "approvals"
        assert notice["body"].startswith("Bob waits for your yes or no: Bash: git push\n")


@pytest.mark.usefixtures("served")
async def test_the_person_says_yes_to_all_such_calls_of_an_intent(home: Home) -> None:
    async with asking(home) as bench:
        one, other = asked("git push", always="git push"), asked("git clean")
        answers = bench.ask(one), bench.ask(other)
        rows = {row["what"]: row for row in await bench.waiting(2)}
        assert rows["Bash: git push"]["choices"][2] == {
            "key": "always",
            "label": "Always for INT-001",
        }
        assert "always allows: git push" in rows["Bash: git push"]["about"]
        for which in ([other.id], [one.id, other.id], [other.id, one.id]):
            assert isinstance(await error_of(bench.decide("always", *which)), UsageError)
        await bench.decide("always", one.id)
        answer = await answers[0]
        assert answer.granted and answer.always
        await bench.decide("yes", other.id)
        assert not (await answers[1]).always


@pytest.mark.usefixtures("served")
async def test_without_a_word_it_is_no_when_the_time_is_up(home: Home) -> None:
    async with asking(home) as bench:
        answer = await bench.ask(asked(seconds=0.05))
        assert answer == ApprovalAnswer(False, note="nobody said yes within 0.05 s")
        assert await bench.waiting(0) == []


@pytest.mark.usefixtures("served")
async def test_a_call_that_the_agent_gives_up_waits_no_longer(home: Home) -> None:
    async with asking(home) as bench:
        task = bench.ask()
        [row] = await bench.waiting()
        task.cancel()
        await bench.waiting(0)
        unknown = await error_of(bench.decide("yes", row["id"]))
        assert isinstance(unknown, NotFound) and "relay items" in unknown.hint


@pytest.mark.usefixtures("served")
async def test_a_call_whose_session_has_gone_waits_no_longer(home: Home) -> None:
    async with asking(home) as bench:
        bench.ask()
        await bench.waiting()
        await bench.bob.client.close()
        await bench.waiting(0)
        [agent] = (await bench.person("agents"))["agents"]
        assert agent["reason"] is None


@pytest.mark.usefixtures("served")
async def test_what_an_id_asks_for_never_changes(home: Home) -> None:
    """Else the person's yes to what they saw would become one to what they did not see."""

    async with asking(home) as bench:
        first = asked("ls")
        task = bench.ask(first)
        await bench.waiting()
        for again in (asked("rm -rf .", id=first.id), asked("ls", id=first.id, cwd="/")):
            refused = await bench.ask(again)
            assert not refused.granted and "asked for something else" in refused.note
        await bench.decide("yes", first.id)
        assert (await task).granted
        refused = await bench.ask(asked("rm -rf .", id=first.id))
        assert not refused.granted


@pytest.mark.usefixtures("served")
async def test_an_agent_approves_nothing_and_sees_nothing(home: Home) -> None:
    async with asking(home) as bench:
        task = bench.ask()
        [row] = await bench.waiting()
        inside: Json = {"auth": {"run": "run-1", "token": "secret"}}
        which: Json = {"id": row["id"], "choice": "yes"}
        refused: list[tuple[str, Json]] = [("items", {}), ("item_answer", which)]
        for op, fields in refused:
            error = await error_of(unchecked(bench.bob.client).request(op, **fields))
            assert error.code == "forbidden" and "only the person may" in error.message
            assert (await error_of(bench.person(op, **fields, **inside))).code == "forbidden"
        # Nor does anybody ask, or withdraw, but the session itself.
        call = asdict(asked())
        assert (await error_of(bench.person(APPROVAL_ASK, **call))).code == "forbidden"
        assert not (await bench.person(APPROVAL_WITHDRAW, id=row["id"]))["withdrawn"]
        assert not task.done()


@pytest.mark.usefixtures("served")
async def test_all_that_are_named_are_approved_or_none(home: Home) -> None:
    async with asking(home) as bench:
        one, other = asked("one"), asked("other")
        tasks = bench.ask(one), bench.ask(other)
        await bench.waiting(2)
        for which in ([one.id, "ZZZZ"], [one.id, other.id[-3:]], [one.id, 7], ["Bob"], []):
            error = await error_of(bench.decide("yes", *which))
            assert isinstance(error, NotFound | UsageError)
        await bench.waiting(2)
        assert len(await bench.decide("yes", one.id, other.id[-6:], one.id[-8:])) == 2
        assert [(await task).granted for task in tasks] == [True, True]


@pytest.mark.usefixtures("served")
async def test_what_nobody_would_read_is_refused_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governance_broker, "PER_AGENT_MAX", 2)

    async with asking(home) as bench:
        for wrong in ("", "4qxk", "x" * 26, "É" * 26):
            assert not (await bench.ask(asked(id=wrong))).granted
        long = await bench.ask(asked("x" * (governance_broker.WHAT_MAX + 1)))
        assert not long.granted and "nobody would read" in long.note
        for _ in range(2):
            bench.ask()
        await bench.waiting(2)
        third = await bench.ask()
        assert not third.granted and "2 calls of Bob wait" in third.note


@pytest.mark.usefixtures("served")
async def test_the_notice_shows_no_secret_and_decides_nothing_but_the_list_is_whole(
    home: Home,
) -> None:
    """A mask could hide a command from who approves it, so the list has none."""
    secret = "ghp_" + "a1B2" * 9
    what = f"curl -H 'Authorization: token {secret}' x\n" + "y" * 300

    async with asking(home) as bench:
        request = asked(what)
        bench.ask(request)
        [row] = await bench.waiting()
        assert row["what"] == f"Bash: {what}"
        [notice] = (await bench.person("inbox"))["rows"]
        assert secret not in notice["body"] and notice["body"].count("y") < 250
        assert request.id[-8:] not in notice["body"]


@pytest.mark.usefixtures("served")
async def test_of_more_than_one_answer_holds_the_oldest_are_shown(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops_query, "_ROWS_BYTES", 8000)

    async with asking(home) as bench:
        for number in range(3):
            bench.ask(asked(str(number) * 3000))
            await bench.waiting(min(number + 1, 2))
        answer = await bench.person("items")
        assert [row["what"][6] for row in answer["rows"]] == ["0", "1"] and answer["more"]


async def test_a_killed_broker_is_asked_again_and_the_person_told_once(home: Home) -> None:
    async with asking(home) as bench:
        request = asked()
        task = bench.ask(request)
        [before] = await bench.waiting()
        await asyncio.to_thread(kill_broker, home)
        assert await bench.waiting() == [before]
        assert not task.done()
        await bench.decide("yes", request.id)
        assert (await task).granted
        assert len((await bench.person("inbox"))["rows"]) == 1


async def test_an_answer_that_was_lost_on_its_way_is_given_again(home: Home) -> None:
    async with asking(home) as bench:
        request = asked()
        task = bench.ask(request)
        await bench.waiting()
        await bench.decide("yes", request.id, note="go")
        assert await bench.ask(request) == await task


async def test_where_no_broker_can_be_reached_the_answer_is_no(home: Home) -> None:
    async with Session(home, "Bob") as bob:
        approver = BrokerApprover(bob.client)
    answer = await approver.ask(asked())
    assert not answer.granted and answer.note.startswith("no person could be asked: ")
    stop_broker(home)
    with connect(home) as client:
        assert client.request(ITEMS)["rows"] == []


# -- What waits for the person is one list, and is answered in one way: over a real socket.

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
        assert isinstance(gone, RelayError) and gone.hint == "relay items lists what waits"
