"""``memory_extract``: a session's last words wait here until a model has said what to keep of them.

Accepted means that they are on the disk. A thread then asks the model, up to three times; what it
found is written down before the first of it is saved, so that a kill at any moment asks no second
time, and saving again changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from relay.config import llm as llm_client
from relay.config.llm import from_config
from relay.core.bounded import RecentSet
from relay.core.errors import RelayError, StorageError, UsageError
from relay.core.paths import Home
from relay.features.memory import extraction_prompt
from relay.features.memory.extraction_files import (
    DONE_MAX,
    FILES_MAX,
    TEXT_MAX,
    Extraction,
    ExtractionFolder,
    folder_of,
)
from relay.features.memory.memory_requests import Json, MemoryRequest

#: Seconds between one try and the next; there is one more try than pauses.
PAUSES = (5.0, 30.0)
_FIELDS = ("secrets",)


#: (request, agent, run) -> the answer's fields of another request to the memory. Raises RelayError.
Ask = Callable[[Json, str, str], Json]


class Extractor:
    """Keeps conversations for their model, and saves the facts that it finds in them."""

    def __init__(self, home: Home, ask: Ask, *, pauses: Sequence[float] = PAUSES) -> None:
        self._folder = ExtractionFolder(folder_of(home))
        self._ask = ask
        self._pauses = pauses
        self._changed = threading.Condition()
        self._all: dict[str, Extraction] = {}  # by run
        self._done: RecentSet[str] = RecentSet(DONE_MAX)
        self._working = ""  # the run whose words are with the model
        self._closed = False
        self._error: str | None = None
        self._accepting = ThreadPoolExecutor(1, "memory-extract")

    def start(self) -> None:
        """Go on with what an earlier service has left, in a thread of its own."""
        self._done.update(self._folder.done())
        for one in self._folder.load():
            if one.run in self._done:  # killed between the two
                with contextlib.suppress(RelayError):
                    self._folder.remove(one.run)
                continue
            self._all[one.run] = one
            self._error = one.failed or self._error
        threading.Thread(target=self._work, name="memory-model", daemon=True).start()

    def stats(self) -> Json:
        """How many wait for the model or have failed, and what went wrong last."""
        with self._changed:
            failed = sum(one.failed is not None for one in self._all.values())
            error = self._error
            lacks = next(
                (one.lacks for one in self._all.values() if not one.failed and one.lacks), ""
            )
            if error is None and lacks:
                error = f"{lacks} is gone with the broker that had it: the next session with"
                error += " auto_save that ends brings it"
            waiting = len(self._all) - failed
        return {
            "waiting": waiting,
            "failed": failed,
            "last_error": error if waiting + failed else None,
        }

    def take(self, ask: MemoryRequest) -> Future[Json]:
        """Keep a session's last words; answered once they are on the disk."""
        return self._accepting.submit(self._accept, ask)

    def close(self) -> None:
        """Leave what is not done to the next service."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def settled(self, seconds: float) -> bool:
        """Wait until nothing is left to be tried, at most ``seconds``; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._working and not self._open(), seconds)

    # -- the request

    def _accept(self, ask: MemoryRequest) -> Json:
        one = _extraction(ask)
        with self._changed:
            self._hand_over(one)
            self._changed.notify_all()  # also when there is no room for this one
            duplicate = one.run in self._all or one.run in self._done
            if not duplicate:
                self._make_room()
                self._folder.write(one)
                self._all[one.run] = one
        return {"duplicate": duplicate, **self.stats()}

    def _make_room(self) -> None:
        """Give up what has failed for one more. Raises RelayError when all still wait."""
        if len(self._all) < FILES_MAX:
            return
        failed = [one for one in self._all.values() if one.failed is not None]
        if failed:
            oldest = min(failed, key=lambda one: one.asked_ms)
            self._folder.remove(oldest.run)
            del self._all[oldest.run]
            _log(f"{oldest.agent}'s last words of an earlier session make room")
            return
        # The session that asked has ended when a person looks: the counts tell it, too.
        self._error = f"{FILES_MAX} sessions' last words wait already: further ones are not kept"
        _log(self._error)
        raise RelayError(self._error, hint="relay memory stats says why they wait", code="busy")

    def _hand_over(self, giver: Extraction) -> None:
        """Give what ``giver`` has to those that only lack that."""
        for one in self._all.values():
            if one.llm == giver.llm:
                one.key = giver.key or one.key

    # -- what follows

    def _open(self) -> list[Extraction]:
        return [one for one in self._all.values() if not one.failed and not one.lacks]

    def _work(self) -> None:
        while not self._closed:
            with self._changed:
                now = time.monotonic()
                due = min(self._open(), key=lambda one: one.not_before, default=None)
                if due is None or due.not_before > now:
                    self._working = ""
                    self._changed.notify_all()
                    self._changed.wait(None if due is None else due.not_before - now)
                    continue
                self._working = due.run
            self._try(due)

    def _try(self, one: Extraction) -> None:
        try:
            self._find(one)
            self._save(one)
            self._finish(one)
            return
        except RelayError as error:
            problem = error
        except Exception as error:
            problem = StorageError(f"the memory met a fault: {type(error).__name__}: {error}")
        with self._changed:
            if self._closed:
                return
            one.problem = problem
            self._error = f"{one.agent}'s last words: {problem.message}"
            _log(self._error)
            one.tries += 1
            # A model that refuses the key will do so again; it is asked when another was heard.
            if one.tries <= len(self._pauses) and getattr(problem, "passing", True):
                one.not_before = time.monotonic() + self._pauses[one.tries - 1]
                return
            one.failed = problem.message
            try:
                self._folder.write(one)
            except RelayError as error:  # then the next service tries again
                _log(error.message)

    def _find(self, one: Extraction) -> None:
        """Ask the model, unless it has answered, and write down what it found."""
        if one.facts is not None:
            return
        model = from_config({**one.llm, "api_key": one.key})
        again = one.problem.message if isinstance(one.problem, extraction_prompt.NoFacts) else ""
        question = extraction_prompt.question(one.text, again)
        asked = llm_client.ask(model, *question, form=extraction_prompt.FORM)
        found = list(extraction_prompt.facts(asyncio.run(asked)))
        self._check_open()
        self._folder.write(replace(one, facts=found, text=""))
        one.facts, one.text = found, ""

    def _check_open(self) -> None:
        """Raises RelayError once the next service may have begun with what is left."""
        if self._closed:
            raise RelayError("the service ends")

    def _save(self, one: Extraction) -> None:
        common = {"op": "memory_save", "scope": "project", "meta": {"auto": True}, **one.fields}
        for fact in one.facts or ():
            self._check_open()
            try:
                self._ask({**common, "text": fact}, one.agent, one.run)
            except RelayError as error:
                if error.code != "secret":  # which is about this text alone
                    raise
                _log(f"a fact of {one.agent}'s is not saved: {error.message}")

    def _finish(self, one: Extraction) -> None:
        with self._changed:
            self._done.add(one.run)
            self._folder.write_done(list(self._done))
            self._folder.remove(one.run)
            del self._all[one.run]
            _log(f"{one.agent}'s last words: facts for the memory: {len(one.facts or ())}")
            # The model answers: those that it did not answer may be asked again.
            for other in self._all.values():
                if other.failed and other.llm == one.llm and not other.lacks:
                    other.failed, other.tries, other.not_before = None, 0, 0.0
            if not any(other.failed for other in self._all.values()):
                self._error = None


def _extraction(ask: MemoryRequest) -> Extraction:
    """The request, checked. Raises RelayError."""
    text, config = ask.fields.get("text"), ask.fields.get("llm")
    if ask.agent is None or ask.run is None:
        raise UsageError("only a registered session can leave its agent's last words")
    if not isinstance(text, str) or not text.strip():
        raise UsageError("there are no last words")
    if len(text.encode(errors="replace")) > TEXT_MAX:
        raise UsageError(f"last words have at most {TEXT_MAX} bytes", hint="send their end")
    if not isinstance(config, dict):
        raise UsageError("the request has no llm")
    model = from_config(config)
    return Extraction(
        run=ask.run,
        agent=ask.agent,
        text=text,
        asked_ms=ask.now_ms,
        llm=model.public(),
        needs_key=bool(model.key),
        fields={
            "cwd": ask.own_project,
            **{key: ask.fields[key] for key in _FIELDS if ask.fields.get(key) is not None},
        },
        key=model.key,
    )


def _log(text: str) -> None:
    print(text, flush=True)
