"""Talking to the broker without an event loop: what the command line uses."""

from __future__ import annotations

import os
import time

from relay.broker.start import DEADLINE, SILENT, Starter, open_socket, silent, stopped
from relay.core.build import build
from relay.core.errors import (
    BrokerUnavailable,
    NotFound,
    RelayError,
    StorageError,
    Timeout,
    nearest,
    only_the_person,
)
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.core.processes import PERSON, UNKNOWN, own_side
from relay.protocol.broker import (
    IDENTIFIED,
    LINE_MAX,
    ONCE,
    PROTOCOL,
    UNKNOWN_OP,
    Json,
    decode,
    encode,
    error_from,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from types import TracebackType
    from typing import Any, Self

    from relay.protocol.op import Answer, Fields, Op

#: Pushes that wait for ``next_push``. Beyond it the oldest are dropped: they only say "ask again".
_PUSHES_MAX = 1024
#: How long to wait until the broker knows this run, between two tries, and at most where the broker
#: goes away again and again. Seconds.
KNOWN, _PAUSE, _PAUSE_MAX = 10.0, 0.05, 1.0
#: Seconds that a broker may take to say hello before it is looked whether it runs at all.
_PATIENCE = 1.0
_LOOK_FIRST = "it may have done what was asked: look before you run the command again"


class _Broken(BrokerUnavailable):
    """The connection broke."""


class BrokerClient:
    """One connection. Raises relay.core.errors; ``BrokerUnavailable`` when the connection breaks.

    ``request`` repeats a request over a new connection as often as the broker goes away before it
    has answered (a message keeps its id, so it cannot be stored twice), except what is in ``ONCE``.
    """

    def __init__(self, home: Home, *, start: bool = True, deadline: float = DEADLINE) -> None:
        self.home = home
        self._start = start
        self._deadline = deadline
        #: Whether the broker says that this process is the person's.
        self.is_person = True
        self._n = 0
        self.version = ""  # of the broker
        self._last: Json = {}  # what the broker said of itself
        self._socket: _socket.socket | None = None
        self._part = bytearray()
        self._lines: list[Json] = []  # in reverse order
        self._pushes: list[Json] = []
        self._open()

    def request(
        self, op: Op[Fields, Any, Answer], *_: Fields.args, **asked: Fields.kwargs
    ) -> Answer:
        """Ask and wait for the answer's fields, at most ``deadline`` seconds (30)."""
        fields: dict[str, Any] = dict(asked)
        deadline: float = fields.pop("deadline", 30.0)
        if op in IDENTIFIED:
            fields.setdefault("id", new_ulid(int(time.time() * 1000)))
        if op in IDENTIFIED and os.environ.get("RELAY_CALLED"):
            fields["unproven"] = True  # a program that relay called acts on others' words
        began = time.monotonic()
        end = began + deadline
        while True:
            try:
                record = self._until_answered(op, fields, end)
                answer: Any = {key: record[key] for key in record if key not in ("n", "ok")}
                return answer  # type: ignore[no-any-return]
            except RelayError as error:
                # An agent's first tools may run before its session has told the broker of it.
                if error.code != "unknown_run" or time.monotonic() >= min(end, began + KNOWN):
                    raise
            time.sleep(_PAUSE)

    def _until_answered(self, op: str, fields: Json, end: float) -> Json:
        answerless: tuple[type[RelayError], ...] = (Timeout, BrokerUnavailable)
        waits_until = time.monotonic() + fields["timeout"] if op == "wait" else 0.0
        pause = _PAUSE
        try:
            while True:
                try:
                    return self._ask(op, fields, end)
                except _Broken:
                    if op in ONCE or time.monotonic() >= end:
                        raise
                # This refusal says nothing about the first try.
                answerless += (StorageError,)
                time.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX)
                self._open()
                if op == "wait":
                    fields = {**fields, "timeout": max(0.0, waits_until - time.monotonic())}
        except answerless as error:
            if op not in IDENTIFIED:
                raise
            # Not a Timeout: its exit status says that the message is stored.
            raise BrokerUnavailable(
                f"{error.message}; nobody knows whether the message was stored",
                hint=f"relay show {fields['id']} tells as soon as the broker answers",
                code="unknown_outcome",
            ) from error

    def next_push(self, timeout: float) -> Json | None:
        """The next push of the broker; None after ``timeout`` seconds."""
        if self._pushes:
            return self._pushes.pop(0)
        end = time.monotonic() + timeout
        while True:
            record = self._receive(end)
            if record is None:
                return None
            if "push" in record:
                return record

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> None:
        starter = Starter(self.home, start=self._start, deadline=self._deadline, last=self._last)
        while True:
            self.close()
            self._part.clear()
            self._lines.clear()
            try:
                self._socket = open_socket(self.home)
                hello = self._hello()
                break
            except OSError as error:
                time.sleep(starter.next_pause(error))
            except _Broken as error:
                # That broker was about to end; the next one is starting.
                time.sleep(starter.next_pause(ConnectionResetError(error.message)))
            except Timeout as error:
                self.close()
                # Nothing was asked of it yet; the status of a Timeout would say that it was.
                raise silent(self.home, SILENT) from error
            except BaseException:
                self.close()
                raise
        self.version = str(hello.get("version"))
        self._last = hello
        self.is_person = hello.get("person") is not False
        if hello["protocol"] != PROTOCOL:
            self.close()
            raise BrokerUnavailable(
                f"the broker is of another version of relay ({hello['version']})",
                hint="relay broker stop; the next command starts one of this version",
            )

    def _hello(self) -> Json:
        end = time.monotonic() + self._deadline
        self._tell("hello", {}, end)
        try:
            return self._answered(min(end, time.monotonic() + _PATIENCE))
        except Timeout:
            # One that was stopped (SIGSTOP) will not answer, however long we wait.
            if error := stopped(self.home):
                raise error from None
            return self._answered(end)

    def _ask(self, op: str, fields: dict[str, object], end: float) -> Json:
        self._tell(op, fields, end)
        return self._answered(end)

    def _tell(self, op: str, fields: dict[str, object], end: float) -> None:
        self._n += 1
        line = encode({"n": self._n, "op": op, **fields})
        if len(line) > LINE_MAX:
            raise RelayError("the request is too large", code="too_large", hint="send less")
        connection = self._socket
        if connection is None:
            raise BrokerUnavailable("the connection to the broker is closed")
        try:
            connection.settimeout(max(0.001, end - time.monotonic()))
            connection.sendall(line)
        except TimeoutError as error:
            self.close()
            raise Timeout("the broker does not respond", hint="relay broker stop") from error
        except OSError:
            # It may have said why before it closed.
            pass

    def _answered(self, end: float) -> Json:
        while True:
            record = self._receive(end)
            if record is None:
                raise Timeout("the broker did not answer in time", hint="relay broker status")
            if "push" in record:
                self._pushes.append(record)
                del self._pushes[:-_PUSHES_MAX]
            elif record.get("n") in (self._n, None):
                if record.get("ok"):
                    return record
                raise self._explained(error_from(record.get("error") or {}))

    def _explained(self, error: RelayError) -> RelayError:
        """The broker's error, with a hint where an older broker does not know the request."""
        if UNKNOWN_OP not in error.message or self.version == build():
            return error
        return BrokerUnavailable(
            f"the broker that runs is of relay {self.version}, this command of {build()}: it"
            " does not know what is asked for",
            hint="relay broker stop; the next command starts one of this version, and agents that"
            " run go on with it",
        )

    def _receive(self, end: float) -> Json | None:
        """The next line; None when the time is up."""
        while not self._lines:
            connection = self._socket
            if connection is None:
                raise BrokerUnavailable("the connection to the broker is closed")
            left = end - time.monotonic()
            if left <= 0:
                return None
            try:
                connection.settimeout(left)
                data = connection.recv(256 * 1024)
            except TimeoutError:
                return None
            except OSError as error:
                self.close()
                raise _Broken(
                    f"the connection to the broker broke: {os.strerror(error.errno or 0)}",
                    hint=_LOOK_FIRST,
                ) from error
            if not data:
                self.close()
                raise _Broken("the broker closed the connection", hint=_LOOK_FIRST)
            self._split(data)
        return self._lines.pop()

    def _split(self, data: bytes) -> None:
        first = len(self._part)
        self._part += data
        end = self._part.rfind(b"\n", first)
        if end < 0:
            return
        # Only called when no line waits.
        self._lines = [decode(line) for line in bytes(self._part[:end]).split(b"\n")][::-1]
        del self._part[: end + 1]


def connect(home: Home, start: bool = True, deadline: float = DEADLINE) -> BrokerClient:
    """A client with an open connection; starts the broker if need be and allowed."""
    return BrokerClient(home, start=start, deadline=deadline)


def request(op: Op[Fields, Any, Answer], *args: Fields.args, **fields: Fields.kwargs) -> Answer:
    with connect(Home.from_env()) as client:
        return client.request(op, *args, **fields)


def request_at(
    machine: str, op: Op[Fields, Any, Answer], *args: Fields.args, **fields: Fields.kwargs
) -> Answer:
    """The answer of the broker of another machine; "": of this environment."""
    if not machine:
        return request(op, *args, **fields)
    from relay.protocol.agent_ops import ELSEWHERE

    asked: dict[str, Any] = dict(fields)
    speaker: Any = {"auth": asked.pop("auth")} if "auth" in asked else {}
    seconds: float = asked.pop("deadline", 30.0)
    answer: Any = request(
        ELSEWHERE,
        deadline=seconds + 5,
        machine=machine,
        asked=op,
        fields=asked,
        timeout=seconds,
        **speaker,
    )
    return answer["answer"]  # type: ignore[no-any-return]


def check_person(home: Home, what: str, hint: str = "") -> None:
    """Raise RelayError unless this process is the person's: nobody else may do ``what``.

    A process in a sandbox cannot see its own ancestors; the broker can, so it is asked.
    """
    side = own_side()
    if side is UNKNOWN:
        raise RelayError(
            f"only the person may {what}, and nobody can tell whose this process is: not all of its"
            " ancestors can be seen",
            hint="relay doctor says more",
            code="forbidden",
        )
    person = side is PERSON
    if person:
        try:
            with connect(home, start=False) as client:
                person = client.is_person
        except BrokerUnavailable:
            from relay.config.names import is_elsewhere

            person = not is_elsewhere(home)  # what can be seen from here must do
    if not person:
        raise only_the_person(what, hint=hint)


def no_agent(home: Home, name: str, *, runs: bool = False) -> NotFound:
    """The error that no agent is called ``name`` (``runs``: none that runs), with the name that is
    probably meant."""
    from relay.protocol.agent_ops import AGENTS

    try:
        with connect(home) as client:
            known = [row["name"] for row in client.request(AGENTS)["agents"]]
    except BrokerUnavailable:
        known = []
    here = name.lower() in (one.lower() for one in known)
    close = None if here else nearest(name, known)
    hint = f"did you mean {close}?" if close else "relay agents lists them"
    hint = f"relay resume {name} starts it again" if here else hint
    what = f"no agent called {name} is running" if runs else f"no agent is called {name}"
    return NotFound(what, hint=hint)
