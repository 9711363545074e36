from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import relay.app.wrapped_run
import relay.broker.client
from relay import Relay
from relay.app.wrapped_run import Choices
from relay.config.load import LoadedConfig
from relay.core.errors import ConfigError, NotDelivered, RelayError, Timeout, UsageError
from relay.core.paths import Home
from relay.hooks.events import HookEventName


class FakeClient:
    """Answers as the broker would; keeps what it was asked."""

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.home: Home | None = None
        self.error: RelayError | None = None
        self.closed = False

    def request(self, op: str, *, deadline: float = 30.0, **fields: Any) -> dict[str, Any]:
        self.asked.append((op, fields))
        if self.error is not None:
            raise self.error
        return self.answers[op]

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.closed = True


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    stored = [{"to": "Bob", "state": "queued", "reason": None}]
    client = FakeClient(
        {
            "send": {"id": "ID", "from": "me", "deliveries": stored, "present": ["Bob"]},
            "agents": {"agents": [{"name": "Bob"}], "persons": []},
            "inbox": {"name": "me", "rows": [{"id": "ID"}]},
        }
    )

    def connect(home: Home) -> FakeClient:
        client.home = home
        return client

    monkeypatch.setattr(relay.broker.client, "connect", connect)
    return client


def test_handlers_are_registered_by_call_and_by_decorator() -> None:
    relay = Relay()

    @relay.pattern("deploy:staging", timeout=5)
    def staging(target: str) -> str:
        return target

    def idle() -> None: ...

    assert relay.on("idle", idle) is idle
    assert relay.pattern("deploy", staging) is staging
    assert staging("x") == "x"
    assert [p.target for p in relay.registry.select("deploy", "staging")] == ["staging", "*"]
    assert relay.registry.patterns()[0].callee.timeout == 5.0
    assert len(relay.registry.hooks(HookEventName.IDLE)) == 1


def test_bad_handlers_and_settings_are_refused_at_once() -> None:
    relay = Relay()
    with pytest.raises(ConfigError, match="unknown event"):
        relay.on("sunset", lambda ctx: None)
    with pytest.raises(ConfigError, match="namespace"):
        relay.pattern("A B", lambda: None)
    with pytest.raises(ConfigError, match="idle_seconds"):
        Relay(idle_seconds=0)


def test_making_one_touches_nothing(isolated_home: Path) -> None:
    relay = Relay(name="Alice", task="t")
    assert relay.home.root == str(isolated_home)
    assert not isolated_home.exists()
    assert Relay(home="/elsewhere").home.root == "/elsewhere"


def test_its_handlers_are_what_a_session_takes() -> None:
    relay = Relay(task="t", idle_seconds=5)
    loaded = relay.loaded()
    assert isinstance(loaded, LoadedConfig)
    assert loaded.registry is relay.registry
    assert (loaded.settings.task, loaded.settings.idle_seconds, loaded.path) == ("t", 5.0, None)


@pytest.mark.parametrize("command", ["prog 'two words'", ["prog", "two words"]])
def test_wrap_runs_the_command_with_these_handlers(
    monkeypatch: pytest.MonkeyPatch, command: str | list[str]
) -> None:
    seen: list[tuple[Any, ...]] = []

    def run(choices: Choices) -> int:
        assert choices.own is not None
        assert (choices.own.known.namespaces, choices.own.known.hooks) == (
            ("relay", "memory"),
            ("BeforeTool",),
        )
        registry = choices.own.load().registry
        seen.append((choices.command, choices.participant.name, choices.participant.task, registry))
        return 7

    monkeypatch.setattr(relay.app.wrapped_run, "run", run)
    mine = Relay(name="Alice", task="the task")
    mine.on("before_tool", print)
    assert mine.wrap(command) == 7
    assert mine.wrap(command, task="another") == 7
    assert seen == [
        (["prog", "two words"], "Alice", "the task", mine.registry),
        (["prog", "two words"], "Alice", "another", mine.registry),
    ]


def test_with_hook_files_an_agent_is_asked_for_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []

    def run(choices: Choices) -> int:
        assert choices.own is not None
        seen.append(choices.own.known.hooks)
        return 0

    monkeypatch.setattr(relay.app.wrapped_run, "run", run)
    Relay(hook_files=["hooks.json"]).wrap("prog")
    assert seen == [tuple(HookEventName)]


@pytest.mark.parametrize("command", ["", "  ", []])
def test_wrap_needs_a_command(command: str | list[str]) -> None:
    with pytest.raises(UsageError, match="no command"):
        Relay().wrap(command)


def test_sending_says_what_became_of_it(broker: FakeClient) -> None:
    answer = Relay(home="/some/home").send("Bob", "hello", mode="steer", thread="t")
    assert answer == {
        "id": "ID",
        "from": "me",
        "deliveries": [{"to": "Bob", "state": "queued", "reason": None}],
    }
    assert broker.asked == [
        ("send", {"to": "Bob", "body": "hello", "mode": "steer", "thread": "t"})
    ]
    assert broker.home is not None
    assert broker.home.root == "/some/home"
    assert broker.closed


def test_inside_of_an_agent_it_speaks_as_that_agent(
    broker: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_RUN", "RUN")
    monkeypatch.setenv("RELAY_TOKEN", "secret")
    Relay().send("Bob", "hello")
    assert broker.asked[0][1]["auth"] == {"run": "RUN", "token": "secret"}
    # The token of one home is not shown to the broker of another.
    Relay(home="/another").send("Bob", "hello")
    assert "auth" not in broker.asked[1][1]


def test_waiting_ends_as_seen_as_failed_or_in_time(broker: FakeClient) -> None:
    def becomes(state: str, done: bool) -> None:
        rows = [{"to": "Bob", "state": state, "reason": "why"}]
        broker.answers["wait"] = {"done": done, "deliveries": rows}

    becomes("seen", True)
    assert Relay().send("Bob", "hello", wait=5)["deliveries"][0]["state"] == "seen"
    assert broker.asked[-1] == ("wait", {"id": "ID", "timeout": 5})
    becomes("failed", True)
    with pytest.raises(NotDelivered, match="Bob: why"):
        Relay().send("Bob", "hello", wait=5)
    becomes("queued", False)
    with pytest.raises(Timeout) as caught:
        Relay().send("Bob", "hello", wait=5)
    assert "relay show ID" in caught.value.hint


def test_hooks_are_fired_in_the_agents_session(
    broker: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = {"event": "BeforeTool", "correlation_id": "C", "decision": "deny"}
    broker.answers["ask"] = {"response": output}
    monkeypatch.setenv("RELAY_RUN", "RUN")
    monkeypatch.setenv("RELAY_TOKEN", "secret")
    assert Relay().fire("Bob", HookEventName.BEFORE_TOOL, {"tool_name": "Bash"}) == output
    [(_op, fields)] = broker.asked
    assert fields["request"].pop("correlation_id")
    assert broker.asked == [
        (
            "ask",
            {
                "agent": "Bob",
                "kind": "hooks",
                "request": {"event_name": "BeforeTool", "input": {"tool_name": "Bash"}},
                "timeout": 30.0,
                "auth": {"run": "RUN", "token": "secret"},
            },
        )
    ]
    with pytest.raises(UsageError, match="no JSON form"):
        Relay().fire("Bob", "idle", {"x": {1, 2}})
    with pytest.raises(UsageError, match="120"):
        Relay().fire("Bob", "idle", {"idle_seconds": 1}, timeout=121)


def test_a_request_to_hooks_that_is_refused_says_which_runs_it_was(broker: FakeClient) -> None:
    broker.error = Timeout("why not")
    with pytest.raises(Timeout, match="why not") as caught:
        Relay().fire("Bob", "idle", {"idle_seconds": 1})
    assert uuid.UUID(str(caught.value.details["correlation_id"]))


def test_agents_and_inbox(broker: FakeClient) -> None:
    assert [row["name"] for row in Relay().agents()] == ["Bob"]
    assert [row["id"] for row in Relay().inbox()] == ["ID"]
    assert [row["id"] for row in Relay().inbox("Alice")] == ["ID"]
    assert broker.asked[1:] == [("inbox", {"name": None}), ("inbox", {"name": "Alice"})]
