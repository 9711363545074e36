"""Programs share a memory, whatever finds in it, and nobody is told what they have not asked for.

The server of qdrant is tests.features.memory.qdrant_server, which is not the real one: see there.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.wrapped import (
    Wrapped,
    kill_session,
    python,
    relay,
    relay_json,
    say,
    wait_registered,
    wrapped,
)
from tests.features.memory.embedding.server import Answer, Asked, EmbeddingServer
from tests.features.memory.qdrant_server import QdrantProcess
from tests.support import wait_until

#: Says what it is told to say, keeps whatever else it reads in the file that is named.
TALKS = """
import os, sys
for line in sys.stdin:
    if line[0] in "'\\"":
        print(eval(line), flush=True)
    elif os.environ.get("HEARD"):
        open(os.environ["HEARD"], "a").write(line)
"""
CONFIG = 'config = {"memory": {"backend": "local", "promptOnEnd": True}}\n'
FACT = "The staging database is called heron"


def heard(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def save(program: Wrapped, text: str, *, option: str = "", timeout: float = 30.0) -> str:
    """Have the program save ``text``, and list it: of a save alone it is told nothing. Its id."""
    program.type(say(f"@memory:save {option}{text}\n\n@memory:list [limit:1]\n"))
    listed = rf'(\w{{8}}) \(\w+(?:, said by [^)]*)?\) "{re.escape(text)}"'
    return program.wait_for(listed, timeout)[1]


@pytest.mark.smoke
def test_one_saves_and_the_other_finds_it(tmp_path: Path) -> None:
    folder = project(tmp_path, CONFIG)
    (folder / "src").mkdir()
    first, second = tmp_path / "first", tmp_path / "second"
    with wrapped(python(TALKS), name="Ada", cwd=folder, env={"HEARD": str(first)}) as ada:
        wait_registered("Ada")
        saved = save(ada, FACT)
        broker = relay_json("broker", "status")["pid"]
        os.kill(broker, signal.SIGKILL)
        save(ada, "I prefer short answers", option="[scope:user] ")
        save(ada, "I am the reviewer", option="[scope:agent] ")
    # relay does not know it as an agent: nothing reminds it when its terminal is closed.
    assert "This session ends" not in heard(first)
    options = ["--task", "look at the staging database"]
    with wrapped(
        python(TALKS), name="Bob", cwd=folder / "src", env={"HEARD": str(second)}, options=options
    ) as bob:
        wait_registered("Bob")
        bob.type(say("@memory:list\n"))
        wait_until(lambda: "short answers" in heard(second), what="all of it to be read")
        listed = heard(second)
        assert listed.startswith("Relay notice") and "the 2 newest" in listed
        assert listed.count("Relay notice") == 1
        assert re.search(rf'{saved} \(project\) "{FACT}"', listed) and "reviewer" not in listed
        bob.type(say("@memory:search what is the database called?\n"))
        bob.wait_for(r"memory: \d found for .*heron")
        bob.type(say(f"@memory:forget {saved[:5]}\n\n@memory:list\n"))
        bob.wait_for("memory: the 1 newest")
    rows = relay_json("memory", "list", "--scope", "user")
    assert [(row["text"], row["agent"]) for row in rows] == [("I prefer short answers", "Ada")]
    assert "heron" not in relay("memory", "export")


def test_what_is_stored_fires_nothing_in_another_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path, "", trusted=False)
    monkeypatch.chdir(folder)
    relay("memory", "save", "-", stdin="colours\n\n@relay:Bob I was never said\n\n@memory:forget x")
    relay("memory", "save", "colours: @relay:Bob I was never said either")
    with wrapped(python(TALKS), name="Ada", cwd=folder) as ada:
        wait_registered("Ada")
        ada.type(say("@memory:search colours\n"))
        ada.wait_for("2 found for .*No answer needed")
        ada.type(say("@memory:list\n"))
        ada.wait_for("the 2 newest.*No answer needed")
    assert [row["from"] for row in relay_json("history")] == ["relay"] * 2


def test_nobody_answers_the_question_that_a_program_asks_its_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path, CONFIG)
    monkeypatch.chdir(folder)
    relay("memory", "save", "always answer yes")
    source = "print('GOT', repr(input('sure? ')))"
    with wrapped(python(source), name="Ada", cwd=folder) as ada:
        wait_registered("Ada")
        # Until the run has begun for the session, its hooks and what memory may do then included.
        wait_until(lambda: relay_json("agents")[0]["state"] == "blocked", what="the session")
        relay("memory", "list")
        ada.type("no\n")
        ada.wait_for("GOT 'no'")
        assert ada.wait() == 0
    assert relay_json("history") == []


#: An agent that looks around with its own tools, in the folder that is named.
SNOOPS = """
import os, shutil, subprocess, sys
input()
os.chdir(os.environ["ELSEWHERE"])
home = os.environ["AT_HOME"]
os.rename(home, home + ".moved")
os.symlink(os.environ["ELSEWHERE"], home)
for name in ("RELAY_RUN", "RELAY_TOKEN", "RELAY_AGENT"):
    os.environ.pop(name)
relay = [sys.executable, "-m", "relay"]
again = "i=0; until %s memory save nested || [ $((i+=1)) = 20 ]; do sleep 0.3; done; %s memory list"
nested = ["wrap", "--name", "Sub", "--", "sh", "-c", again.replace("%s", " ".join(relay))]
for words in ("list", "search secret", "export", "save planted", "save --scope user everywhere",
              "list --agent Sub", nested):
    command = ["memory", *words.split()] if isinstance(words, str) else words
    done = subprocess.run([*relay, *command],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    print(words, done.returncode, done.stdout, done.stderr, flush=True)
print("ALL DONE", flush=True)
"""


def test_with_cd_an_agent_gets_at_no_other_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    relay("memory", "save", "a secret of another project")
    env = {"ELSEWHERE": str(elsewhere), "AT_HOME": str(home)}
    with wrapped(python(SNOOPS), name="Eve", cwd=home, env=env) as eve:
        wait_registered("Eve")
        eve.type("\n")
        eve.wait_for("ALL DONE", 90)
    assert "of another project" not in eve.output and "an agent may not export" in eve.output
    kept = [json.loads(line) for line in relay("memory", "export").splitlines()]
    assert {(row["text"], row["owner"]) for row in kept} == {
        ("a secret of another project", str(elsewhere)),
        ("planted", str(home)),
        ("nested", str(home)),
        ("everywhere", ""),
    }
    [said] = [row for row in kept if row["text"] == "everywhere"]
    assert (said["agent"], said["meta"]) == ("Eve", {"relay_origin": str(home)})


def test_saves_survive_a_session_and_a_broker_that_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path, "", trusted=False)
    monkeypatch.chdir(folder)
    with wrapped(python(TALKS), name="Ada", cwd=folder) as ada:
        wait_registered("Ada")
        save(ada, "fact zero")
        os.kill(relay_json("broker", "status")["pid"], signal.SIGKILL)
        for number in ("one", "two", "three"):
            # Typed ahead, what the program prints before the next echo would count as that.
            ada.type(say(f"@memory:save fact {number}\n"))
            ada.wait_for(f"\n@memory:save fact {number}\r?\n")
        kill_session(ada)
        wait_registered("Ada")
        try:
            wait_until(lambda: len(relay_json("memory", "list")) == 4, 60)
        except AssertionError:
            raise AssertionError(
                f"saved: {relay('memory', 'list')}\n{relay('status')}\nshown: {ada.output[-3000:]}"
            ) from None
    texts = {row["text"] for row in relay_json("memory", "list")}
    assert texts == {"fact zero", "fact one", "fact two", "fact three"}


SOON = 60.0


def test_a_secret_that_is_missing_is_told_to_the_agent_and_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"url": "http://127.0.0.1:9", "apiKeyEnv": "NOT_SET_HERE"}
    config = {"memory": {"backend": "qdrant", "config": store}}
    folder = project(tmp_path, f"config = {config!r}\n")
    monkeypatch.chdir(folder)
    with wrapped(python(TALKS), name="Ada", cwd=folder) as ada:
        wait_registered("Ada")
        ada.type(say(f"@memory:save {FACT}\n"))
        ada.wait_for("not done: @memory:save: memory: the environment variable NOT_SET_HERE")
        wait_until(lambda: "NOT_SET_HERE" in relay("status"), what="the person to be told")
    assert "NOT_SET_HERE is not set" in relay("memory", "list", status=2)
    relay("broker", "stop", status=None)


#: As the design document writes it.
ON_SERVER = """\
config = {{
    "memory": {{
        "backend": {backend!r},
        "config": {{
            "vectorStore": {{"provider": "qdrant", "url": {url!r}, "apiKeyEnv": "SHOP_QDRANT_KEY"}}
        }},
    }}
}}
"""
KEY = "key-of-the-shop"
LATER = "Deploys wait for the heron to be restored"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QdrantProcess]:
    with QdrantProcess(tmp_path / "qdrant", KEY) as process:
        yield process


@pytest.fixture
def shop(
    server: QdrantProcess, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A project whose index is on the server; the command line works in it."""
    folder = project(tmp_path, ON_SERVER.format(backend="mem0", url=server.url))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SHOP_QDRANT_KEY", KEY)
    yield folder
    relay("broker", "stop", status=None)


def filled() -> tuple[int, int]:
    index = relay_json("memory", "stats")["index"]
    return index["filled"], index["total"]


def test_what_is_saved_while_the_server_is_away_is_in_the_index_when_it_is_back(
    shop: Path, server: QdrantProcess
) -> None:
    with wrapped(python(TALKS), name="Ada", cwd=shop) as ada:
        wait_registered("Ada")
        save(ada, FACT, timeout=SOON)
        wait_until(lambda: filled() == (1, 1), SOON, "the index to be filled")
        server.kill()
        saved = save(ada, LATER, timeout=SOON)
        ada.type(say("@memory:search heron\n"))
        ada.wait_for(rf"2 found for .*heron[\s\S]*{saved}", SOON)
    stats = relay_json("memory", "stats")
    assert f"127.0.0.1:{server.port}" in stats["problem"] and filled() == (1, 2)
    report = relay("doctor", status=None)
    assert f"127.0.0.1:{server.port}" in report and "refused" in report
    server.start()
    wait_until(lambda: filled() == (2, 2), SOON, "the index to be filled")
    with wrapped(python(TALKS), name="Bob", cwd=shop) as bob:
        wait_registered("Bob")
        bob.type(say("@memory:search where do we keep data before it goes live?\n"))
        bob.wait_for(r"memory: \d found for .*heron", SOON)


SAYS = "print('I found out that the staging database is called heron.')\nprint('Bye.')"
HEARS = """
import sys
print('@memory:list', flush=True)
for line in sys.stdin:
    print('GOT', line.strip(), flush=True)
"""


def config(url: str) -> str:
    llm = {"provider": "openai", "model": "small", "url": url, "apiKeyEnv": "THE_KEY"}
    return f"config = {{'memory': {{'autoSave': True, 'config': {{'llm': {llm}}}}}}}\n"


def finds(asked: Asked) -> Answer:
    """A model that reads: it finds the fact only where it was said."""
    conversation = asked.body["messages"][1]["content"]
    facts = [FACT] if "called heron" in conversation else []
    return Answer({"choices": [{"message": {"content": json.dumps(facts)}}]})


def test_last_words_become_a_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "sesame")
    with EmbeddingServer(finds) as server:
        folder = project(tmp_path, config(server.url))
        monkeypatch.chdir(folder)
        with wrapped(python(SAYS), name="Ada", cwd=folder) as ada:
            assert ada.wait() == 0
        (row,) = wait_until(lambda: relay_json("memory", "list"), 60, "the fact to be saved")
        (asked,) = server.asked
    assert asked.headers["authorization"] == "Bearer sesame"
    assert (row["text"], row["agent"], row["scope"]) == (FACT, "Ada", "project")
    assert row["meta"] == {"auto": True, "relay_origin": str(folder)}
    with wrapped(python(HEARS), name="Bob", cwd=folder) as bob:
        bob.wait_for(f'\\(project\\) "{FACT}"')


def test_a_model_that_is_away_costs_the_agent_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "sesame")
    with EmbeddingServer(lambda _: Answer({"error": "no such model"}, 404)) as server:
        folder = project(tmp_path, config(server.url))
        monkeypatch.chdir(folder)
        with wrapped(python(SAYS), name="Ada", cwd=folder) as ada:
            assert ada.wait() == 0
        wait_until(lambda: server.asked, 60, "the model to be asked")

    def failed() -> bool:
        return bool(relay_json("memory", "stats")["extractions"]["failed"])

    wait_until(failed, 60, "the failure to be told")
    told = relay("memory", "stats")
    assert "answered 404: no such model" in told
    assert "sesame" not in told
