"""``Relay``: register handlers in Python, talk to agents, and wrap one in this terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from relay.config.load import LoadedConfig, executing_config
from relay.config.mistakes import noted
from relay.config.settings import (
    Settings,
    known_options,
    needs_word,
    relay_setting,
    with_setting,
)
from relay.core.errors import NotDelivered, Timeout, UsageError
from relay.core.paths import Home
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry, split_pattern
from relay.protocol.agent_ops import AGENTS, AgentRow
from relay.protocol.message_ops import INBOX, SEND, WAIT

if TYPE_CHECKING:
    from relay.broker.client import BrokerClient
    from relay.config.manifest import Known
    from relay.protocol.message_ops import MessageRow
    from relay.protocol.op import Speaker

Handler = TypeVar("Handler", bound=Callable[..., object])


class RelaySettings(TypedDict, total=False):
    """The settings that a program gives its ``Relay``, as a configuration has them
    (docs/config.md); None is not given."""

    task: str | None
    idle_seconds: float
    timeout: float
    hook_files: Sequence[str]
    end_seconds: float
    memory: Mapping[str, object] | None
    merge: str
    personas: Mapping[str, object] | None
    llm: Mapping[str, object] | None
    automations: Mapping[str, object] | None
    may: Mapping[str, object] | None
    mcp: bool
    notify: Mapping[str, object] | bool | None


class PatternOptions(TypedDict, total=False):
    """More on the handler of a pattern."""

    #: relay's own handlers do not run for what this one matches.
    override: bool
    timeout: float | None


class HookOptions(TypedDict, total=False):
    """More on a hook."""

    #: A higher one runs earlier.
    priority: int
    timeout: float | None
    #: Chooses by the tool's name.
    matcher: str
    #: "allow" or "block": what its own failure means.
    on_failure: str | None
    sequential: bool
    name: str | None


class RouteOptions(TypedDict, total=False):
    """More on a route function."""

    #: Of which events it is asked.
    kinds: Sequence[str] | None
    channels: Sequence[str] | None
    priority: int
    timeout: float | None


class Relay:
    """Handlers for one agent, and a way to the others. Making one touches nothing.

    In ``relay.config.py`` its handlers are picked up as they are. In a program of your own,
    ``wrap`` runs the agent with them. ``home`` is the state directory (default: RELAY_HOME);
    times are in seconds.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        home: str | None = None,
        **given: Unpack[RelaySettings],
    ) -> None:
        self.name = name
        self.registry = Registry()
        self._home = home
        settings = Settings()
        for key, value in given.items():
            with noted():
                key = relay_setting(key)
                if value is None:
                    continue
                changed = with_setting(settings, key, value)
                if changed.differs(settings):
                    settings = changed  # what is as it is anyway does not take another's place
        self.settings = settings

    @property
    def home(self) -> Home:
        """Where the state is."""
        return Home.from_env() if self._home is None else Home(self._home)

    @overload
    def pattern(self, key: str, handler: Handler, **options: Unpack[PatternOptions]) -> Handler: ...
    @overload
    def pattern(
        self, key: str, handler: None = ..., **options: Unpack[PatternOptions]
    ) -> Callable[[Handler], Handler]: ...
    def pattern(self, key: str, handler: Any = None, **options: Unpack[PatternOptions]) -> Any:
        """Register ``handler(target, message, ctx)`` for ``@key``; without one, a decorator.

        ``key`` is ``namespace``, ``namespace:target`` or ``namespace:glob*``. Raises ConfigError.
        """

        if callable(key):
            with noted():
                raise needs_word("pattern")

        def register(function: Any) -> Any:
            with noted():
                known_options("pattern", options)
                self.registry.add_pattern(*split_pattern(key), function, **options)
            return function

        return register if handler is None else register(handler)

    @overload
    def on(
        self, event: str | HookEventName, handler: Handler, **options: Unpack[HookOptions]
    ) -> Handler: ...
    @overload
    def on(
        self, event: str | HookEventName, handler: None = ..., **options: Unpack[HookOptions]
    ) -> Callable[[Handler], Handler]: ...
    def on(
        self, event: str | HookEventName, handler: Any = None, **options: Unpack[HookOptions]
    ) -> Any:
        """Register ``handler`` for ``event`` (``session_start``, ``sessionStart``, …).

        Without a handler, a decorator. ``handler`` is a function, a ``hook_types.Command`` or a
        ``hook_types.Url``. Raises ConfigError.
        """

        if callable(event):
            with noted():
                raise needs_word("on")

        def register(function: Any) -> Any:
            with noted():
                known_options("on", options)
                self.registry.add_hook(event, function, **options)
            return function

        return register if handler is None else register(handler)

    @overload
    def route(self, name: Handler) -> Handler: ...
    @overload
    def route(
        self, name: str | None = ..., **options: Unpack[RouteOptions]
    ) -> Callable[[Handler], Handler]: ...
    def route(self, name: Any = None, **options: Unpack[RouteOptions]) -> Any:
        """Register a function that says whether an event becomes a turn of a persona.

        A decorator, with or without parentheses: see docs/broker.md. Raises ConfigError.
        """

        def register(function: Any) -> Any:
            with noted():
                known_options("route", options)
                self.registry.add_route(named, function, **options)
            return function

        named = None if callable(name) else name
        return register(name) if callable(name) else register

    def adapter(self, name: str) -> AdapterDecorator:
        """Connect the channel ``name``: a decorator of the async generator of its events, whose
        ``send`` is one of the function that sends answers. See docs/broker.md."""
        return AdapterDecorator(self.registry, name)

    def send(
        self,
        to: str | Sequence[str],
        body: str,
        *,
        wait: float | None = None,
        sender: str | None = None,
        mode: str | None = None,
        thread: str | None = None,
        offline: bool = False,
    ) -> dict[str, Any]:
        """Send a message, starting the broker if need be.

        Returns ``{"id", "from", "deliveries": [{"to", "state", "reason"}]}`` once it is stored;
        with ``wait`` (seconds) once every receiver has seen it. Inside of a wrapped agent it goes
        out as that agent. Raises NotFound for a name that was never seen (unless ``offline``),
        NotDelivered when a delivery failed, Timeout.
        """
        optional = {"from": sender, "mode": mode, "thread": thread, "offline": offline or None}
        fields: dict[str, Any] = {key: value for key, value in optional.items() if value}
        receivers = to if isinstance(to, str) else list(to)
        with self._client() as client:
            answer = client.request(SEND, to=receivers, body=body, **fields, **self._auth())
            result = {key: answer[key] for key in ("id", "from", "deliveries")}
            if wait is not None:
                asked = client.request(
                    WAIT, id=answer["id"], timeout=wait, deadline=wait + 10.0, **self._auth()
                )
                result["deliveries"] = asked["deliveries"]
                _check_seen(result, bool(asked["done"]), wait)
        return result

    def agents(self) -> list[AgentRow]:
        """The agents that the broker knows."""
        with self._client() as client:
            return client.request(AGENTS)["agents"]

    def inbox(self, name: str | None = None) -> list[MessageRow]:
        """The messages to ``name`` (default: to you, or to the wrapped agent this runs in)."""
        with self._client() as client:
            rows: list[MessageRow] = client.request(INBOX, name=name, **self._auth())["rows"]
            return rows

    def fire(
        self,
        agent: str,
        event: str | HookEventName,
        input: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Any]:
        """Run the hooks of ``event`` in the session of a running ``agent``, and say what they said.

        ``input`` is what the event is about: ``{"tool_name": "Bash", "tool_input": {…}}``. Unlike
        in a dry run, what handlers ask ``ctx`` for is done; what they return is not. Returns what
        ``relay hooks fire --json`` prints: {event, correlation_id, success, decision, reason,
        results, …}. Raises UsageError for an event or input that is none, NotFound, Timeout
        (``timeout`` is at most 120 s), and RelayError when the agent does not run or its session
        failed.
        """
        from relay.broker.hookcall import fire

        with self._client() as client:
            return fire(client, agent, str(event), input or {}, timeout, **self._auth())

    def _client(self) -> BrokerClient:
        # Imported on use: a configuration file must not pay for it.
        from relay.broker.client import connect

        return connect(self.home)

    def _auth(self) -> Speaker:
        run, token = os.environ.get("RELAY_RUN"), os.environ.get("RELAY_TOKEN")
        if not run or self.home.root != Home.from_env().root:
            return {}
        return {"auth": {"run": run, "token": token or ""}}

    def _known(self) -> Known:
        from relay.config.manifest import Known, examples

        patterns = [f"{h.namespace}:{h.target}" for h in self.registry.patterns()]
        # What is in its hook files is read once the agent has started.
        maybe = bool(self.settings.hook_files)
        hooks = [event.value for event in HookEventName if maybe or self.registry.hooks(event)]
        return Known(examples(patterns), tuple(hooks), mcp=self.settings.mcp)

    def loaded(self) -> LoadedConfig:
        """These handlers and settings, as a session takes them."""
        return LoadedConfig(None, self.registry, self.settings, None)

    def wrap(self, command: str | Sequence[str], *, task: str | None = None) -> int:
        """Run ``command`` in this terminal as an agent with these handlers.

        A string is split like a shell would, without running one. Returns the agent's exit
        status. Raises UsageError, NameTaken and others of relay.core.errors before anything starts.
        """
        if executing_config():
            raise UsageError(
                "wrap() is called while the configuration loads",
                hint='put it under: if __name__ == "__main__":',
            )
        from relay.app import wrapped_run

        argv = shlex.split(command) if isinstance(command, str) else list(command)
        if not argv:
            raise UsageError("there is no command to wrap", hint='for example wrap("claude")')
        if self._home is not None:
            os.environ["RELAY_HOME"] = self.home.root
        task = self.settings.task if task is None else task
        choices = wrapped_run.Choices(
            argv,
            wrapped_run.Participant(self.name, task),
            own=wrapped_run.OwnHandlers(self.loaded, self._known()),
        )
        return wrapped_run.exit_status(wrapped_run.run(choices))


class AdapterDecorator:
    """``@relay.adapter(name)`` registers what tells of a channel's events, ``@relay.adapter(name)
    .send`` what sends its answers."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry = registry
        self._name = name

    def __call__(self, events: Handler) -> Handler:
        """Register ``events()``, or ``events(inlet)``. Raises ConfigError."""
        return self._add(events, events=events)

    def send(self, function: Handler) -> Handler:
        """Register ``function(context, text)``. Raises ConfigError."""
        return self._add(function, send=function)

    def _add(self, function: Handler, **half: Any) -> Handler:
        with noted():
            self._registry.add_channel_adapter(self._name, **half)
        return function


def _check_seen(result: dict[str, Any], done: bool, seconds: float) -> None:
    failed = [row for row in result["deliveries"] if row["state"] in ("failed", "cancelled")]
    if failed:
        why = "; ".join(f"{row['to']}: {row['reason']}" for row in failed)
        raise NotDelivered(
            f"message {result['id']} was not delivered: {why}",
            hint=f"see: relay show {result['id']}",
            details=result,
        )
    if not done:
        raise Timeout(
            f"message {result['id']} was not seen within {seconds:g} s",
            hint=f"it stays on its way: relay show {result['id']}",
            details=result,
        )
