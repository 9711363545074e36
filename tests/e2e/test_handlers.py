"""The user's own patterns and hooks, in a wrapped program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wrapped import ECHO, RELAY, python, relay, relay_json, wait_registered, wrapped
from tests.support import wait_until

CONFIG = """
import asyncio

def deploy(target, message, ctx):
    return {"inject": f"deployed {message} to {target} for {ctx.agent_name}"}

async def slow(target, message, ctx):
    await asyncio.sleep(0)
    return f"asynchronous {target}"

def broken(target, message, ctx):
    raise RuntimeError("this handler is broken")

def first(target, message, ctx):
    return {"inject": "only the first", "stop": True}

def second(target, message, ctx):
    return "never the second"

patterns = {
    "deploy": deploy,
    "slow": slow,
    "broken": broken,
    "chain:exact": first,
    "chain:*": second,
}

def on_session_start(ctx):
    return f"welcome {ctx.agentName}, task {ctx.task}"

def on_output(output, ctx):
    if "ERROR" in output:
        ctx.notify("errors", output)

def on_message_received(sender, body, ctx):
    ctx.inject(f"heard from {sender}: {body}")

def on_idle(ctx):
    return "are you asleep?"

hooks = {
    "on_session_start": on_session_start,
    "onOutput": on_output,
    "on_message_received": on_message_received,
    "on_idle": on_idle,
}
config = {"idle_seconds": 3}
"""


def project(tmp_path: Path, text: str = CONFIG, *, trusted: bool = True) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".git").mkdir()
    (folder / "relay.config.py").write_text(text)
    if trusted:
        relay("trust", str(folder / "relay.config.py"))
    return folder


@pytest.mark.smoke
def test_a_hook_greets_the_agent_and_patterns_answer_it(tmp_path: Path) -> None:
    folder = project(tmp_path)
    keep_reading = (
        "import sys\n"
        "print('@deploy:staging v1.2\\n\\n@slow:lane x\\n\\n@chain:exact x\\n', flush=True)\n"
        "print('@broken:now x\\n\\n@unknown:thing is text\\n', flush=True)\n"
        "for line in sys.stdin: print('GOT', line.strip(), flush=True)\n"
    )
    options = ["--task", "ship it"]
    with wrapped(python(keep_reading), name="Alice", cwd=folder, options=options) as alice:
        alice.wait_for("Relay notice .*: welcome Alice, task ship it")
        alice.wait_for("GOT Relay notice .*: deployed v1.2 to staging for Alice")
        alice.wait_for("GOT Relay notice .*: asynchronous lane")
        alice.wait_for("GOT Relay notice .*: only the first")
        alice.wait_for("GOT Relay notice .*: @broken:now: its handler failed")
        assert "never the second" not in alice.output
        wait_until(lambda: "this handler is broken" in relay("status"), 20)
        assert "@unknown" not in str(relay_json("history"))


def test_hooks_hear_output_messages_and_silence(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with wrapped(python(ECHO), name="Bob", cwd=folder) as bob:
        wait_registered("Bob")
        relay("send", "Bob", "knock knock")
        bob.wait_for("GOT Relay notice .*: heard from .*: knock knock")
        bob.type("an ERROR of mine\n")
        bob.wait_for("GOT an ERROR of mine")
        wait_until(lambda: "an ERROR of mine" in str(relay_json("inbox")), 20)
        bob.wait_for("GOT Relay notice .*: are you asleep", 30)


def test_an_agent_that_runs_uses_a_changed_configuration_once_it_is_reloaded(
    tmp_path: Path,
) -> None:
    text = "hooks = {'on_message_received': lambda sender, body, ctx: ctx.inject('VERSION')}\n"
    folder = project(tmp_path, text.replace("VERSION", "the first one"))
    file = folder / "relay.config.py"
    with wrapped(python(ECHO), name="Bob", cwd=folder) as bob:
        wait_registered("Bob")
        relay("send", "Bob", "which?")
        bob.wait_for("GOT Relay notice .*: the first one")
        file.write_text(text.replace("VERSION", "the second one"))
        said = subprocess.run([*RELAY, "trust", str(file)], capture_output=True, text=True).stderr
        assert "Bob runs with the earlier configuration: relay reload Bob" in said
        relay("send", "Bob", "and now?")
        bob.wait_for("and now.*GOT Relay notice .*: the first one")
        relay("reload", "Bob")
        relay("send", "Bob", "at last?")
        bob.wait_for("GOT Relay notice .*: the second one")
        file.write_text("a mistake of a moment\n")
        relay("reload", "Bob", status=1)  # it keeps what it has
        relay("send", "Bob", "still?")
        bob.wait_for("still.*GOT Relay notice .*: the second one")
        assert relay("reload", "Nobody", status=3)


def test_another_process_asks_the_hooks_of_the_session(tmp_path: Path) -> None:
    folder = project(
        tmp_path,
        "def guard(tool, input, ctx):\n"
        "    ctx.inject(f'somebody wants {tool}')\n"
        "    if 'rm' in input['command']:\n"
        "        return {'decision': 'deny', 'reason': f'not for {ctx.agent_name}'}\n"
        "hooks = {'before_tool': {'handler': guard, 'matcher': 'Bash'}}\n",
    )

    def fire(event: str, tool: str = "", command: str = "", status: int = 0) -> Any:
        given = {"tool_name": tool, "tool_input": {"command": command}} if tool else {}
        words = ("hooks", "fire", "bob", event, "--input", json.dumps(given))
        return relay_json(*words, status=status)

    with wrapped(python(ECHO), name="Bob", cwd=folder) as bob:
        wait_registered("Bob")
        denied = fire("before_tool", "Bash", "rm -rf .")
        assert (denied["decision"], denied["reason"]) == ("deny", "not for Bob")
        assert [one["decision"] for one in denied["results"]] == ["deny"]
        # It is the live session: what the hook asks for is done.
        bob.wait_for("GOT Relay notice .*: somebody wants Bash")
        assert fire("before_tool", "Bash", "ls")["decision"] == ""
        assert fire("before_tool", "Read", "x")["results"] == []
        unknown = fire("before_tol", "Bash", "ls", status=2)["error"]
        assert unknown["code"] == "unsupported_event"
        wait_until(lambda: denied["correlation_id"] in relay("hooks", "log", "--json"), 20)


@pytest.mark.smoke
def test_an_untrusted_configuration_does_not_run_and_each_start_says_so(tmp_path: Path) -> None:
    folder = project(tmp_path, "open('ran', 'w').close()\n", trusted=False)
    with wrapped(["sh", "-c", "echo started; read x"], name="A", cwd=folder) as first:
        first.wait_for("not trusted.*relay trust.*started")
        wait_registered("A")
        wait_until(lambda: "not trusted" in relay("status"), 20)
    with wrapped(["sh", "-c", "echo started; read x"], name="B", cwd=folder) as second:
        second.wait_for("not trusted.*relay trust.*started")
    assert not (folder / "ran").exists()


def test_a_broken_configuration_costs_its_handlers_and_nothing_else(tmp_path: Path) -> None:
    text = "import os\npatterns = {'a': missing if os.path.exists('broken') else print}\n"
    folder = project(tmp_path, text)
    (folder / "broken").touch()
    with wrapped(python(ECHO), name="Bob", cwd=folder) as bob:
        wait_registered("Bob")
        relay("send", "Bob", "all the same", "--wait=30")
        bob.wait_for("GOT Relay message .*: all the same")
        wait_until(lambda: "relay.config.py:2" in relay("status"), 20)
    with wrapped(["sh", "-c", "echo started; read x"], name="B", cwd=folder) as second:
        second.wait_for("relay.config.py:2: NameError.*started")


def test_a_program_that_uses_the_library(tmp_path: Path) -> None:
    program = tmp_path / "wrapper.py"
    program.write_text(
        "import sys\n"
        "from relay import Relay\n"
        "relay = Relay('Alice')\n"
        "@relay.pattern('deploy')\n"
        "def deploy(target, message, ctx):\n"
        "    return f'library deployed {target}'\n"
        "@relay.on('session_start')\n"
        "async def start(ctx):\n"
        "    ctx.inject('library says hello')\n"
        "source = 'import sys\\nprint(\"@deploy:prod x\\\\n\", flush=True)\\n'\n"
        "source += 'for line in sys.stdin: print(\"GOT\", line.strip(), flush=True)\\n'\n"
        "sys.exit(relay.wrap([sys.executable, '-c', source]))\n"
    )
    import sys

    from ptyprocess import PtyProcess

    terminal = PtyProcess.spawn([sys.executable, str(program)])
    try:
        output = bytearray()

        def shown() -> bool:
            output.extend(terminal.read(4096))
            text = output.decode("utf-8", "replace")
            return "GOT" in text and "library deployed prod" in text and "says hello" in text

        wait_until(shown, 30, "the library's answers")
    finally:
        terminal.close(force=True)


#: The design document's own example of a handler, which is relay's built-in one.
SENDS_ON = """
from relay import Relay

relay = Relay()

@relay.pattern("relay", override=OVERRIDE)
async def on(target, message, ctx):
    if target == "*":
        await ctx.relay.broadcast(message)
    else:
        await ctx.relay.send(target, message)
"""
SYNC = SENDS_ON.replace("async def", "def").replace("await ", "")


@pytest.mark.parametrize(
    ("text", "override"), [(SENDS_ON, "True"), (SYNC, "False")], ids=["async, instead", "beside"]
)
def test_a_handler_that_sends_on_sends_once(tmp_path: Path, text: str, override: str) -> None:
    folder = project(tmp_path, text.replace("OVERRIDE", override))
    lines = ("@relay:Bob one", "@relay:* two", "@relay:Bob,Bob [thread:t] three")
    said = "\\n\\n".join(lines)
    with wrapped(python(ECHO), name="Bob") as bob:
        wait_registered("Bob")
        source = f"print('{said}\\n', flush=True); input()"
        with wrapped(python(source), name="Ann", cwd=folder):
            for word in ("one", "two", "three"):
                bob.wait_for(f"GOT .*{word}")
            relay("send", "Bob", "last", "--wait=30")
            bodies = [row["body"] for row in relay_json("history", "Bob")]
            assert sorted(bodies) == ["last", "one", "three", "two"]
            threads = {row["body"]: row["thread"] for row in relay_json("history", "Bob")}
            assert threads["three"] == "t"


def notes() -> list[str]:
    [row] = relay_json("status")["agents"]
    found: list[str] = row["notes"]
    return found
