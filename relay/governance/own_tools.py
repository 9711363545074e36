"""Tools of the user's own under governance: Python functions, and objects that a model calls.

A file of its own, because a program that gives a model tools of its own has no agent's hooks, and
no session that could ask the gate: the functions ask it themselves, in their own process. What
they are asked, refused and traced by is what agents are.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar, Unpack, cast, overload

from relay.agents.tool_uses import ToolUse, UseKind
from relay.core.errors import RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.governance.approvals import ApprovalAnswer, ApprovalRequest
from relay.governance.call_plan import GateCall, GovernedRun
from relay.governance.gate import Gate
from relay.governance.governance_store import GovernanceStore
from relay.governance.governed_paths import governed_root
from relay.governance.intent_context import intent_context, rules
from relay.governance.intents_file import IntentsFile
from relay.governance.refusals import Refusal, engine_failed
from relay.governance.trace import Trace

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
Tool = TypeVar("Tool")
#: Which files a call touches: names of parameters, or a function of the same arguments.
Paths = str | Sequence[str] | Callable[..., Any]
#: The methods of an object that is a tool; the first that it has is the one that is governed.
METHODS = ("run", "execute", "invoke", "__call__")
#: Seconds that a call waits for the gate, which has deadlines of its own.
WAIT_MAX = 600.0


class _Touches(TypedDict, total=False):
    """What is said of a tool: see GovernedTools.governed."""

    paths: Paths | None
    reads: Paths | None
    command: str
    name: str


class HookBlocked(RelayError):
    """A call that was refused: ``refusal`` says why, and the error's text is what a model reads."""

    code = "hook_blocked"

    def __init__(self, refusal: Refusal, tool: str) -> None:
        super().__init__(refusal.text(tool))
        self.refusal = refusal
        self.tool = tool


@dataclass(frozen=True, slots=True)
class _Touched:
    """Says of a function's call what it does to files."""

    signature: inspect.Signature
    paths: Paths | None
    reads: Paths | None
    command: str

    def use(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolUse:
        """Raises TypeError for arguments that the function does not take."""
        given = self.signature.bind(*args, **kwargs)
        given.apply_defaults()
        named = given.arguments
        reads = _texts(self.reads, named, args, kwargs)
        if self.command:
            return ToolUse(UseKind.EXECUTE, reads=reads, command=str(named[self.command]))
        if self.paths is None and self.reads is None:
            return ToolUse(UseKind.UNKNOWN, blind="it does not say which files it changes")
        writes = _texts(self.paths, named, args, kwargs)
        kind = UseKind.WRITE if writes else UseKind.READ if reads else UseKind.OTHER
        return ToolUse(kind, reads=reads, writes=writes)


def _touched(
    function: Callable[..., Any], tool: str, paths: Paths | None, reads: Paths | None, command: str
) -> _Touched:
    """Raises UsageError where that cannot be told."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{tool} is a generator, which runs after it was called",
            hint="govern the function in it that changes files",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the parameters of {tool} are unknown: {error}",
            hint="govern a function of your own that calls it",
        ) from error
    for one in (*_names(paths), *_names(reads), *((command,) if command else ())):
        if one not in signature.parameters:
            raise UsageError(
                f"{tool} has no parameter {one!r}",
                hint=f"it has: {', '.join(signature.parameters) or 'none'}",
            )
    return _Touched(signature, paths, reads, command)


def _texts(
    paths: Paths | None, named: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    if paths is None:
        return ()
    if callable(paths):
        return tuple(_flat(paths(*args, **kwargs)))
    return tuple(path for name in _names(paths) for path in _flat(named[name]))


def _names(paths: Paths | None) -> tuple[str, ...]:
    if paths is None or callable(paths):
        return ()
    return (paths,) if isinstance(paths, str) else tuple(paths)


def _flat(value: object) -> Iterable[str]:
    """The paths in a value: one, none or several. Raises TypeError for what is no path."""
    if value is None:
        return
    if isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _flat(one)
        return
    yield os.fsdecode(value)  # type: ignore[arg-type]


class _Loop:
    """An event loop in a thread of its own, for all gates of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin ``work``; to cancel the future cancels it."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a fork has no threads
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                run = self._loop.run_forever
                threading.Thread(target=run, name="relay-governance", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of ``work``; what interrupts the wait ends the work."""
        future = self.begin(work)
        try:
            return future.result(WAIT_MAX)
        except BaseException:
            future.cancel()
            raise


_LOOP = _Loop()


async def _before(gate: Gate, call: GateCall) -> None:
    """Raises HookBlocked."""
    if call.use.reads and call.use.writes:
        # A function sees what it reads before it writes; an agent that does both in one has not.
        await gate.before(replace(call, use=ToolUse(UseKind.READ, reads=call.use.reads)))
    if refusal := await gate.before(call):
        raise HookBlocked(refusal, call.tool)


async def _select(gate: Gate, intent_id: str) -> str:
    return intent_context(await gate.select(intent_id), ())


class GovernedTools:
    """The tools of one agent of the user's own, which has one intent at a time.

    ``root`` is a folder of the governed project (default: the current one, at the first call);
    where nothing is governed, tools run as they are. ``approve`` is asked where a person has to
    say yes, and returns whether they did; without it such calls are refused. For any thread and
    any event loop; a program with several agents makes one for each.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        agent: str = "",
        model: str = "",
        approve: Callable[[ApprovalRequest], bool] | None = None,
    ) -> None:
        self._folder = "" if root is None else os.path.abspath(root)
        # Inside a wrapped agent they are that agent's: its intent, what it has read, its leases.
        self._run = os.environ.get("RELAY_RUN") or f"tools-{new_ulid(_now_ms())}"
        script = os.path.basename(sys.argv[0]) if sys.argv else ""
        self._agent = agent or os.environ.get("RELAY_AGENT") or script or "python"
        self._model = model
        self._approve = approve
        self._lock = threading.Lock()
        self._gates: dict[int, Gate] = {}

    @overload
    def governed(self, function: Function, **touched: Unpack[_Touches]) -> Function: ...
    @overload
    def governed(self, **touched: Unpack[_Touches]) -> Callable[[Function], Function]: ...
    def governed(
        self,
        function: Any = None,
        *,
        paths: Paths | None = None,
        reads: Paths | None = None,
        command: str = "",
        name: str = "",
    ) -> Any:
        """Put the gate around ``function``; without one, a decorator.

        ``paths`` says which files a call makes, changes or deletes, ``reads`` which it reads: names
        of parameters, or a function of the same arguments that returns paths. ``command`` names the
        parameter with a shell's line. Without any of them a person is asked each time; ``paths=()``
        says that no file is touched. Raises UsageError for what cannot be governed; the function
        then raises HookBlocked where it is refused.
        """
        if function is None:
            return functools.partial(
                self.governed, paths=paths, reads=reads, command=command, name=name
            )
        tool = name or getattr(function, "__name__", "") or type(function).__name__
        touched = _touched(function, tool, paths, reads, command)

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            gate, call = self._call(tool, touched, args, kwargs)
            if gate is None:
                return function(*args, **kwargs)
            _LOOP.wait(_before(gate, call))
            try:
                return function(*args, **kwargs)
            finally:
                _LOOP.wait(gate.after(call))

        @functools.wraps(function)
        async def waits(*args: Any, **kwargs: Any) -> Any:
            gate, call = self._call(tool, touched, args, kwargs)
            if gate is None:
                return await function(*args, **kwargs)
            await asyncio.wrap_future(_LOOP.begin(_before(gate, call)))
            try:
                return await function(*args, **kwargs)
            finally:
                await asyncio.wrap_future(_LOOP.begin(gate.after(call)))

        return waits if inspect.iscoroutinefunction(function) else plain

    def govern(self, tool: Tool, *, method: str = "", **touched: Unpack[_Touches]) -> Tool:
        """Put the gate around a tool that a model calls: a function, an object, a class of objects.

        Of an object the first of ``run``, ``execute``, ``invoke`` and ``__call__`` is governed, or
        ``method``. What it touches stands in its attributes ``paths``, ``reads`` and ``command``
        where it is not given, its name in ``name``. Returns a copy of the object, or a subclass of
        the class; what was given stays as it was. The rest is as in ``governed``.
        """
        if inspect.isroutine(tool) or isinstance(tool, functools.partial):
            return self.governed(tool, **touched)
        kind = tool if isinstance(tool, type) else type(tool)
        has = {name for one in kind.__mro__ for name in vars(one)}  # not what its metaclass has
        called = method or next((one for one in METHODS if one in has), "")
        function = getattr(kind, called, None)
        if called not in has or not callable(function):
            raise UsageError(
                f"{kind.__name__} has no method {method or ' or '.join(METHODS)}",
                hint="name the one that a model calls: govern(tool, method=…)",
            )
        own = {key: getattr(kind, key) for key in _Touches.__annotations__ if hasattr(kind, key)}
        own["name"] = str(getattr(tool, "name", "") or kind.__name__)
        governed: Any = self.governed(function, **cast("_Touches", own | dict(touched)))
        try:
            make: Any = type(kind)
            under: Any = make(kind.__name__, (kind,), {"__slots__": (), called: governed})
            under.__module__, under.__qualname__ = kind.__module__, kind.__qualname__
            if isinstance(tool, type):
                return cast("Tool", under)
            twin = copy.copy(tool)
            twin.__class__ = under
        except TypeError as error:
            raise UsageError(
                f"{kind.__name__} cannot be governed as an object: {error}",
                hint="govern a function that calls it: governed(function, paths=…)",
            ) from error
        return twin

    def select_intent(self, intent_id: str) -> str:
        """Select the intent of that id for all tools of this object.

        Returns its ``<intent_context>``, for the model to read; where nothing is governed, "".
        Raises RelayError where it cannot be selected, which says what can.
        """
        gate = self._governing()
        return "" if gate is None else _LOOP.wait(_select(gate, intent_id))

    def intent_rules(self, tool: str = "select_active_intent") -> str:
        """What a model is to be told at its start; ``tool`` is what it selects its intent with.

        Where nothing is governed, "". Raises RelayError where the intents cannot be read.
        """
        gate = self._governing()
        if gate is None:
            return ""
        intents = IntentsFile(gate.run.root).read().intents.values()
        return rules(intents, words=False, shell=False, tool=tool)

    def end_turn(self) -> None:
        """Give back the files that were changed: others may change them at once."""
        gate = self._governing()
        if gate is not None:
            _LOOP.wait(gate.turn_ended())

    def _call(
        self, tool: str, touched: _Touched, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Gate | None, GateCall]:
        """The gate, if there is one, and the call as it sees it. Raises HookBlocked."""
        use, shown = touched.use(args, kwargs), repr((*args, kwargs))
        call = GateCall(tool, use, new_ulid(_now_ms()), os.getcwd(), shown)
        try:
            return self._governing(), call
        except RelayError as error:
            if call.use.kind in (UseKind.READ, UseKind.OTHER):
                return None, call
            raise HookBlocked(engine_failed(error), tool) from error

    def _governing(self) -> Gate | None:
        """The gate of the governed project, made once for each process."""
        with self._lock:
            self._folder = self._folder or os.getcwd()
            gate = self._gates.get(os.getpid())  # a fork opens the files anew
            if gate is None and (root := governed_root(self._folder)):
                gate = self._gates[os.getpid()] = self._opened(root)
            return gate

    def _opened(self, root: str) -> Gate:
        home = Home.from_env()
        store = GovernanceStore.open(home)
        asked = _Asked(self._approve) if self._approve and not os.environ.get("RELAY_RUN") else None
        return Gate(
            GovernedRun(
                run=self._run,
                agent=self._agent,
                session=self._run,
                root=root,
                cwd=self._folder,
                pid=os.getpid(),
                model=self._model,
                kept_out=(os.path.realpath(home.root),),
            ),
            intents=IntentsFile(root),
            store=store,
            trace=Trace(root, store),
            approver=asked,
            now_ms=_now_ms,
        )


class _Asked:
    """Asks the user's own function for a person's yes."""

    def __init__(self, function: Callable[[ApprovalRequest], bool]) -> None:
        self._function = function

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """What it says; no, where it fails or takes too long."""
        try:
            async with asyncio.timeout(request.seconds):
                yes = await asyncio.to_thread(self._function, request)
        except TimeoutError:
            return ApprovalAnswer(False, "", f"nobody said yes within {request.seconds:g} s")
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            return ApprovalAnswer(False, "", f"the person could not be asked: {why}")
        return ApprovalAnswer(yes is True, "the person")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_OURS = GovernedTools()
#: The same for a program with one agent, in the folder where it was started.
govern, governed = _OURS.govern, _OURS.governed
select_intent, intent_rules, end_turn = _OURS.select_intent, _OURS.intent_rules, _OURS.end_turn
