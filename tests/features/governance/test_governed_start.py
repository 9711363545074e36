"""What starts in a governed project, and what it is started with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from relay.config.manifest import Known
from relay.features.governance.start import (
    NotGoverned,
    check_start,
    git_environment,
    with_governance,
)

BOTH = {"gates": ["BeforeTool", "AfterTool"]}


def test_an_agent_is_asked_around_its_calls_whatever_the_configuration_has() -> None:
    known = with_governance(Known(("relay", "memory", "deploy"), ("AfterTool", "BeforeAgent")))
    assert known.namespaces == ("relay", "intent", "memory", "deploy")
    assert known.hooks == ("AfterTool", "BeforeAgent", "BeforeTool")


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("claude", BOTH, ""),
        ("claude", {"gates": ["BeforeTool"]}, ""),
        ("claude", {"gates": ["AfterTool"]}, "started before that"),
        ("claude", {"ungated": "hooks are off"}, "hooks are off"),
        ("gemini", {"ungated": "no file; docs/agents/gemini.md says how"}, "gemini.md says how"),
        ("codex", {"degraded": "too old", "ungated": "too old"}, "too old"),
        ("command", {}, "no conversation"),
        ("aider", {"heard": True}, "aider has no hooks"),
        ("shell", {}, "shell has no hooks"),
        ("python", {}, "python has no hooks"),
    ],
    ids=["gated", "before", "after", "off", "gemini", "old", "command", "aider", "shell", "screen"],
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


@pytest.mark.parametrize(
    "own", [{}, {"GIT_CONFIG_PARAMETERS": "'user.name=x' 'user.email'='y'"}], ids=["none", "own"]
)
def test_git_runs_nothing_of_a_folder_that_looks_like_a_repository(
    own: dict[str, str], tmp_path: Path
) -> None:
    laid, theirs = tmp_path / "laid", tmp_path / "theirs"
    for name in ("objects", "refs"):
        (laid / name).mkdir(parents=True)
    (laid / "HEAD").write_text("ref: refs/heads/main\n")
    core = {"bare": "false", "worktree": laid, "fsmonitor": f"touch {tmp_path}/ran; false"}
    settings = "".join(f'\t{key} = "{value}"\n' for key, value in core.items())
    (laid / "config").write_text(f"[core]\n\trepositoryformatversion = 0\n{settings}")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **own}
    env |= git_environment(env)
    theirs.mkdir()

    def git(*args: str, cwd: Path) -> int:
        return subprocess.run(["git", *args], cwd=cwd, env=env, timeout=30).returncode

    assert git("status", cwd=laid) != 0 and not (tmp_path / "ran").exists()
    assert git("init", "-q", cwd=theirs) == git("status", cwd=theirs) == 0
