"""``memory_extract``: a session's last words wait here until a model has said what to keep of them.

Accepted means that they are on the disk. What became of them is the broker's affair: the model is
asked by a thread of its own, up to three times; what it found is written down before the first of
it is saved, so that a kill at any moment asks no second time, and saving again changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from relay.broker.aside import Aside
from relay.broker.batch import Batch, Client, ClientRequest, Handler
from relay.broker.extract_files import FILES_MAX, TEXT_MAX, Extraction, Folder, folder_of, split
from relay.core.errors import RelayError, UsageError
from relay.protocol.broker import Json, encode, refusal

if TYPE_CHECKING:
    from relay.broker.directory import Directory
    from relay.core.paths import Home

#: Between one try and the next, in seconds; there is one more try than pauses.
PAUSES = (5.0, 30.0)
_FIELDS = ("cwd", "secrets")

#: (request, agent, run) -> the answer's fields: an ordinary request to the memory, from nobody's
#: connection. Raises RelayError.
Ask = Callable[[Json, str, str], Awaitable[Json]]


class Extracting:
    """Lives in the broker's loop. ``fault`` logs the exception in flight and makes an error of
    it, ``log`` is for what nobody waits for; ``monotonic`` times are seconds."""

    def __init__(
        self,
        home: Home,
        ask: Ask,
        directory: Directory,
        *,
        fault: Callable[[], RelayError],
        log: Callable[[str], None],
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._folder = Folder(folder_of(home), log)
        self._ask = ask
        self._directory = directory
        self._fault = fault
        self._log = log
        self._pauses = pauses
        self._aside = Aside("relay-extract")
        self._all: dict[str, Extraction] = {}  # by run
        self._done: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Semaphore(1)  # one question to a model at a time
        self._error: str | None = None

    def handlers(self) -> dict[str, Handler]:
        """The handler of the op."""
        return {"memory_extract": self._take}

    def start(self) -> None:
        """Go on with what an earlier broker has left; nothing is made or imported without that."""
        found = self._folder.load()
        self._done = self._folder.done()
        for one in found:
            if one.run in self._done:  # killed between the two
                with contextlib.suppress(RelayError):
                    self._folder.remove(one.run)
                continue
            self._all[one.run] = one
            self._error = one.failed or self._error
            if not one.failed and not one.lacks:
                self._spawn(partial(self._work, one))

    def stats(self) -> Json:
        """How many wait for the model or have failed, and what went wrong last."""
        failed = sum(one.failed is not None for one in self._all.values())
        error = self._error
        lacking = next((one for one in self._all.values() if not one.failed and one.lacks), None)
        if error is None and lacking is not None:
            error = f"{lacking.lacks} is gone with the broker that had it: the next session with"
            error += " auto_save that ends brings it"
        waiting = len(self._all) - failed
        return {"waiting": waiting, "failed": failed, "last_error": error if self._all else None}

    async def close(self) -> None:
        """Leave what is not done to the next broker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._aside.close()

    # -- the request

    def _take(self, request: ClientRequest, batch: Batch) -> Json | None:
        client, member = request.client, self._directory.member_of(request.client)
        if member is None:
            raise UsageError("only a registered session can leave its agent's last words")
        one = _extraction(request.fields, member.name, str(member.record.run), batch.now_ms)
        self._hand_over(one)
        if one.run in self._all or one.run in self._done:
            return {"duplicate": True, **self.stats()}
        given_up = self._room()
        client.defer()
        self._all[one.run] = one
        if given_up is not None:
            del self._all[given_up.run]
        accept = partial(self._accept, client, request.n, one, given_up)
        batch.after.append(partial(self._spawn, accept))
        batch.on_failure.append(partial(self._refused, client, one, given_up))
        return None

    def _room(self) -> Extraction | None:
        """What gives way to one more, if anything must. Raises RelayError when all still wait."""
        if len(self._all) < FILES_MAX:
            return None
        failed = [one for one in self._all.values() if one.failed is not None]
        if failed:
            return min(failed, key=lambda one: one.asked_ms)
        # Whoever asked has ended when a person looks: it is told with the counts, too.
        self._error = f"{FILES_MAX} sessions' last words wait already: further ones are not kept"
        self._log(self._error)
        raise RelayError(self._error, hint="relay memory stats says why they wait", code="busy")

    async def _accept(
        self, client: Client, n: int, one: Extraction, given_up: Extraction | None
    ) -> None:
        try:
            if given_up is not None:
                self._log(f"{given_up.agent}'s last words of an earlier session make room")
                await self._aside.call(lambda: self._folder.remove(given_up.run))
            await self._aside.call(lambda: self._folder.write(one))
            line = encode({"n": n, "ok": True, "duplicate": False, **self.stats()})
            self._spawn(partial(self._work, one))
        except RelayError as error:
            del self._all[one.run]
            line = refusal(n, error)
        except Exception:
            del self._all[one.run]
            line = refusal(n, self._fault())
        client.undefer()
        client.send(line)

    def _refused(self, client: Client, one: Extraction, given_up: Extraction | None) -> None:
        """Its batch has failed, and it was told so."""
        client.undefer()
        del self._all[one.run]
        if given_up is not None:
            self._all[given_up.run] = given_up

    def _hand_over(self, giver: Extraction) -> None:
        """Give what ``giver`` has to those that only lack that."""
        for one in self._all.values():
            lacked = one.lacks
            if one.llm == giver.llm:
                one.key = giver.key or one.key
            if one.store_key is not None and one.store_key == giver.store_key:
                one.secret_store = giver.secret_store
            if lacked and not one.lacks and not one.failed:
                self._spawn(partial(self._work, one))

    # -- what follows

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            self._error = self._fault().message

    async def _work(self, one: Extraction) -> None:
        """Try until it is done, or has failed for good."""
        problem: RelayError | None = None
        for pause in (*self._pauses, None):
            try:
                await self._find(one, problem)
                await self._save(one)
                await self._finish(one)
                return
            except RelayError as error:
                problem = error
            except Exception:
                problem = self._fault()
            self._error = f"{one.agent}'s last words: {problem.message}"
            self._log(self._error)
            # A model that refuses the key will do so again; it is asked when another was heard.
            if pause is None or not getattr(problem, "passing", True):
                break
            await asyncio.sleep(pause)
        assert problem is not None
        one.failed = problem.message
        try:
            await self._aside.call(lambda: self._folder.write(one))
        except RelayError as error:  # then the next broker tries again
            self._log(error.message)

    async def _find(self, one: Extraction, problem: RelayError | None) -> None:
        """Ask the model, unless it has answered, and write down what it found."""
        if one.facts is not None:
            return
        async with self._turn:
            found = await self._aside.run(_asked(one, problem))
        known = replace(one, facts=found, text="")
        await self._aside.call(lambda: self._folder.write(known))
        one.facts, one.text = known.facts, ""

    async def _save(self, one: Extraction) -> None:
        store = one.secret_store or one.store
        common = {"op": "memory_save", "scope": "project", "meta": {"auto": True}, **one.fields}
        for fact in one.facts or ():
            request = {**common, "text": fact} | ({"store": store} if store else {})
            try:
                await self._ask(request, one.agent, one.run)
            except RelayError as error:
                if error.code != "secret":  # which is about this text alone
                    raise
                self._log(f"a fact of {one.agent}'s is not saved: {error.message}")

    async def _finish(self, one: Extraction) -> None:
        self._done = [*self._done, one.run]
        await self._aside.call(lambda: self._folder.write_done(self._done))
        await self._aside.call(lambda: self._folder.remove(one.run))
        del self._all[one.run]
        self._log(f"{one.agent}'s last words: facts for the memory: {len(one.facts or ())}")
        # The model answers: those that it did not answer may be asked again.
        for other in [other for other in self._all.values() if other.failed]:
            if other.llm == one.llm and not other.lacks:
                other.failed = None
                self._spawn(partial(self._work, other))
        if not any(other.failed for other in self._all.values()):
            self._error = None


def _extraction(request: Json, agent: str, run: str, now_ms: int) -> Extraction:
    """The request, checked. Raises RelayError."""
    from relay.config import memory_llm as llm

    text, config = request.get("text"), request.get("llm")
    if not isinstance(text, str) or not text.strip():
        raise UsageError("there are no last words")
    if len(text.encode(errors="replace")) > TEXT_MAX:
        raise UsageError(f"last words have at most {TEXT_MAX} bytes", hint="send their end")
    if not isinstance(config, dict):
        raise UsageError("the request has no llm")
    model = llm.from_config(config)
    store, store_key = split(request)
    return Extraction(
        run=run,
        agent=agent,
        text=text,
        asked_ms=now_ms,
        llm=model.public(),
        needs_key=bool(model.key),
        fields={key: request[key] for key in _FIELDS if request.get(key) is not None},
        store=store,
        store_key=store_key,
        key=model.key,
        secret_store=request["store"] if store_key else None,
    )


async def _asked(one: Extraction, problem: RelayError | None) -> list[str]:
    """What the model finds; in the thread. ``problem``: of the last try. Raises RelayError."""
    from relay.config.memory_llm import from_config
    from relay.memory import extraction, llm

    model = from_config({**one.llm, "api_key": one.key})
    again = problem.message if isinstance(problem, extraction.NoFacts) else ""
    answer = await llm.ask(model, *extraction.question(one.text, again))
    return list(extraction.facts(answer))
