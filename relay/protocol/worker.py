"""What travels between the broker and a worker: lines of JSON, one object a line.

A worker runs the code of one trusted configuration. Its first line is ``ready`` or ``failed``::

    {"ready": {"routes": [{"name", "kinds", "channels", "priority"}], "adapters": [name],
               "merge": str}}
    {"failed": str}                   why its configuration cannot be used; then it ends

The broker asks, and each question is answered once, in whatever order::

    {"id": int, "do": "evaluate", "event": Event, "skip": [name]}
        -> {"id", "started_ms", "said": [[name, latency_us, result or null, error or null]],
            "quiet": JSON of {name: latency_us}, as a text}
    {"id": int, "do": "channel_send", …}    (see relay.worker.channel_adapters)
        -> {"id", "sent": …} or {"id", "error": {…}}

It says ``{"alive": true}`` every ``WORKER_ALIVE_EVERY`` seconds. It may ask too; its questions are
numbered by itself::

    {"ask": int, "op": str, …} -> {"ask": int, …}

``quiet`` are the functions that did not fire and said nothing else; ``result`` is what
HookResult.to_json makes. The end of the socket means stop.
"""

from __future__ import annotations

#: Bytes of one line in either direction.
LINE_MAX = 32 * 1024 * 1024
#: Bytes of one result as JSON, and characters of one error.
RESULT_MAX, ERROR_MAX = 64 * 1024, 2000
#: Seconds.
WORKER_ALIVE_EVERY = 5.0
#: Evaluations that the broker has under way in one worker.
IN_FLIGHT = 64
