"""What travels between the broker and a worker: lines of JSON, one object a line.

A worker runs the code of one trusted configuration. Its first line is ``ready`` or ``failed``::

    {"ready": {"routes": [{"name", "kinds", "channels", "priority"}], "adapters": [name],
               "merge": str}}
    {"failed": str}                   why its configuration cannot be used; then it ends

The broker asks, and each question is answered once, in whatever order::

    {"id": int, "do": "evaluate", "event": Event, "skip": [name]}
        -> {"id", "started_ms", "said": [[name, latency_us, result or null, error or null]],
            "quiet": JSON of {name: latency_us}, as a text, "hung": [name]}
    {"id": int, "do": "channel_send", …}    (see relay.features.personas.channel_adapters)
        -> {"id", "sent": …} or {"id", "error": {…}}
    {"id": int, "do": "hooks", "event": a HookEventName, "fields": {…}}
        -> {"id", "records": [relay.hooks.hook_log.result_record]}

It says ``{"alive": true}`` every ``WORKER_ALIVE_EVERY`` seconds. It may ask too; its questions are
numbered by itself::

    {"ask": int, "op": str, …} -> {"ask": int, …}    (``event``, ``adapter_failed``)

``quiet`` are the functions that did not fire and said nothing else; ``hung`` those that were given
up and still run, for which the worker is replaced; ``result`` is what HookResult.to_json makes. The
end of the socket means stop.

A worker of automations belongs to none of them, and has one question at a time. Its first line is
``{"ready": {}}``, and it says nothing unasked::

    {"id": int, "do": "load", "path", "source", "deadline"}
        -> {"id", "definition": Definition} or {"id", "error": {…}}
    {"id": int, "do": "run", "automation": id, "version", "path", "source": str or null, "event",
     "principal", "permissions", "session": {"key", "persona"}, "deadline", "dry": bool,
     "about": {"id", "name", "created_at", "last_triggered", "config"}, "state": {key: value},
     "llm": settings or null, "now_ms": int (not given: the clock's; the broker never does)}
        -> {"id", "latency_us", "result": AutomationResult or null, "error": str or null,
            "llm_calls": int, "state": {key: value or null where it was removed}}

``source`` is null where the worker has run that version before. With ``"last": true`` in an answer
it takes no more questions, and ends. Moments are milliseconds. ``state`` is what has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relay.protocol.broker import Json

#: Bytes of one line in either direction.
LINE_MAX = 32 * 1024 * 1024
#: Bytes of one result as JSON, and characters of one error.
RESULT_MAX, ERROR_MAX = 64 * 1024, 2000
#: Bytes of the state of one automation as JSON.
STATE_MAX = 64 * 1024
#: Seconds.
WORKER_ALIVE_EVERY = 5.0
#: Evaluations that the broker has under way in one worker.
IN_FLIGHT = 64


class RouteAnswer(NamedTuple):
    """What a worker said of one function. ``latency_us``: microseconds."""

    name: str
    latency_us: int
    result: Json | None
    error: str | None


class EventAnswer(NamedTuple):
    """What a worker said of one event; ``quiet``: the functions that said nothing; ``hung``: those
    that were given up and still run."""

    started_ms: int
    said: list[RouteAnswer]
    quiet: str  # JSON of microseconds by name
    hung: Sequence[str] = ()

    @classmethod
    def of(cls, given: Json) -> EventAnswer:
        """Read it. Raises TypeError or ValueError: the code that runs there may write anything."""
        said = [RouteAnswer(*one) for one in given["said"]]
        found = cls(given["started_ms"], said, given["quiet"], given["hung"])
        for one in found.said:
            texts = isinstance(one.name, str) and (one.error is None or isinstance(one.error, str))
            if not texts or type(one.latency_us) is not int:
                raise ValueError("not an evaluation")
        hung = isinstance(found.hung, list) and all(isinstance(one, str) for one in found.hung)
        if type(found.started_ms) is not int or type(found.quiet) is not str or not hung:
            raise ValueError("not an answer")
        return found
