"""The process that holds a store of mem0, qdrant or a custom one, for the broker that started it.

Their imports, their memory, what they print and how they crash stay away from the broker. It reads
and writes lines of JSON on the socket that is its standard input. The first says what to open::

    {"home": str, "store": StoreSpec.to_json()}

and each further one is a request, answered in order by one line::

    {"n": int, "request": {"op", …}, "agent": str|null, "run": str|null, "now_ms": int}
    {"n": int, "ok": true, "fields": {…}}  or  {"n": int, "ok": false, "error": {…}}

It ends when the socket does: the broker has ended, or wants it no more.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from relay.config.memory_spec import StoreSpec
from relay.core.errors import RelayError, StorageError, error_fields
from relay.core.paths import Home
from relay.memory.backend import Backend
from relay.memory.desk import Desk
from relay.memory.kept import Kept
from relay.memory.outbox import Outbox, path_of

#: How often kept saves are tried again while nobody asks. Seconds.
APPLY_EVERY = 15.0
#: For so long at once they are applied then: a request may come. Seconds.
_APPLY_FOR = 0.5
#: How long what is in hand may go on once the broker is gone. Seconds.
LAST_MOMENTS = 20.0
#: Requests that may wait here; the broker sends one at a time.
_WAITING_MAX = 16

#: Providers that keep memories in a folder when no server is named.
_IN_FOLDER = ("qdrant", "chroma", "faiss")

Json = dict[str, Any]
#: From a spec to its backend: relay.memory.opening.make.
Opener = Callable[[StoreSpec, Home], Backend]


class KeptSource:
    """A store that may be away. The outbox and the store are opened when they are first needed."""

    def __init__(self, spec: StoreSpec, home: Home, opener: Opener) -> None:
        self._spec = spec
        self._home = home
        self._opener = opener
        self._kept: Kept | None = None

    def opened(self) -> Backend:
        """The store with what is kept for it. Raises RelayError."""
        if self._kept is None:
            path = path_of(self._home.memory, self._spec.key())
            outbox = Outbox(path, title=self._spec.title)
            self._kept = Kept(
                lambda: self._opener(self._spec, self._home), outbox, name=self._spec.backend
            )
        return self._kept

    def added(self, count: int) -> None:
        """Nothing follows from it: whoever saves makes the vector."""

    def caught_up(self, now_ms: int) -> bool:
        """Apply some of what is kept; also True when the store is away, and it must wait."""
        if self._kept is None:
            return True
        try:
            before = self._kept.waiting()
            left = self._kept.catch_up(_APPLY_FOR)
        except RelayError:
            return True  # the next request is told why
        return not left or left >= before

    @property
    def problem(self) -> str:
        """Its statistics say it."""
        return ""

    def close(self) -> None:
        """Close the store and the outbox."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


def main() -> None:
    """What the process does: serve whoever holds the other end of standard input."""
    from relay.memory.opening import make

    run(make)


def run(opener: Opener) -> None:
    """Serve, then end with all that was started here. Does not return."""
    try:
        serve(_take_input(), opener)
    except BaseException:
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    # Threads and children of the store may live on; nothing of them is needed any more.
    _give_up()


def serve(channel: socket.socket, opener: Opener) -> None:
    """Answer requests until the channel ends."""
    lines = channel.makefile("rb")
    first = lines.readline()
    if not first:
        return
    hello = json.loads(first)
    home, spec = Home(hello["home"]), StoreSpec.from_json(hello["store"])
    _hide_fastembed(spec)
    desk = Desk(KeptSource(spec, home, opener), spec.masked(), folder_of(spec, home))
    waiting: queue.Queue[Json | None] = queue.Queue(_WAITING_MAX)
    threading.Thread(target=_read, args=(lines, waiting), daemon=True).start()
    try:
        while (asked := _next(waiting, desk)) is not None:
            channel.sendall(_answer(desk, asked))
    except OSError:
        return  # nobody is there to hear the answer
    finally:
        desk.close()


def _hide_fastembed(spec: StoreSpec) -> None:
    """Where it is installed qdrant-client imports it, and what it runs its models with then writes
    into the user's cache. Only who names it as the embedder needs it; own code may do anything."""
    embedder = spec.config.get("embedder")
    named = isinstance(embedder, dict) and embedder.get("provider") == "fastembed"
    if spec.backend in ("mem0", "qdrant") and not named:
        sys.modules.setdefault("fastembed", None)  # type: ignore[arg-type]


def folder_of(spec: StoreSpec, home: Home) -> str | None:
    """Where a store on this disk is; None for one that a server holds, or that somebody wrote."""
    store = spec.config.get("vector_store")
    where = store if isinstance(store, dict) else {}
    if where.get("provider") not in _IN_FOLDER or where.get("url") or where.get("host"):
        return None
    return str(where.get("path") or os.path.join(home.memory, spec.backend))


def _read(lines: Any, waiting: queue.Queue[Json | None]) -> None:
    """The thread that reads: it sees that the broker is gone, whatever the store does just now."""
    try:
        for line in lines:
            waiting.put(json.loads(line))
    except (OSError, ValueError):
        pass  # it has ended, in the middle of a line maybe
    end = threading.Timer(LAST_MOMENTS, _give_up)
    end.daemon = True
    end.start()
    waiting.put(None)


def _next(waiting: queue.Queue[Json | None], desk: Desk) -> Json | None:
    """The next request; while there is none, what is kept is tried from time to time."""
    while True:
        try:
            return waiting.get_nowait()
        except queue.Empty:
            pass
        try:
            if not desk.caught_up(int(time.time() * 1000)):
                continue
        except Exception:
            traceback.print_exc()
        try:
            return waiting.get(timeout=APPLY_EVERY)
        except queue.Empty:
            continue


def _answer(desk: Desk, asked: Json) -> bytes:
    answer: Json
    try:
        fields = desk.answer(asked["request"], asked["agent"], asked["run"], asked["now_ms"])
        answer = {"n": asked["n"], "ok": True, "fields": fields}
    except RelayError as error:
        answer = {"n": asked["n"], "ok": False, "error": error_fields(error)}
    except Exception as error:
        traceback.print_exc()
        fault = StorageError(
            f"the store met a fault: {type(error).__name__}: {error}"[:1000],
            hint="the log of the memory's process in RELAY_HOME/log says more",
        )
        answer = {"n": asked["n"], "ok": False, "error": error_fields(fault)}
    return json.dumps(answer).encode() + b"\n"


def _give_up() -> None:
    """End at once, with all that was started here."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _take_input() -> socket.socket:
    """The socket that is standard input; from then on that is empty, for all that runs here."""
    channel = socket.socket(fileno=os.dup(0))
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    os.close(empty)
    # A child that lives on must not look like this process to the broker.
    os.register_at_fork(after_in_child=lambda: os.close(channel.detach()))
    return channel
