"""Tools of the user's own under governance: Python functions, and objects that a model calls.

A program that gives a model tools of its own has no agent's hooks, and no session that could ask
the gate: the functions ask it themselves, in their own process. What they are asked, refused and
traced by is what agents are.
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
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypedDict, TypeVar, Unpack, cast, overload

from relay.agents.tool_uses import ToolUse, UseKind
from relay.core.errors import RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.features.governance.call_plan import GateCall, GovernedRun
from relay.features.governance.gate import ApprovalAnswer, ApprovalRequest, Gate
from relay.features.governance.governance_store import GovernanceStore
from relay.features.governance.governed_paths import governed_root
from relay.features.governance.intents import intent_context, rules
from relay.features.governance.orchestration import IntentsFile, read_lessons
from relay.features.governance.refusals import Refusal, engine_failed
from relay.features.governance.trace import Trace

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
Tool = TypeVar("Tool")
#: Seconds that a call waits for the gate, which has deadlines of its own.
WAIT_MAX = 600.0


class _Touches(TypedDict, total=False):
    """What is said of a tool: see GovernedTools.governed."""

    paths: str | Sequence[str] | None
    reads: str | Sequence[str]
    command: str
    name: str


class HookBlocked(RelayError):
    """A call that was refused: ``refusal`` says why, and the error's text is what a model reads."""

    code = "hook_blocked"

    def __init__(self, refusal: Refusal, tool: str) -> None:
        super().__init__(refusal.text(tool))
        self.refusal = refusal


class GovernedTools:
    """The tools of one agent of the user's own, which has one intent at a time.

    ``root`` is a folder of the governed project (default: the current one, at the first call);
    where nothing is governed, tools run as they are. ``approve`` is asked where a person has to
    say yes, and returns whether they did; without it such calls are refused. For any thread and
    any event loop; a program with several agents makes one for each.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "",
        *,
        agent: str = "",
        model: str = "",
        approve: Callable[[ApprovalRequest], bool] | None = None,
    ) -> None:
        # Inside a wrapped agent they are that agent's: its intent, what it has read, its leases.
        self._run = os.environ.get("RELAY_RUN") or f"tools-{new_ulid(_now_ms())}"
        script = os.path.basename(sys.argv[0]) if sys.argv else ""
        self._agent = agent or os.environ.get("RELAY_AGENT") or script or "python"
        self._folder = os.path.abspath(root) if root else ""
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
        paths: str | Sequence[str] | None = None,
        reads: str | Sequence[str] = (),
        command: str = "",
        name: str = "",
    ) -> Any:
        """Put the gate around ``function``; without one, a decorator.

        ``paths`` names the parameters with files that a call makes, changes or deletes, ``reads``
        with those that it reads, ``command`` the one with a shell's line. Without any of them a
        person is asked each time; ``paths=()`` says that no file is touched. Raises UsageError for
        what cannot be governed; the function then raises HookBlocked where it is refused.
        """
        if function is None:
            touched = _Touches(paths=paths, reads=reads, command=command, name=name)
            return functools.partial(self.governed, **touched)
        tool = name or getattr(function, "__name__", type(function).__name__)
        changed, read = _names(paths or ()), _names(reads)
        signature = _signature(function, tool, {*changed, *read, *_names(command or ())})

        def asked(args: Any, kwargs: Any) -> tuple[Gate | None, GateCall]:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            seen = [[*_paths(given.arguments[one] for one in names)] for names in (read, changed)]
            use = ToolUse(UseKind.WRITE, tuple(seen[0]), tuple(seen[1]))
            if command:
                use = replace(use, kind=UseKind.EXECUTE, command=str(given.arguments[command]))
            elif paths is None and not read:
                use = ToolUse(UseKind.UNKNOWN, blind="it does not say which files it changes")
            elif not seen[1]:
                use = replace(use, kind=UseKind.READ if read else UseKind.OTHER)
            call = GateCall(tool, use, new_ulid(_now_ms()), os.getcwd(), repr((*args, kwargs)))
            return self._gate_for(call), call

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            gate, call = asked(args, kwargs)
            _wait(_before(gate, call))
            try:
                return function(*args, **kwargs)
            finally:
                _wait(_after(gate, call))

        @functools.wraps(function)
        async def waits(*args: Any, **kwargs: Any) -> Any:
            gate, call = asked(args, kwargs)
            await asyncio.wrap_future(_begin(_before(gate, call)))
            try:
                return await function(*args, **kwargs)
            finally:
                await asyncio.wrap_future(_begin(_after(gate, call)))

        return waits if inspect.iscoroutinefunction(function) else plain

    def govern(self, tool: Tool, *, method: str = "", **touched: Unpack[_Touches]) -> Tool:
        """Put the gate around a class of tools, or one: its ``run``, else ``__call__``, or
        ``method``.

        What it touches stands in its attributes ``paths``, ``reads``, ``command`` and ``name``
        where it is not given. Returns the class, or a copy of the object. As ``governed`` else.
        """
        kind = tool if isinstance(tool, type) else type(tool)
        method = method or ("run" if hasattr(kind, "run") else "__call__")
        function = inspect.getattr_static(kind, method, None)
        if not inspect.isfunction(function):
            raise UsageError(
                f"{kind.__name__} has no method {method}",
                hint="name the one that a model calls: govern(tool, method=…)",
            )
        own = {one: getattr(tool, one) for one in _Touches.__annotations__ if hasattr(tool, one)}
        said = cast("_Touches", {"name": kind.__name__} | own | dict(touched))
        governed = self.governed(function, **said)
        if isinstance(tool, type):
            setattr(tool, method, governed)
            return tool
        twin, make = cast("Any", copy.copy(tool)), cast("Any", type(kind))
        twin.__class__ = make(kind.__name__, (kind,), {"__slots__": (), method: governed})
        return cast("Tool", twin)

    def select_intent(self, intent_id: str) -> str:
        """Select the intent of that id for all tools of this object.

        Returns its ``<intent_context>``, for the model to read; where nothing is governed, "".
        Raises RelayError where it cannot be selected, which says what can.
        """
        gate = self._governing()
        if gate is None:
            return ""
        return intent_context(_wait(gate.select(intent_id)), read_lessons(gate.run.root))

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
        if gate := self._governing():
            _wait(gate.turn_ended())

    def _gate_for(self, call: GateCall) -> Gate | None:
        """Raises HookBlocked where the call may change something and there should be a gate."""
        try:
            return self._governing()
        except RelayError as error:
            if call.use.kind in (UseKind.READ, UseKind.OTHER):
                return None
            raise HookBlocked(engine_failed(error), call.tool) from error

    def _governing(self) -> Gate | None:
        """The gate of the governed project, made once for each process. Raises RelayError."""
        with self._lock:
            self._folder = self._folder or os.getcwd()
            gate = self._gates.get(os.getpid())  # a fork opens the files anew
            if gate is None and (root := governed_root(self._folder)):
                gate = self._gates[os.getpid()] = self._opened(root)
            return gate

    def _opened(self, root: str) -> Gate:
        home, run = Home.from_env(), self._run
        store = GovernanceStore.open(home)
        weakref.finalize(self, store.close)
        # A wrapped agent says yes to nothing itself.
        ask = None if os.environ.get("RELAY_RUN") else self._approve
        return Gate(
            GovernedRun(
                *(run, self._agent, root, self._folder, os.getpid()),
                model=self._model,
                kept_out=(os.path.realpath(home.root),),
            ),
            intents=IntentsFile(root),
            store=store,
            trace=Trace(root, store),
            approver=_Asked(ask) if ask else None,
            now_ms=_now_ms,
        )


class _Asked:
    """Asks the user's own function for a person's yes. What it raises is no yes."""

    def __init__(self, function: Callable[[ApprovalRequest], bool]) -> None:
        self._function = function

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        try:
            async with asyncio.timeout(request.seconds):
                yes = await asyncio.to_thread(self._function, request)
        except TimeoutError:
            return ApprovalAnswer(False, "", f"nobody said yes within {request.seconds:g} s")
        return ApprovalAnswer(yes is True, "the person")


def _signature(function: Callable[..., Any], tool: str, named: set[str]) -> inspect.Signature:
    """Raises UsageError where it has no such parameters, or runs later than it is called."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{tool} is a generator, which runs after it was called",
            hint="govern the function in it that changes files",
        )
    signature = inspect.signature(function)
    if missing := sorted(map(str, named - signature.parameters.keys())):
        raise UsageError(
            f"{tool} has no parameter {missing[0]!r}",
            hint=f"it has: {', '.join(signature.parameters) or 'none'}",
        )
    return signature


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _paths(values: object) -> Iterator[str]:
    """All paths in values, of which each is one, none or several. Raises TypeError."""
    if isinstance(values, str | bytes | os.PathLike):
        path = os.fsdecode(values)
        yield path
        if path.startswith("~"):  # the home folder only to functions that think of it
            yield f"./{path}"
    elif values is not None:
        for one in cast("Sequence[object]", values):
            yield from _paths(one)


async def _before(gate: Gate | None, call: GateCall) -> None:
    """Raises HookBlocked."""
    if gate is None:
        return
    if call.use.reads and call.use.writes:
        # A function sees what it reads before it writes; an agent that does both in one has not.
        await gate.before(replace(call, use=ToolUse(UseKind.READ, reads=call.use.reads)))
    if refusal := await gate.before(call):
        raise HookBlocked(refusal, call.tool)


async def _after(gate: Gate | None, call: GateCall) -> None:
    if gate is not None:
        await gate.after(call)


_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
_LOCK = threading.Lock()


def _begin(work: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Do ``work`` in the one loop of this process that all gates have, in a thread of its own."""
    with _LOCK:
        loop = _LOOPS.get(os.getpid())  # a fork has no threads
        if loop is None:
            loop = _LOOPS[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="relay-gate", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, loop)


def _wait(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which ends when the wait does."""
    future = _begin(work)
    try:
        return future.result(WAIT_MAX)
    except BaseException:
        future.cancel()
        raise


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_OURS = GovernedTools()
#: The same for a program with one agent, in the folder where it was started.
govern, governed = _OURS.govern, _OURS.governed
select_intent, intent_rules, end_turn = _OURS.select_intent, _OURS.intent_rules, _OURS.end_turn
