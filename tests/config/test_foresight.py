"""What a configuration may register is known before it runs, or everything is assumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config.foresight import foreseen
from relay.config.trust import ConfigFile, read_config
from relay.core.errors import ConfigError
from relay.hooks.events import TOOL_CALL, HookEventName

RELAY = "from relay import Relay\nrelay = Relay()\n"
ALL = tuple(HookEventName)


def events(text: str) -> tuple[HookEventName, ...]:
    return foreseen(ConfigFile("/c/relay.config.py", text.encode()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        (RELAY + "@relay.pattern('deploy')\ndef d(): ...\n", ()),
        (RELAY + "@relay.on('session_start')\ndef s(): ...\n", (HookEventName.SESSION_START,)),
        (RELAY + "@relay.on('tool_call')\ndef t(): ...\n", TOOL_CALL),
        (RELAY + "relay.on('beforeTool', print, matcher='Bash')", (HookEventName.BEFORE_TOOL,)),
        (RELAY + "relay.on(event='idle')(print)", (HookEventName.IDLE,)),
        (
            "from relay import Relay as R\nfrom relay.hooks.events import HookEventName as H\n"
            "app = R()\napp.on(H.AFTER_TOOL, print)\napp.on('after_agent', print)",
            (HookEventName.AFTER_TOOL, HookEventName.AFTER_AGENT),
        ),
        ("hooks = {'on_before_tool': print}", (HookEventName.BEFORE_TOOL,)),
        ("hooks: dict = {'on_idle': print}", (HookEventName.IDLE,)),
        (
            "config = {'timeout': 3, 'hooks': {'Notification': print}}",
            (HookEventName.NOTIFICATION,),
        ),
        ("import os, json\nfrom pathlib import Path\nimport requests\nhooks = {}", ()),
    ],
)
def test_what_stands_there_is_known(text: str, expected: tuple[HookEventName, ...]) -> None:
    assert events(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        RELAY + "for name in ('before_tool',):\n    relay.on(name, print)",
        RELAY + "relay.on(*['before_tool'])",
        RELAY + "relay.on(**{'event': 'before_tool'})",
        RELAY + "on = relay.on\non('before_tool')(print)",
        RELAY + "getattr(relay, 'o' + 'n')('before_tool', print)",
        RELAY + "relay.registry.add_hook('idle', print)",
        RELAY + "other = relay",
        RELAY + "def setup(app): ...\nsetup(relay)",
        "from relay import Relay\nrelays = [Relay()]",
        "from relay import Relay\nmake = Relay",
        "from relay import Relay\nclass Mine(Relay): ...",
        "import relay as r\napp = r.Relay()",
        "from relay.integrations import trail",
        "from relay import integrations",
        "import relay.integrations.trail",
        "from somewhere import app",
        "from .beside import app",
        "from json import loads as hooks",
        "def hooks(): ...",
        "hooks = dict(on_before_tool=print)",
        "hooks = {**{'on_before_tool': print}}",
        "hooks = {'on_' + 'before_tool': print}",
        "hooks = {}\nhooks['on_before_tool'] = print",
        "hooks = {}\nhooks.update(on_before_tool=print)",
        "hooks = {}\nhooks |= {'on_before_tool': print}",
        "if True:\n    hooks = {'on_before_tool': print}",
        "(hooks, x) = ({'on_before_tool': print}, 1)",
        "mine = {}\nhooks = mine",
        "config = {'hooks': make()}",
        "config = {'hook_files': ['a.json']}",
        "config = {'hookFiles': 'a.json'}",
        "config = {'ho' + 'oks': {}}",
        "globals()['hooks'] = {}",
        "exec('hooks = {}')",
    ],
)
def test_in_doubt_every_event_is_meant(text: str) -> None:
    assert events(text) == ALL


def test_what_is_no_source_is_an_error() -> None:
    with pytest.raises(ConfigError):
        events("def broken(:")


def test_a_wrong_name_is_nobodys() -> None:
    assert events(RELAY + "relay.on('befor_tool', print)") == ()


def test_the_example_can_be_told() -> None:
    root = Path(__file__).parents[2]
    found = foreseen(read_config(str(root / "relay.config.example.py")))
    assert found and found != ALL
