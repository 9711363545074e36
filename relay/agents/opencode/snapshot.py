"""How things stand in one opencode, asked of its server: what its events do not tell again."""

from __future__ import annotations

import contextlib
from typing import Any

from relay.agents.opencode.channel import OpencodeClient, ServerError
from relay.agents.opencode.records import moment, table, word
from relay.agents.opencode.source import SNAPSHOT, OpencodeSource

#: Sessions that are asked for, and the last messages of each that is of this run.
SESSIONS = 100
MESSAGES = 100
#: Sessions whose messages are asked for.
ACTIVE_MAX = 8


async def snapshot(
    client: OpencodeClient, source: OpencodeSource, *, continues: bool
) -> dict[str, Any]:
    """An event for ``OpencodeSource``. ``continues``: without a session of its own yet, opencode
    goes on with the newest. Raises ServerError."""
    sessions = await client.request("GET", f"/session?limit={SESSIONS}")
    sessions = [table(one) for one in sessions] if isinstance(sessions, list) else []
    missing = source.missing
    for name in missing:
        if all(one.get("id") != name for one in sessions):
            with contextlib.suppress(ServerError):  # it may have been deleted since
                sessions.append(table(await client.request("GET", f"/session/{name}")))
    status = table(await client.request("GET", "/session/status"))
    asks: list[Any] = []
    for path in ("/permission", "/question"):
        found = await client.request("GET", path)
        asks += found if isinstance(found, list) else []
    tops = [one for one in sessions if not word(one.get("parentID"))]
    tops.sort(key=lambda one: moment(one.get("time"), "updated") or 0.0, reverse=True)
    active = [
        word(one.get("id"))
        for one in tops
        if word(one.get("id")) in (source.session, *missing, *status)
        or (moment(one.get("time"), "updated") or 0.0) >= source.started
    ]
    messages: list[Any] = []
    for name in active[:ACTIVE_MAX]:
        found = await client.request("GET", f"/session/{name}/message?limit={MESSAGES}")
        messages += found if isinstance(found, list) else []
    messages.sort(key=lambda one: word(table(table(one).get("info")).get("id")))
    newest = word(tops[0].get("id")) if tops and continues else ""
    properties = {
        "sessions": sessions,
        "status": status,
        "asks": asks,
        "messages": messages,
        "session": newest,
    }
    return {"type": SNAPSHOT, "properties": properties}
