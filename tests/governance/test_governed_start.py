"""What starts in a governed project, and what it is started with."""

from __future__ import annotations

import pytest

from relay.config.manifest import Known
from relay.governance.governed_start import NotGoverned, check_start, with_governance

BOTH = {"gates": ["BeforeTool", "AfterTool"]}


def test_an_agent_is_asked_around_its_calls_whatever_the_configuration_has() -> None:
    known = with_governance(Known(("relay", "memory", "deploy"), ("AfterTool", "BeforeAgent")))
    assert known.namespaces == ("relay", "intent", "memory", "deploy")
    assert known.hooks == ("AfterTool", "BeforeAgent", "BeforeTool")


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("claude", BOTH, ""),
        ("claude", {"gates": ["BeforeTool"]}, "started before that"),
        ("claude", {"ungated": "hooks are off"}, "hooks are off"),
        ("gemini", {"ungated": "no file; docs/agents/gemini.md says how"}, "gemini.md says how"),
        ("codex", {"degraded": "too old", "ungated": "too old"}, "too old"),
        ("command", {}, "no conversation"),
        ("aider", {"heard": True}, "aider has no hooks"),
        ("shell", {}, "shell has no hooks"),
        ("python", {}, "python has no hooks"),
    ],
    ids=["gated", "half", "off", "gemini", "old", "command", "aider", "shell", "screen"],
)
def test_what_would_write_unasked_is_not_started(
    kind: str, data: dict[str, object], why: str
) -> None:
    if not why:
        check_start("/p", kind, kind, data)
        return
    with pytest.raises(NotGoverned) as refused:
        check_start("/p", f"/usr/bin/{kind}", kind, data)
    assert why in refused.value.message and "/p is governed" in refused.value.message
    assert "--ungoverned" in refused.value.hint
