"""Other processes ask a session, and sessions tell of their hooks: over real sockets."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable
from contextlib import ExitStack, asynccontextmanager, closing
from typing import Any

import pytest

from relay.broker import ops_hooks
from relay.broker.client import connect
from relay.broker.connection import OUTPUT_MAX
from relay.broker.ops_hooks import RECORDS_MAX, TEXT_MAX
from relay.broker.start import open_socket
from relay.core.errors import BrokerUnavailable, NotFound, RelayError, Timeout, UsageError
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE, ANSWER, ASK, HOOK_LOG, HOOKS_RAN
from relay.protocol.broker import LINE_MAX, encode
from relay.protocol.broker_ops import HELLO, STATUS
from relay.protocol.message_ops import SEND
from relay.protocol.op import Auth
from tests.broker.support import Json, Session, register, registration, stop_broker
from tests.support import unchecked

pytestmark = pytest.mark.usefixtures("served")

REQUEST = {"correlation_id": "C1", "event_name": "before_tool", "input": {"tool_name": "Bash"}}


def response(correlation_id: str = "C1", **output: Any) -> Json:
    return {"correlation_id": correlation_id, "reason": "", **output}


class Bench:
    """Ann's session, and somebody at a shell who asks it."""

    def __init__(self, home: Home, ann: Session, person: Session) -> None:
        self.home = home
        self.ann = ann
        self.person = person
        self.asked: list[asyncio.Future[Json]] = []

    def ask(
        self, request: object = REQUEST, agent: object = "Ann", kind: object = "hooks", **more: Any
    ) -> asyncio.Future[Json]:
        asked = unchecked(self.person.client).request(
            ASK, agent=agent, kind=kind, request=request, **more
        )
        self.asked.append(asyncio.ensure_future(asked))
        return self.asked[-1]

    async def pushed(self, count: int = 1) -> list[Json]:
        """What Ann's session was asked so far, once it is ``count``."""

        def hooks() -> list[Json]:
            return [push for push in self.ann.pushes if push["push"] == "ask"]

        await self.ann.until(lambda: len(hooks()) >= count)
        return hooks()

    async def answer(self, push: Json, response: object) -> bool:
        answer = await self.ann.client.request(ANSWER, id=push["id"], response=response)
        return bool(answer["taken"])


class Person(Session):
    """A connection that is registered as nobody."""

    async def __aenter__(self) -> Session:
        await self.client.open()
        return self


@asynccontextmanager
async def play(home: Home) -> AsyncIterator[Bench]:
    async with asyncio.timeout(60), Session(home, "Ann") as ann, Person(home, "") as person:
        bench = Bench(home, ann, person)
        try:
            yield bench
        finally:
            for asked in bench.asked:
                asked.cancel()
            await asyncio.gather(*bench.asked, return_exceptions=True)


async def error_of(asked: Awaitable[Any]) -> RelayError:
    with pytest.raises(RelayError) as caught:
        await asked
    return caught.value


async def test_a_request_gets_the_response_of_the_session_and_nothing_is_stored(home: Home) -> None:
    async with play(home) as bench:
        asked = bench.ask(timeout=20)
        [push] = await bench.pushed()
        asked_for = {"kind": "hooks", "by": "person", "request": REQUEST, "timeout": 20.0}
        assert push == {"push": "ask", "id": push["id"], **asked_for}
        assert await bench.answer(push, response(reason="no"))
        assert (await asked)["response"] == response(reason="no")
        # A late second answer is nobody's.
        assert not await bench.answer(push, response(reason="another"))
        bench.ask()
        assert (await bench.pushed(2))[1]["timeout"] == ops_hooks.TIMEOUT
    stop_broker(home)
    with closing(sqlite3.connect(home.ledger)) as ledger:
        for table in ("events", "hook_invocations"):
            assert ledger.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


async def test_who_is_not_there_cannot_be_asked(home: Home) -> None:
    with register(home, "Bob", run="r2") as bob:
        bob.request(AGENT_STATE, state="gone")
    async with play(home) as bench:
        unknown = await error_of(bench.ask(agent="An"))
        assert isinstance(unknown, NotFound)
        assert "no agent is called An" in unknown.message and "Ann" in unknown.hint
        gone = await error_of(bench.ask(agent="Bob"))
        assert gone.code == "no_session" and "Bob is not running" in gone.message
        as_eve: Json = {"from": "Eve"}
        await bench.person.client.request(SEND, to="Ann", body="x", **as_eve)
        assert "Eve is a person" in (await error_of(bench.ask(agent="eve"))).message
        for name in (None, "", 7, "relay", "a b"):
            assert isinstance(await error_of(bench.ask(agent=name)), UsageError)


async def test_an_agent_has_no_hooks_run_by_asking(home: Home) -> None:
    async with play(home) as bench:
        for token in ("wrong", "secret"):
            refused = await error_of(bench.ask(auth={"run": "run-1", "token": token}))
            assert refused.code == "forbidden" and "only the person" in refused.message
        assert bench.ann.pushes == []


async def test_an_agent_asks_its_own_session_for_its_intent_and_no_other_one(home: Home) -> None:
    async with play(home) as bench:
        asks = {"kind": "governance", "auth": {"run": "run-1", "token": "secret"}}
        asked = bench.ask(agent=None, **asks)
        [push] = await bench.pushed()
        assert (push["by"], push["kind"]) == ("agent", "governance")
        assert await bench.answer(push, {"text": "done"})
        assert (await asked)["response"] == {"text": "done"}
        refused = await error_of(bench.ask(agent="Bob", **asks))
        assert refused.code == "forbidden" and "another agent's intent" in refused.message
        nobody = await error_of(bench.ask(agent=None, kind="governance"))
        assert isinstance(nobody, UsageError)


async def test_after_its_time_the_asker_is_told_and_a_late_answer_is_dropped(home: Home) -> None:
    async with play(home) as bench:
        late = await error_of(bench.ask(timeout=0.05))
        assert isinstance(late, Timeout) and "Ann did not answer within 0.05 s" in late.message
        [push] = await bench.pushed()
        assert not await bench.answer(push, response())
        # The connection is as good as before.
        asked = bench.ask()
        assert await bench.answer((await bench.pushed(2))[1], response(reason="second"))
        assert (await asked)["response"]["reason"] == "second"
        for seconds in (0, -1, 120.5, float("nan")):
            error = await error_of(bench.ask(timeout=seconds))
            assert "up to 120" in error.message


async def test_two_with_the_same_correlation_id_are_two(home: Home) -> None:
    async with play(home) as bench:
        first, second = bench.ask(), bench.ask()
        one, two = await bench.pushed(2)
        assert await bench.answer(two, response(reason="two"))
        assert (await second)["response"]["reason"] == "two"
        assert not first.done()
        assert await bench.answer(one, response(reason="one"))
        assert (await first)["response"]["reason"] == "one"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "garbage",
    [None, "yes", [], 1, {"deep": nested(200)}],
    ids=["none", "text", "list", "number", "deep"],
)
async def test_garbage_from_the_session_is_an_internal_error(home: Home, garbage: object) -> None:
    async with play(home) as bench:
        asked = bench.ask()
        [push] = await bench.pushed()
        assert await bench.answer(push, garbage)
        assert (await error_of(asked)).code == "internal_error"


async def test_an_error_of_the_session_is_the_askers(home: Home) -> None:
    async with play(home) as bench:
        asked = bench.ask(kind="approval")
        [push] = await bench.pushed()
        assert push["kind"] == "approval"
        error = {"code": "unsupported_event", "message": "no", "hint": "yes?", "status": 2}
        await bench.ann.client.request(ANSWER, id=push["id"], error=error)
        told = await error_of(asked)
        assert isinstance(told, UsageError)
        assert (told.code, told.message, told.hint) == ("unsupported_event", "no", "yes?")
        asked = bench.ask(kind="approval")
        push = (await bench.pushed(2))[1]
        odd = {"code": "odd", "message": [], "status": [2], "details": "no"}
        assert (await bench.ann.client.request(ANSWER, id=push["id"], error=odd))["taken"]
        assert (await error_of(asked)).code == "odd"


def test_a_response_that_fits_into_no_line_is_an_internal_error(home: Home) -> None:
    # Shorter when it comes than when it would go: 1e15 is written out as 1000000000000000.0.
    count = LINE_MAX // 6
    answer = b'{"n":5,"op":"answer","id":"%s","response":{"correlation_id":"","success":true,'
    floats = b'"output":{"x":[' + b",".join([b"1e15"] * count) + b"]}}}\n"
    assert len(answer) + len(floats) < LINE_MAX < 17 * count
    with register(home, "Ann") as ann, closing(open_socket(home)) as asker:
        request = {"event_name": "idle", "input": {}}
        asked = {"op": "ask", "agent": "Ann", "kind": "hooks", "request": request}
        asker.sendall(encode({"n": 1, **asked}))
        push = ann.next_push(20)
        assert push is not None
        raw = ann._socket
        assert raw is not None
        raw.settimeout(20)
        raw.sendall(answer % push["id"].encode() + floats)
        asker.settimeout(20)
        asker.setblocking(True)
        with open(asker.fileno(), "rb", closefd=False) as lines:
            line = lines.readline()
    assert b'"code":"internal_error"' in line and b"bytes" in line


def test_half_a_character_is_refused_on_both_ways(home: Home) -> None:
    with register(home, "Ann") as ann, closing(open_socket(home)) as asker:
        asker.settimeout(20)
        asker.setblocking(True)
        with open(asker.fileno(), "rb", closefd=False) as lines:
            asks = b'{"n":%d,"op":"ask","agent":"Ann","kind":"hooks","request":%s}\n'
            asker.sendall(asks % (1, b'{"input":"\\ud800"}'))
            assert b'"code":"usage"' in lines.readline()
            asker.sendall(asks % (2, b"{}"))
            push = ann.next_push(20)
            assert push is not None
            raw = ann._socket
            assert raw is not None
            said = b'{"correlation_id":"","success":true,"output":{"x":"\\ud800"}}'
            asked = b'{"n":9,"op":"answer","id":"%s","response":%s}\n'
            raw.sendall(asked % (push["id"].encode(), said))
            assert b"half of a surrogate pair" in lines.readline()


async def test_only_the_session_that_was_asked_answers(home: Home) -> None:
    async with play(home) as bench:
        asked = bench.ask()
        [push] = await bench.pushed()
        forged = {"id": push["id"], "response": response()}
        error = await error_of(bench.person.client.request(ANSWER, **forged))
        assert error.code == "forbidden"
        async with Session(home, "Bob", run="r2") as bob:
            assert (await error_of(bob.client.request(ANSWER, **forged))).code == "forbidden"
        unknown = await bench.person.client.request(ANSWER, id="x", response=1)
        assert unknown["taken"] is False
        assert not asked.done()
        assert await bench.answer(push, response(reason="mine"))
        assert (await asked)["response"]["reason"] == "mine"


async def test_a_session_that_goes_away_ends_its_requests_also_when_it_returns(home: Home) -> None:
    async with play(home) as bench:
        async with Session(home, "Bob", run="r2") as bob:
            asked = bench.ask(agent="Bob")
            await bob.until(lambda: bob.pushes)
        gone = await error_of(asked)
        assert gone.code == "session_gone" and "Bob went away" in gone.message
        away = await error_of(bench.ask(agent="Bob"))
        assert away.code == "no_session" and "cannot be reached" in away.message
        async with Session(home, "Bob", run="r2") as again:
            answer = await again.client.request(ANSWER, id=bob.pushes[0]["id"], response=response())
            assert answer["taken"] is False
            # One that takes over the agent's connection ends what the other was asked.
            asked = bench.ask(agent="Bob")
            await again.until(lambda: again.pushes)
            with closing(open_socket(home)) as other:
                other.sendall(encode({"n": 1, "op": "register", **registration("Bob", "r2")}))
                assert (await error_of(asked)).code == "session_gone"


async def test_an_asker_that_goes_away_is_forgotten(home: Home) -> None:
    async with play(home) as bench:
        raw = open_socket(home)
        for n in range(ops_hooks.PER_AGENT_MAX):
            asked = {"op": "ask", "agent": "Ann", "kind": "hooks", "request": REQUEST}
            raw.sendall(encode({"n": n, **asked}))
        pushes = await bench.pushed(ops_hooks.PER_AGENT_MAX)
        assert (await error_of(bench.ask())).code == "busy"
        raw.close()

        async def room() -> Any:
            while True:
                asked = bench.ask()
                done, _ = await asyncio.wait({asked}, timeout=0.05)
                if not done:
                    return asked
                assert (await error_of(asked)).code == "busy"

        asked = await room()
        assert not await bench.answer(pushes[0], response())
        last = (await bench.pushed(ops_hooks.PER_AGENT_MAX + 1))[-1]
        assert await bench.answer(last, response())
        assert (await asked)["response"] == response()


async def test_what_one_agent_and_all_of_them_have_in_hand_is_bounded(home: Home) -> None:
    async with play(home) as bench:
        big = {**REQUEST, "input": {"x": "y" * (ops_hooks.REQUEST_MAX - 500)}}
        most = ops_hooks.AGENT_BYTES_MAX // ops_hooks.REQUEST_MAX
        for _ in range(most):
            bench.ask(big)
        await bench.pushed(most)
        assert (await error_of(bench.ask(big))).code == "busy"
        large = {**REQUEST, "input": {"x": "y" * ops_hooks.REQUEST_MAX}}
        assert (await error_of(bench.ask(large))).code == "too_large"
        assert "nested" in (await error_of(bench.ask(nested(200)))).message
        assert "kind" in (await error_of(bench.ask(kind=None))).message
        # Others are asked all the same.
        async with Session(home, "Bob", run="r2") as bob:
            asked = bench.ask(agent="Bob")
            await bob.until(lambda: bob.pushes)
            answer = {"id": bob.pushes[0]["id"], "response": response()}
            assert (await bob.client.request(ANSWER, **answer))["taken"]
            assert (await asked)["response"] == response()


def test_a_session_that_does_not_read_is_asked_no_more_and_not_cut_off(home: Home) -> None:
    big = {**REQUEST, "input": {"x": "y" * (ops_hooks.REQUEST_MAX - 500)}}
    tries = 2 * OUTPUT_MAX // ops_hooks.REQUEST_MAX
    errors: set[str] = set()
    with register(home, "Bob") as bob, connect(home) as client:
        for _ in range(tries):
            with pytest.raises(RelayError) as caught:
                client.request(ASK, agent="Bob", kind="hooks", request=big, timeout=0.02)
            errors.add(caught.value.code)
        assert errors == {"timeout", "busy"}
        assert bob.request(HELLO)["pid"]
        # It has read everything now, and is asked again.
        with pytest.raises(Timeout):
            client.request(ASK, agent="Bob", kind="hooks", request=REQUEST, timeout=0.02)


def test_there_is_an_end_to_what_all_agents_have_in_hand(home: Home) -> None:
    full, rest = divmod(ops_hooks.PENDING_MAX, ops_hooks.PER_AGENT_MAX)
    assert rest == 0
    with ExitStack() as stack:
        for n in range(full + 1):
            stack.enter_context(register(home, f"A{n}", run=f"r{n}"))
        # Each on a connection of its own: one connection may not wait for that many answers.
        for n in range(full):
            raw = stack.enter_context(closing(open_socket(home)))
            raw.settimeout(20)
            fields = {"op": "ask", "agent": f"A{n}", "kind": "hooks", "request": REQUEST}
            raw.sendall(
                b"".join(encode({"n": m, **fields}) for m in range(ops_hooks.PER_AGENT_MAX))
            )
            raw.sendall(encode({"n": 99, "op": "hello"}))
            raw.setblocking(True)
            with open(raw.fileno(), "rb", closefd=False) as lines:
                assert b'"n":99' in lines.readline()
        with connect(home) as client, pytest.raises(RelayError, match="512 requests") as caught:
            client.request(ASK, agent=f"A{full}", kind="hooks", request=REQUEST)
        assert caught.value.code == "busy"


async def test_a_broker_that_ends_is_not_asked_again_in_the_asker_s_name(home: Home) -> None:
    """Hooks do things: a client must not run them twice by itself."""
    async with play(home) as bench:
        asked = bench.ask()
        await bench.pushed()

        def at_a_shell() -> None:
            with connect(home) as client:
                client.request(ASK, agent="Ann", kind="hooks", request=REQUEST)

        shell = asyncio.ensure_future(asyncio.to_thread(at_a_shell))
        await bench.pushed(2)
        await bench.person.client.request(STATUS)
        await asyncio.to_thread(stop_broker, home)
        assert isinstance(await error_of(shell), BrokerUnavailable)
        assert isinstance(await error_of(asked), BrokerUnavailable)
        assert len(await bench.pushed(2)) == 2


def record(hook: str = "guard", **more: Any) -> Json:
    return {
        "event": "BeforeTool",
        "hook": hook,
        "kind": "function",
        "source": "relay.config.py",
        "duration": 0.25,
        "success": True,
        "exit_status": None,
        "stdout": "",
        "stderr": "",
        "error": "",
        "correlation_id": "c1",
        "decision": "",
        **more,
    }


def test_what_ran_is_found_newest_first_also_after_a_restart(home: Home) -> None:
    failed = record("lint", success=False, error="it crashed", exit_status=3, event="AfterTool")
    with register(home, "Ann", run="r1") as ann, register(home, "Bob", run="r2") as bob:
        assert ann.request(HOOKS_RAN, records=[record(), failed])["stored"] == 2
        assert bob.request(HOOKS_RAN, records=[record(decision="deny")])["stored"] == 1
    stop_broker(home)
    with connect(home) as client:
        rows = client.request(HOOK_LOG)["rows"]
        assert [(row["agent"], row["hook"]) for row in rows] == [
            ("Bob", "guard"),
            ("Ann", "lint"),
            ("Ann", "guard"),
        ]
        assert rows[0]["decision"] == "deny" and rows[0]["run"] == "r2"
        assert rows[1]["exit_status"] == 3 and rows[1]["success"] is False
        assert rows[2]["duration"] == 0.25 and rows[2]["correlation_id"] == "c1"


def test_a_question_narrows_it_down(home: Home) -> None:
    with register(home, "Ann", run="r1") as ann, connect(home) as client:
        ann.request(HOOKS_RAN, records=[record(f"h{n}", success=n != 3) for n in range(6)])

        def hooks(**fields: Any) -> list[str]:
            return [row["hook"] for row in client.request(HOOK_LOG, **fields)["rows"]]

        assert hooks(failed=True) == ["h3"]
        assert hooks(hook="H4") == ["h4"]
        assert hooks(event="AfterTool") == [] and hooks(agent="ann", limit=1) == ["h5"]
        assert client.request(HOOK_LOG, limit=2)["more"]
        for limit in (0, 1001, "1", True):
            with pytest.raises(UsageError, match="limit"):
                hooks(limit=limit)


def test_only_a_session_tells_and_nonsense_is_refused_or_cut(home: Home) -> None:
    with register(home, "Ann", run="r1") as ann, connect(home) as client:
        with pytest.raises(RelayError, match="only an agent's session"):
            client.request(HOOKS_RAN, records=[record()])
        with pytest.raises(RelayError, match="only an agent's session"):
            # A tool of the agent's own, which could make up what guards it.
            auth: Auth = {"run": "r1", "token": "secret"}
            client.request(HOOKS_RAN, records=[record()], auth=auth)
        for records in (None, "x", [1], [record()] * (RECORDS_MAX + 1)):
            with pytest.raises(UsageError):
                unchecked(ann).request(HOOKS_RAN, records=records)
        ann.request(HOOKS_RAN, records=[record(stdout="x" * 10_000, duration="soon", hook="")])
        [row] = client.request(HOOK_LOG)["rows"]
        assert len(row["stdout"]) == TEXT_MAX
        assert (row["duration"], row["hook"]) == (0.0, "")
