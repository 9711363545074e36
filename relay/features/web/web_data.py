"""What the web page shows and does: a client of the broker and a reader of the ledger.

What it asks the broker, this process asks, which the person has started:
``relay.features.web.web_server`` sees to it that nobody else comes here."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any

from relay import __version__
from relay.broker.async_client import AsyncClient
from relay.core.agent_names import owner_name
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.message import State
from relay.core.paths import Home
from relay.features.cost import verbs as cost
from relay.features.cost.ops import USAGE
from relay.features.cost.prices import user_prices
from relay.features.governance.governance_store import GovernanceStore
from relay.features.governance.governed_paths import governed_root
from relay.features.governance.trace import Trace
from relay.features.governance.trace_records import trace_line
from relay.ledger import reading
from relay.protocol.agent_ops import AGENTS, ASK
from relay.protocol.item_ops import ITEM_ANSWER, ITEMS, waiting_words
from relay.protocol.message_ops import SHOW, FullMessage
from relay.ui.row_view import words
from relay.ui.watching import AsyncWatching

#: The rows of the stream that the page draws itself.
_DRAWN = ("message", "delivery", "agent", "turn", "item", "connection")
#: Deliveries that a page is given at first, and each time that it asks for older ones.
PAGE = 400
#: Characters of a body in the stream; the page asks for the whole when it shows a message.
BODY_SHOWN = 4_000
#: Governed projects that are shown, and the newest records of each.
PROJECTS_MAX, TRACE_SHOWN = 20, 200
#: Seconds between two looks for the agents of other machines.
ELSEWHERE_EVERY = 10.0
#: What is drawn as one point of a chart, by the hours that the chart shows. Seconds.
BUCKETS = {1: 60, 24: 1800, 168: 6 * 3600}

Json = dict[str, Any]


class WebData:
    """Answers the page's questions, and tells it what happens."""

    def __init__(self, home: Home, client: AsyncClient) -> None:
        self._home = home
        self._client = client
        self._asked: dict[str, Callable[[Json], Awaitable[Json]]] = {
            "older": self._older,
            "message": self._message,
            "screen": self._screen,
            "answer": self._answer,
            "send": self._send,
            "figures": self._figures,
            "traces": self._traces,
        }

    async def ask(self, name: str, fields: Json) -> Json:
        """The answer to one question. Raises RelayError."""
        asked = self._asked.get(name)
        if asked is None:
            raise NotFound(f"the page asks for {name}, which this server does not know")
        return await asked(fields)

    # -- the stream

    async def follow(self, together: float, alive_after: float) -> AsyncGenerator[Json, None]:
        """{"all": …}: what there is; then {"rows": …}: what happened, as the broker's ``watch``
        tells it; after a gap all again. "waiting", where that is news, says how much waits for the
        person, and "elsewhere", now and then, the agents of other machines. Something at least
        every ``alive_after`` seconds."""
        async with AsyncWatching(self._home) as watching:
            yield (told := {"all": await self._all()})
            items = {one["id"]: one for one in told["all"]["items"]}
            batches = watching.batches()
            coming = asyncio.ensure_future(anext(batches))
            looked = time.monotonic()
            try:
                while True:
                    await asyncio.wait({coming}, timeout=alive_after)
                    rows = coming.result() if coming.done() else []
                    if any(row["what"] == "gap" for row in rows):
                        yield (told := {"all": await self._all()})
                        items = {one["id"]: one for one in told["all"]["items"]}
                    happened: Json = {"rows": [_short(row) for row in rows]}
                    for row in rows:
                        if row["what"] == "item":
                            items.pop(row["item"]["id"], None)
                            if row["open"]:
                                items[row["item"]["id"]] = row["item"]
                            happened["waiting"] = waiting_words(items.values())
                    if time.monotonic() - looked > ELSEWHERE_EVERY:
                        looked = time.monotonic()
                        with suppress(RelayError):  # the stream says what is wrong
                            agents = await self._client.request(AGENTS, deadline=5)
                            happened["elsewhere"] = agents.get("elsewhere", [])
                    yield happened
                    if coming.done():
                        await asyncio.sleep(together)
                        coming = asyncio.ensure_future(anext(batches))
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _all(self) -> Json:
        agents = await self._client.request(AGENTS)
        items = await self._client.request(ITEMS)
        return {
            "agents": agents["agents"],
            "elsewhere": agents.get("elsewhere", []),
            "items": items["rows"],
            "waiting": waiting_words(items["rows"]),
            **await self._older({}),
            "me": owner_name(),
            "version": __version__,
            "now_ms": int(time.time() * 1000),
        }

    # -- questions

    async def _older(self, fields: Json) -> Json:
        before, text = fields.get("before"), fields.get("text", "")
        if before is not None and type(before) is not int:
            raise UsageError("before is the number of an event")
        if not isinstance(text, str):
            raise UsageError("what is searched for is a text")
        rows, more = await asyncio.to_thread(
            reading.page, self._home.ledger, before=before, limit=PAGE, text=text
        )
        ids = list({row["id"] for row in rows})
        answers = await asyncio.to_thread(reading.answers, self._home.ledger, ids)
        found = {"messages": rows, "answers": answers}
        return {name: [_short(row) for row in some] for name, some in found.items()} | {
            "more": more
        }

    async def _message(self, fields: Json) -> Json:
        message = (await self._client.request(SHOW, id=str(fields.get("id"))))["message"]
        ways = message["deliveries"]
        until = max([message["created_ms"], *(one["updated_ms"] for one in ways)])
        agents = list(dict.fromkeys([message["from"], *(one["to"] for one in ways)]))[:50]
        hooks = await asyncio.to_thread(
            reading.hooks_on_the_way, self._home.ledger, message["id"], agents, until
        )
        return {"message": message, "steps": path_steps(message, hooks)}

    async def _screen(self, fields: Json) -> Json:
        answer = await self._client.request(
            ASK,
            agent=str(fields.get("agent")),
            kind="screen",
            request={"styled": True},
            timeout=10,
        )
        screen: Json = answer["response"]
        return screen

    async def _answer(self, fields: Json) -> Json:
        """Answer an item, which the broker checks: it must still stand as the person saw it."""
        id_, choice, note = (fields.get(name) for name in ("id", "choice", "note"))
        if not (isinstance(id_, str) and isinstance(choice, str) and isinstance(note, str)):
            raise UsageError("an answer has the item's id, a choice and a note")
        answer = await self._client.request(
            ITEM_ANSWER, id=id_, choice=choice, note=note or None, deadline=50
        )
        return {"choice": answer["choice"], "by": answer["by"]}

    async def _send(self, fields: Json) -> Json:
        """A message of the person's, to a name or several: agents, #channels, or * for everyone."""
        to, body = fields.get("to"), fields.get("body")
        names = [to] if isinstance(to, str) else to
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UsageError("a message has receivers")
        if not isinstance(body, str):
            raise UsageError("a message has a text")
        answer = await self._client.send(names, body)
        return {"id": answer["id"], "deliveries": answer["deliveries"]}

    async def _traces(self, fields: Json) -> Json:
        agents = (await self._client.request(AGENTS))["agents"]
        folders = {cwd for row in agents if (cwd := str(row["cwd"] or "")) and "\0" not in cwd}
        return {"projects": await asyncio.to_thread(governed_traces, self._home, folders)}

    async def _figures(self, fields: Json) -> Json:
        hours = fields.get("hours")
        if hours not in BUCKETS:
            raise UsageError(f"figures are of the last {', '.join(map(str, BUCKETS))} hours")
        bucket_ms = BUCKETS[hours] * 1000
        now_ms = int(time.time() * 1000)
        since_ms = now_ms - hours * 3_600_000
        found = await asyncio.to_thread(
            reading.figures, self._home.ledger, since_ms=since_ms, bucket_ms=bucket_ms
        )
        used = (await self._client.request(USAGE, since_ms=since_ms))["rows"]
        spent = cost.added_up(cost.priced(used, await asyncio.to_thread(user_prices)), "agent")
        times = {"since_ms": since_ms, "bucket_ms": bucket_ms, "now_ms": now_ms}
        return {**found, **times, "spent": spent}


def governed_traces(home: Home, folders: Iterable[str]) -> list[Json]:
    roots = sorted({root for folder in folders if (root := governed_root(folder))})
    projects: list[Json] = []
    for root in roots[:PROJECTS_MAX]:
        project: Json = {"root": root, "lines": [], "problem": ""}
        projects.append(project)
        try:
            with closing(GovernanceStore.open(home)) as store:
                newest = deque(Trace(root, store).records(), TRACE_SHOWN)
            project["lines"] = [asdict(trace_line(record)) for _, record in reversed(newest)]
        except RelayError as error:
            project["problem"] = error.message
    return projects


def _short(row: Json) -> Json:
    """A row as the page gets it: with the beginning of a long body, or as words."""
    if row.get("what", "message") not in _DRAWN:
        return {**row, "text": words(row)}
    body = row.get("body")
    if isinstance(body, str) and len(body) > BODY_SHOWN:
        return {**row, "body": body[:BODY_SHOWN] + " …", "cut": True}
    return row


def path_steps(message: FullMessage, hooks: list[Json]) -> list[Json]:
    """The way of a message as steps {at_ms, what, who, state, text}, the oldest first.

    ``message`` as the op ``show`` has it, ``hooks`` as ``traffic.hooks_on_the_way`` has them.
    """
    via = f" ({message['via']})" if message.get("via") else ""
    steps: list[Json] = [
        _step(message["created_ms"], "said", message["from"], "", f"said it, stored{via}")
    ]
    for run in hooks:
        result = run["error"] or run["decision"] or "ran"
        text = f"{run['event']}: {run['hook']}, {result}, {run['seconds'] * 1000:.0f} ms"
        steps.append(_step(run["at_ms"], "hook", run["of"], "failed" if run["error"] else "", text))
    for one in message["deliveries"]:
        who, state = one["to"], one["state"]
        tries = f", try {one['attempts']}" if one["attempts"] > 1 else ""
        if one["delivering_ms"] is not None:
            steps.append(_step(one["delivering_ms"], "delivering", who, "", f"begun{tries}"))
        if one["submitted_ms"] is not None:
            steps.append(_step(one["submitted_ms"], "submitted", who, "", "the agent has it"))
        if state not in (State.DELIVERING.value, State.SUBMITTED.value):
            parts = (one["reason"], one["proof"] and f"proof: {one['proof']}", one["decided"])
            text = ", ".join(str(part) for part in parts if part)
            steps.append(_step(one["updated_ms"], "state", who, state, text))
    return sorted(steps, key=lambda step: int(step["at_ms"]))  # those of one moment stay in order


def _step(at_ms: int, what: str, who: str, state: str, text: str) -> Json:
    return {"at_ms": at_ms, "what": what, "who": who, "state": state, "text": text}
