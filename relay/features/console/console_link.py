"""The console's connection to the broker: rows of the stream go into the state, and what the person
asks for goes out.

Nothing here keeps the keys waiting: each request is a task of its own with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from relay.core.errors import RelayError, Timeout
from relay.core.visible import visible
from relay.features.console.console_state import ConsoleState
from relay.features.console.console_view import Row, styled_rows_shown
from relay.features.console.console_words import BrokerRequest
from relay.protocol.agent_ops import AGENTS, ASK
from relay.protocol.item_ops import ITEM_ANSWER, ITEMS
from relay.protocol.message_ops import CANCEL, HISTORY, INBOX, READ, SEND
from relay.protocol.op import by_name
from relay.ui.watching import AsyncWatching

Json = dict[str, Any]

#: Messages that are shown from before the console was opened, and of a search.
HISTORY_SHOWN = 200
#: Seconds that the broker may take to say all that again, when the connection is back.
RESTART = 5.0
#: Between two looks at the screen that is shown, and when the agent shows none. Seconds.
LOOK_EVERY, LOOK_AGAIN = 0.5, 2.0
#: Between two looks at the agents of other machines. Seconds.
ELSEWHERE_EVERY = 10.0


class ConsoleLink:
    """Keeps ``state`` at what the broker says. ``changed`` is called when there is something new
    to show: with True for what the person waits for, with False for what goes on by itself."""

    def __init__(
        self,
        watching: AsyncWatching,
        state: ConsoleState,
        changed: Callable[[bool], None],
    ) -> None:
        self.state = state
        self._watching = watching
        self._client = watching.client
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, deadline: float = 30.0) -> None:
        """Learn what there is within so many seconds. Raises RelayError."""
        agents, history, inbox, items, channels = await asyncio.gather(
            self._client.request(AGENTS, deadline=deadline),
            self._client.request(HISTORY, limit=HISTORY_SHOWN, answers=True, deadline=deadline),
            self._client.request(INBOX, deadline=deadline),
            self._client.request(ITEMS, deadline=deadline),
            self._client.request(by_name("channels"), deadline=deadline),
        )
        ids = {row["id"] for row in history["rows"]}
        rows = [row for row in inbox["rows"] if row["id"] not in ids] + history["rows"]
        rows.sort(key=lambda row: row["created_ms"])
        self.state.channels = [visible(str(row["channel"])) for row in channels["rows"]]
        self.state.take_elsewhere(agents.get("elsewhere", []))
        self.state.start_with(agents["agents"], items["rows"], rows)

    async def follow(self) -> None:
        """Take in what happens, for ever. Raises RelayError when the broker refuses."""
        async for rows in self._watching.batches():
            self.state.apply(rows)
            kinds = {row["what"] for row in rows}
            self._changed(bool(kinds & {"item", "connection"}))
            if kinds & {"gap", "connection"} and self._client.connected:
                # Here, not beside: what comes meanwhile waits, as it is newer than the answers.
                await self._reported(self.start(RESTART))

    async def look(self) -> None:
        """Keep the screen of the chosen agent up to date while it is shown, for ever."""
        state = self.state
        while True:
            pause = LOOK_EVERY
            name = state.chosen
            if state.beside == "screen" and name and not state.answering:
                state.can_attach = self.can_attach(name)
                before = state.screen_of, state.screen, state.screen_why
                state.screen, state.screen_why = await self.screen_lines(name)
                state.screen_of = name
                if before != (name, state.screen, state.screen_why):
                    self._changed(before[0] != name)
                pause = LOOK_AGAIN if state.screen_why else LOOK_EVERY
            await asyncio.sleep(pause)

    def can_attach(self, name: str) -> bool:
        """Whether the agent's terminal is relay's to show here, as ``relay spawn`` makes it."""
        return os.path.exists(self._client.home.host_socket(name))

    async def look_elsewhere(self) -> None:
        """Keep the agents of other machines up to date, for ever."""
        while True:
            await asyncio.sleep(ELSEWHERE_EVERY)
            with contextlib.suppress(RelayError):  # follow() says what is wrong
                answer = await self._client.request(AGENTS)
                if self.state.take_elsewhere(answer.get("elsewhere", [])):
                    self._changed(False)

    async def screen_lines(self, name: str) -> tuple[list[Row], str]:
        """What an agent shows now, in its colours, or else why that is unknown."""
        try:
            answer = await self._client.request(
                ASK, agent=name, kind="screen", request={"styled": True}, timeout=5, deadline=8.0
            )
            return styled_rows_shown(answer["response"]["spans"]), ""
        except RelayError as error:
            return [], f"its screen cannot be seen now: {visible(error.message)}"
        except (LookupError, TypeError, ValueError, AttributeError):
            return [], "its screen cannot be seen: its session did not answer with a screen"

    # -- what the person asks for

    def ask(self, request: BrokerRequest, typed: str = "") -> None:
        """Ask, and tell the person of the answer when it comes. ``typed``: a message as it can be
        typed again where nobody gets it."""
        self.spawn(self._ask(request, typed))

    async def _ask(self, request: BrokerRequest, typed: str) -> None:
        try:
            answer = await self._client.request(request.op, **request.fields)
        except Timeout as error:
            said = "; it may still do what you asked for, the traffic will show it"
            raise Timeout(f"{error.message}{said}") from error
        except RelayError:
            self.state.unsent = typed
            raise
        said = request.done
        if request.op == SEND:
            state = self.state
            failed = [one for one in answer["deliveries"] if one["state"] == "failed"]
            stuck = [one for one in answer["deliveries"] if one.get("reason")]
            said = "; ".join(f"{one['to']}: {one['state']} ({one['reason']})" for one in stuck)
            if answer.get("did_you_mean"):
                said += f"; did you mean {answer['did_you_mean']}?"
            state.say(said, failed=bool(failed))
            return
        if request.op == ITEM_ANSWER:
            if self.state.answering == request.fields["id"]:
                self.state.answering = ""
            answers = answer.get("answers", [answer])
            said = "; ".join(
                f"{one['item']['agent']}: {one['choice']['key']} {one['choice']['label']}"
                for one in answers
            )
            said += f"; {request.done}" if request.done else ""
        if request.op == CANCEL:
            late = [one["to"] for one in answer["deliveries"] if one["state"] == "seen"]
            said = f"too late: {', '.join(late)} has seen it" if late else said
        self.state.say(said)

    def find(self, words: str) -> None:
        """Search all messages; the traffic shows what was found."""
        self.spawn(self._find(words))

    async def _find(self, words: str) -> None:
        self.state.say(f"searching for {words} …")
        self._changed(True)
        answer = await self._client.request(HISTORY, grep=words, limit=HISTORY_SHOWN, deadline=60.0)
        rows: list[Json] = [dict(row) for row in answer["rows"] if row.get("ledger") != "agents"]
        self.state.search(words, rows)
        self.state.say("the newest are shown" if answer["more"] else "")

    def read(self, ids: Iterable[str]) -> None:
        """The person has seen these messages to them."""
        ids = [id_ for id_ in ids if id_ in self.state.unread]
        for id_ in ids:
            self.state.unread.pop(id_, None)  # asked for once
        if ids:
            self.spawn(self._read(ids))

    async def _read(self, ids: list[str]) -> None:
        await self._client.request(READ, name=self.state.me, ids=ids)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside the keys; the person is told when it fails."""
        task = asyncio.get_running_loop().create_task(self._reported(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a request of the console's failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _reported(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except RelayError as error:
            self.state.tell(error)
        self._changed(True)

    async def close(self) -> None:
        """Wait for nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
