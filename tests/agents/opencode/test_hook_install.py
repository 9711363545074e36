"""How relay's plugin is put into opencode."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from relay.agents.launch import Launch, plan
from tests.agents.installs import install, run_of


def start(
    argv: list[str],
    env: dict[str, str] | None = None,
    *,
    hooks: tuple[str, ...] = ("BeforeTool", "AfterTool"),
    port: int | None = 4321,
) -> Launch:
    run = run_of("A", token="t", port=port, primer=False, hooks=hooks)
    return plan(argv, env or {}, run)


def plugins(launch: Launch) -> list[str]:
    found: list[str] = json.loads(launch.env["OPENCODE_CONFIG_CONTENT"])["plugin"]
    return found


def test_the_plugin_is_named_behind_the_person_s(tmp_path: Path) -> None:
    opencode = install(tmp_path, "opencode")
    launch = start([opencode])
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"]
    assert launch.env["RELAY_GATES"] == "BeforeTool,AfterTool"
    [address] = plugins(launch)
    assert Path(unquote(urlsplit(address).path)).read_text().startswith("// Asks relay")
    theirs = {"OPENCODE_CONFIG_CONTENT": '{"plugin": ["theirs"], "theme": "x"}'}
    both = start([opencode], theirs)
    assert plugins(both) == ["theirs", address]
    assert json.loads(both.env["OPENCODE_CONFIG_CONTENT"])["theme"] == "x"


def test_nothing_is_put_in_that_nobody_asked_for(tmp_path: Path) -> None:
    opencode = install(tmp_path, "opencode")
    launch = start([opencode], hooks=("Output",))
    assert not {"OPENCODE_CONFIG_CONTENT", "RELAY_GATES"} & launch.env.keys()
    assert "gates" not in launch.data and "ungated" not in launch.data
    assert start([opencode], hooks=("AfterTool",)).env["RELAY_GATES"] == "AfterTool"
    launch = start([opencode], hooks=("BeforeTool", "AfterAgent"))
    assert (launch.data["gates"], launch.data["tells"]) == (["BeforeTool"], ["AfterAgent"])
    assert launch.env["RELAY_GATES"] == "BeforeTool,AfterAgent"
    assert launch.env["RELAY_TELLS"] == ""  # not that of an opencode around this run
