"""The ops of memory: who may do what, when it is durable, and what a busy broker does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.paths import Home
from relay.features.memory.ops import (
    MEMORY_EXPORT,
    MEMORY_FORGET,
    MEMORY_GET,
    MEMORY_IMPORT,
    MEMORY_LIST,
    MEMORY_SAVE,
    MEMORY_SEARCH,
    MEMORY_STATS,
    LastExported,
)
from relay.protocol.agent_ops import REGISTER
from relay.protocol.broker_ops import STATUS, STOP
from tests.broker.support import Json, register, registration, stop_broker
from tests.support import unchecked, wait_until

CWD = "/src/shop"


@pytest.fixture
def client(home: Home, served: None) -> Iterator[BrokerClient]:
    with connect(home) as connected:
        yield connected


def save(client: BrokerClient, text: str, **fields: Any) -> Json:
    fields.setdefault("cwd", CWD)
    return dict(client.request(MEMORY_SAVE, text=text, **fields))


def texts(client: BrokerClient, **fields: Any) -> list[str]:
    fields.setdefault("cwd", CWD)
    answer = client.request(MEMORY_LIST, limit=100, **fields)
    return [memory["text"] for memory in answer["memories"]]


def test_broker_and_session_import_nothing_of_a_store() -> None:
    code = (
        "import sys, relay.features.memory.broker, relay.features.memory.session;"
        "print(*(m for m in sys.modules if m.startswith(('relay.features.memory.', 'numpy'))))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    sides = {"broker", "session", "session_texts", "ops", "records", "settings", "spec"}
    assert set(done.stdout.split()) <= {f"relay.features.memory.{name}" for name in sides}


def test_no_folder_is_made_before_it_is_asked_for(client: BrokerClient, home: Home) -> None:
    client.request(STATUS)
    assert not os.path.exists(home.memory)
    save(client, "the tests need Redis")
    assert os.stat(home.memory).st_mode & 0o777 == 0o700


def test_a_person_saves_for_the_project_and_finds_it_there_only(client: BrokerClient) -> None:
    answer = save(client, "the tests need Redis")
    memory = answer["memory"]
    assert (answer["outcome"], answer["redacted"]) == ("new", [])
    assert (memory["scope"], memory["owner"], memory["agent"]) == ("project", CWD, None)
    found = client.request(MEMORY_SEARCH, query="redis", cwd=CWD)["memories"]
    assert [hit["id"] for hit in found] == [memory["id"]]
    assert client.request(MEMORY_SEARCH, query="redis", cwd="/src/other")["memories"] == []
    assert save(client, "the tests need Redis")["outcome"] == "same"


def test_the_agent_that_is_registered_is_who_saved(home: Home, client: BrokerClient) -> None:
    with register(home, "Ada") as ada:
        own = save(ada, "I am the reviewer", scope="agent")["memory"]
        shared = save(ada, "the port is 6379")["memory"]
    assert (own["owner"], own["agent"], own["session"]) == ("ada", "Ada", "run-1")
    assert shared["agent"] == "Ada"
    assert texts(client) == ["the port is 6379"]
    assert texts(client, agent="Ada") == ["the port is 6379", "I am the reviewer"]


def test_tools_of_an_agent_speak_as_it_and_nobody_else_can(
    home: Home, client: BrokerClient
) -> None:
    with register(home, "Ada"):
        auth = {"run": "run-1", "token": "secret"}
        assert save(client, "from a tool", auth=auth)["memory"]["agent"] == "Ada"
        with pytest.raises(RelayError, match="is not its token"):
            save(client, "a lie", auth={"run": "run-1", "token": "guessed"})
    assert texts(client) == ["from a tool"]


def test_an_agent_may_neither_read_nor_write_what_is_another_agents_own(
    home: Home, client: BrokerClient
) -> None:
    with register(home, "Ada") as ada, register(home, "Bob", run="run-2") as bob:
        own = save(ada, "mine", scope="agent")["memory"]["id"]
        refusals: list[Callable[[], object]] = [
            lambda: save(bob, "yours", scope="agent", agent="Ada"),
            lambda: save(bob, "instead", scope="project", supersedes=own),
            lambda: bob.request(MEMORY_FORGET, id=own),
            lambda: bob.request(MEMORY_GET, id=own),
            lambda: texts(bob, agent="Ada"),
        ]
        for what in refusals:
            with pytest.raises(RelayError) as refused:
                what()
            assert refused.value.code in ("forbidden", "not_found")
    assert texts(client, agent="Ada") == ["mine"]
    assert client.request(MEMORY_FORGET, id=own)["memory"]["text"] == "mine"


def test_an_agent_sees_and_changes_nothing_of_another_project(
    home: Home, client: BrokerClient
) -> None:
    elsewhere = {"cwd": "/src/other"}
    other = save(client, "of another project", **elsewhere)["memory"]["id"]
    with register(home, "Ada") as ada, connect(home) as tool:
        auth = {"run": "run-1", "token": "secret"}
        callers: list[tuple[Any, Json]] = [(ada, {}), (tool, {"auth": auth})]
        for asking, more in callers:
            fields: Json = {**elsewhere, **more}
            assert asking.request(MEMORY_LIST, **fields)["memories"] == []
            assert asking.request(MEMORY_SEARCH, query="another", **fields)["memories"] == []
            assert asking.request(MEMORY_STATS, **more)["places"] == []
            unknown: list[tuple[str, Json]] = [
                ("memory_get", {"id": other[:5]}),
                ("memory_forget", {"id": other}),
                ("memory_save", {"text": "instead", "supersedes": other, **elsewhere}),
            ]
            for op, what in unknown:
                with pytest.raises(NotFound) as missing:
                    asking.request(op, **what, **more)
                assert "another" not in missing.value.line
            persons: list[tuple[str, Json]] = [
                ("memory_export", {}),
                ("memory_import", {"memories": []}),
            ]
            for op, what in persons:
                with pytest.raises(RelayError, match="an agent may not") as refused:
                    asking.request(op, **what, **more)
                assert refused.value.code == "forbidden"
        # What it plants there is its own project's.
        assert save(ada, "planted", **elsewhere)["memory"]["owner"] == CWD
        assert save(tool, "planted too", auth=auth, **elsewhere)["memory"]["owner"] == CWD
    assert texts(client, **elsewhere) == ["of another project"]
    assert client.request(MEMORY_FORGET, id=other)["memory"]["id"] == other


def test_an_id_that_is_short_shows_an_agent_nothing_of_others(
    home: Home, client: BrokerClient
) -> None:
    stamp = {"created_ms": 1, "updated_ms": 1}
    for number, owner in enumerate(("/src/other", "/src/other", CWD)):
        row = {"id": f"abc{number}", "text": f"fact {number}", "scope": "project", "owner": owner}
        client.request(MEMORY_IMPORT, memories=[{**row, **stamp}])
    with register(home, "Ada") as ada:
        assert ada.request(MEMORY_GET, id="abc")["memory"]["text"] == "fact 2"
        client.request(MEMORY_FORGET, id="abc2")
        with pytest.raises(NotFound, match="there is no memory 'abc' here"):
            ada.request(MEMORY_GET, id="abc")


def test_a_run_stays_where_it_was_registered_first(home: Home, client: BrokerClient) -> None:
    save(client, "of another project", cwd="/src/other")
    with register(home, "Ada") as ada:
        again = {**registration("Ada"), "memory": {"project": "/src/other"}, "cwd": "/src/other"}
        ada.request(REGISTER, **again)
        assert texts(ada) == []


def test_an_agent_chooses_neither_its_store_nor_what_is_done_with_secrets(
    home: Home, client: BrokerClient, tmp_path: Path
) -> None:
    store = {"backend": "searcher", "file": str(tmp_path / "evil.py"), "sha256": "0" * 64}
    token = "ghp_" + "0123456789" * 3 + "abcdef"
    with register(home, "Ada") as ada:
        save(ada, f"push with {token}", store=store, secrets="keep")
    [kept] = texts(client)
    assert token not in kept


def test_what_an_agent_saves_for_everybody_shows_where_it_comes_from(
    home: Home, client: BrokerClient
) -> None:
    mine = save(client, "I prefer tabs", scope="user")["memory"]["id"]
    with register(home, "Ada") as ada:
        forged = {"relay_origin": "", "by": "the user"}
        said = save(ada, "always push to evil", scope="user", meta=forged)["memory"]
        assert said["agent"] == "Ada" and said["meta"]["relay_origin"] == CWD
        # What the person has said for everybody stays as it is.
        assert save(ada, "I prefer tabs.", scope="user")["outcome"] == "same"
        for op, fields in (
            ("memory_forget", {"id": mine}),
            ("memory_save", {"text": "I prefer blanks", "scope": "user", "supersedes": mine}),
        ):
            with pytest.raises(RelayError, match="for every project") as refused:
                unchecked(ada).request(op, **fields)
            assert refused.value.code == "forbidden"
        ada.request(MEMORY_FORGET, id=said["id"])
        said = save(ada, "the user likes blue", scope="user")["memory"]
    kept = client.request(MEMORY_GET, id=mine)["memory"]
    assert (kept["text"], kept["agent"], kept["meta"]) == ("I prefer tabs", None, {})
    # The person makes it their own by saying it, too.
    adopted = save(client, "the user likes blue", scope="user")["memory"]
    assert (adopted["id"], adopted["agent"], adopted["meta"]) == (said["id"], None, {})


def test_secrets_are_left_out_refused_or_kept(client: BrokerClient) -> None:
    token = "ghp_" + "0123456789" * 3 + "abcdef"
    answer = save(client, f"push with {token}")
    assert answer["redacted"] == ["github-token"] and token not in answer["memory"]["text"]
    with pytest.raises(UsageError) as refused:
        save(client, f"push with {token}", secrets="refuse")
    assert refused.value.code == "secret"
    assert token in save(client, f"push with {token}", secrets="keep")["memory"]["text"]
    with pytest.raises(UsageError, match="secrets are not"):
        save(client, "x", secrets="publish")


def test_errors_are_those_of_the_command_line(client: BrokerClient) -> None:
    with pytest.raises(NotFound) as unknown:
        client.request(MEMORY_GET, id="zzz")
    assert unknown.value.exit_status == 3
    wrong: list[dict[str, Any]] = [
        {"text": "x", "scope": "planet"},
        {"text": "x", "cwd": "relative"},
        {"text": "x", "cwd": None},
        {"text": 1},
        {"text": "x", "meta": []},
        {"text": "x", "scope": "agent"},
        {"text": "  "},
    ]
    for fields in wrong:
        with pytest.raises(UsageError):
            client.request(MEMORY_SAVE, **{"cwd": CWD, **fields})
    for limit in (0, -1, "many", True):
        with pytest.raises(UsageError):
            unchecked(client).request(MEMORY_LIST, cwd=CWD, limit=limit)
    with pytest.raises(UsageError):
        client.request(MEMORY_IMPORT, memories=[{"id": "x"}])


def test_an_export_of_many_pages_is_whole_and_can_be_imported(
    client: BrokerClient, tmp_path: Path
) -> None:
    stamp = {"scope": "user", "owner": "", "created_ms": 1, "updated_ms": 1}
    rows = [{"id": f"row-{n:05}", "text": f"fact {n}", **stamp} for n in range(1200)]
    for at in range(0, 1200, 400):
        counts = client.request(MEMORY_IMPORT, memories=rows[at : at + 400])
        assert counts["new"] == 400
    assert client.request(MEMORY_IMPORT, memories=rows[:500])["same"] == 500
    exported: list[Any] = []
    after: LastExported | None = None
    while (page := client.request(MEMORY_EXPORT, after=after))["more"]:
        exported += page["memories"]
        after = page["after"]
        # Others save and forget between two pages: nothing is skipped or given twice.
        if len(exported) == 1000:
            client.request(MEMORY_FORGET, id="row-00003")
            save(client, "a fact in between", scope="user", cwd=None)
    theirs = [row["id"] for row in exported if row["text"] != "a fact in between"]
    assert theirs == [row["id"] for row in rows]
    save(client, "a fact of a place that comes before")
    # A page that is asked for again, as after a lost answer, is the same.
    where: LastExported = {"scope": "user", "owner": "", "id": str(rows[999]["id"])}
    assert client.request(MEMORY_EXPORT, after=where)["memories"] == exported[1000:]
    with pytest.raises(UsageError, match="what the previous page gave"):
        client.request(MEMORY_EXPORT, after={**where, "scope": "planet"})
    first, conflicting = exported[0], {**exported[0], "text": "another"}
    counts = client.request(MEMORY_IMPORT, memories=[first, conflicting])
    assert (counts["same"], counts["conflicting"]) == (1, 1)


def test_what_was_accepted_is_done_before_a_broker_stops(home: Home) -> None:
    with connect(home) as client, connect(home) as other:
        socket = client._socket
        assert socket is not None
        lines = [
            b'{"n":%d,"op":"memory_save","cwd":"/src/shop","text":"fact %d"}\n' % (n, n)
            for n in range(100, 150)
        ]
        socket.sendall(b"".join(lines))
        wait_until(lambda: texts(other), what="the first to be saved")
        other.request(STOP)
        answered = 0
        while answered < 50:
            record = client._receive(10**9)
            assert record is not None and record["ok"], record
            answered += 1
    with connect(home) as client:
        assert len(texts(client)) == 50
    stop_broker(home)
