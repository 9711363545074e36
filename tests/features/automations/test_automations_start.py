"""Which agents get the hooks by which automations learn of tool calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.broker.client import connect
from relay.config.manifest import Known
from relay.core.paths import Home
from relay.features.automations.ops import AUTOMATION_DISABLE, AUTOMATION_ENABLE
from relay.features.automations.start import AutomationsStart, hearers_file
from tests.broker.support import broker_thread
from tests.features.automations.broker.test_automations import install


def hooks(home: Home, cwd: str, known: Known | None = None) -> tuple[str, ...]:
    """The hooks that an agent gets which starts in this folder."""
    start = AutomationsStart(cwd)
    start.begin(home)
    return start.known(known or Known()).hooks


def test_an_agent_gets_the_hooks_for_automations_that_want_its_tool_calls(home: Home) -> None:
    never = "def handler(ctx): return False"
    calls = {"event": {"types": ["tool_call"]}}
    install(home, "shop", never, folder="/shop", triggers=calls)
    install(home, "mail", never, triggers={"event": {"channels": ["mail"]}})
    install(home, "clock", never, schedule={"every": "1h"})
    with broker_thread(home), connect(home):  # which has answered
        assert hooks(home, "/shop/src") == ("AfterTool",)
        assert hooks(home, "/shop", Known(hooks=("AfterTool", "BeforeTool")))[1:] == ("BeforeTool",)
        assert hooks(home, "/shop-2") == hooks(home, "/") == ()
    install(home, "all", never)
    with broker_thread(home), connect(home) as client:
        assert hooks(home, "/shop-2") == ("AfterTool",)
        for name in ("all", "shop"):
            client.request(AUTOMATION_DISABLE, name=name)
        assert hooks(home, "/shop") == () and not os.path.exists(hearers_file(home))
        client.request(AUTOMATION_ENABLE, name="shop")
    assert hooks(home, "/shop") == ("AfterTool",)  # also while no broker runs


@pytest.mark.parametrize("kind", ["fifo", "folder", "bytes", "relative"])
def test_what_lies_in_the_place_of_the_list_keeps_no_agent_from_starting(
    home: Home, kind: str
) -> None:
    home.create()
    path = Path(hearers_file(home))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\x00\n" if kind == "bytes" else b"shop\n\n")
    assert hooks(home, "/shop") == ()
