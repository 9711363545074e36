"""``auto_save``: what the agent said last goes to the broker, which asks a model what to keep.

Imported only where it is configured. What leaves the session is clean text without secrets,
whatever ``secrets`` says of what is saved: it goes to a server.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from relay.config import llm
from relay.core.errors import ConfigError, RelayError
from relay.directive.escape import clean
from relay.directive.redact import redact

#: Bytes of UTF-8 of a conversation's tail, which is what is sent.
TAIL_MAX = 64 * 1024
#: Characters that are kept: more than what is sent, so that no secret is cut before it is masked.
KEPT_MAX = 2 * TAIL_MAX
#: For the one request, in seconds: the end waits for no broker that is away.
DEADLINE = 10.0

Request = Callable[..., Awaitable[dict[str, Any]]]


class LastWords:
    """Of one agent. ``note`` is for the person; ``project`` is None where it cannot be named."""

    def __init__(
        self,
        config: Mapping[str, object],
        environ: Mapping[str, str],
        request: Request,
        note: Callable[[str], None],
        *,
        project: str | None,
    ) -> None:
        """``config`` is that of the model. What is wrong with it is noted, and nothing is saved."""
        self._request = request
        self._note = note
        self._project = project
        self._lines: deque[str] = deque()
        self._size = 0
        self._model: llm.LLM | None = None
        try:
            self._model = llm.resolved(config, environ)
        except ConfigError as error:
            self._problem(error)

    def said(self, texts: list[str]) -> None:
        """The agent said these lines."""
        if self._model is None:
            return
        for text in texts:
            line = text[-KEPT_MAX:]
            self._lines.append(line)
            self._size += len(line) + 1
        while self._size - len(self._lines[0]) - 1 >= KEPT_MAX:
            self._size -= len(self._lines.popleft()) + 1

    async def end(self) -> None:
        """The agent is gone: hand over what it said, with one request."""
        text = tail(redact(clean("\n".join(self._lines)))).strip()
        if self._model is None or not text:
            return
        if self._project is None:
            self._note("auto_save: this folder's name is no Unicode, so nothing is saved for it")
            return
        try:
            await self._request(
                "memory_extract",
                deadline=DEADLINE,
                text=text,
                llm={**self._model.public(), "api_key": self._model.key},
            )
        except RelayError as error:
            print(self._problem(error), file=sys.stderr)  # the log: who looks later finds it there

    def _problem(self, error: RelayError) -> str:
        problem = f"auto_save: nothing is kept of this session: {error.line}"
        self._note(problem)
        return problem


def tail(text: str, limit: int = TAIL_MAX) -> str:
    """The end of ``text``, in at most ``limit`` bytes of UTF-8, from the beginning of a line on
    where there is one."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()
    kept = data[-limit:].decode(errors="ignore")
    begins_line = data[-limit - 1 : -limit] == b"\n"
    return kept if begins_line else kept.partition("\n")[2] or kept
