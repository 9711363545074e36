"""What a wrapped agent does becomes events, route functions dispatch them, a persona answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.wrapped import python, relay, relay_json, say, wait_registered, wrapped
from tests.support import wait_until

CONFIG = """
from relay import HookResult, HookRouting, PermissionSet, Relay

relay = Relay(idle_seconds=1)

@relay.route(kinds=["output"])
def failures(event):
    if "BUILD FAILED" in event.content:
        # This persona has no hooks by which relay could hold it to less.
        permissions = PermissionSet("full")
        return HookResult(fire=True, routing=HookRouting(persona="atlas"), permissions=permissions)

@relay.route(kinds=["idle", "match", "session_start", "session_end"])
def lives(event):
    return None
"""
#: Says what it is told to say, and takes anything else.
SAYS = (
    "import sys\nfor line in sys.stdin:\n"
    "    print(eval(line) if line[0] == chr(39) else 'HEARD', flush=True)\n"
)
#: Answers in words of its own.
LOOKS = "import sys\nfor line in sys.stdin:\n    print('I look into it', flush=True)\n"


def kinds(agent: str) -> list[str]:
    """What route functions were asked of, as the ledger has it."""
    rows = relay_json("hooks", "log", "--quiet", "--agent", agent, "--limit", "1000")
    return [row["event"] for row in rows]


def test_what_an_agent_says_is_routed_to_a_persona_whose_answer_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    (folder / "relay.config.py").write_text(CONFIG)
    relay("trust", str(folder / "relay.config.py"))
    with (
        wrapped(python(LOOKS), name="atlas", cwd=tmp_path) as atlas,
        wrapped(python(SAYS), name="Alice", cwd=folder) as alice,
    ):
        wait_registered("atlas")
        wait_registered("Alice")
        alice.type(say("@relay:me ready"))
        wait_until(lambda: {"session_start", "match", "idle"} <= set(kinds("Alice")), what="these")
        alice.type(say("BUILD FAILED in 3 s"))
        # What it was heard to say just before may be in the same event.
        atlas.wait_for("message .* from agent Alice: (HEARD ⏎ )?BUILD FAILED in 3 s")
        alice.wait_for("from agent atlas: I look into")
        [fired] = relay_json("hooks", "log", "--agent", "Alice")
        assert (fired["event"], fired["decision"]) == ("output", "fired")
        alice.type("\x04")
        assert alice.wait() == 0
    wait_until(lambda: kinds("Alice")[-1] == "session_end", what="the end to be told")
    assert kinds("atlas") == []  # it runs elsewhere


def test_the_first_example_of_the_page_fires_as_it_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On messages of agents and of the person, but for those that atlas gets or wrote."""
    page = (Path(__file__).parents[4] / "docs" / "broker.md").read_text()
    example = re.search(r"```python\n# (~/\S+)\n(.*?)```", page, re.S)
    assert example is not None and example[1] == "~/.config/relay/relay.config.py"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = tmp_path / "relay" / "relay.config.py"
    config.parent.mkdir()
    config.write_text(example[2])
    relay("trust", str(config))
    assert "user/codes" in relay("hooks", "list")
    with (
        wrapped(python(LOOKS), name="atlas", cwd=tmp_path) as atlas,
        wrapped(python(SAYS), name="Alice", cwd=tmp_path) as alice,
        wrapped(python(SAYS), name="Bob", cwd=tmp_path),
    ):
        for name in ("atlas", "Alice", "Bob"):
            wait_registered(name)
        alice.type(say("@relay:Bob the code is 7"))
        atlas.wait_for("message .* from agent Alice: the code is 7")
        alice.wait_for("from agent atlas: I look into")
        addressed = relay("send", "--wait=30", "atlas", "my code is 8").split()[0]
        relay("send", "--wait=30", "Bob", "my code is 9")
        atlas.wait_for("my code is 9")
        shown = relay_json("show", addressed)
        assert [one["state"] for one in shown["evaluations"]] == ["fired"]
        assert shown["dispatches"] == []
