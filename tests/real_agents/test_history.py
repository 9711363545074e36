"""What was said before is not said again: a conversation that is made shorter, resumed, cleared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_agents.conftest import Binary
from tests.real_agents.conversation import AT
from tests.real_agents.model import Say, ScriptedModel
from tests.real_agents.people import arrived_once, bodies_from, rest, send, wait_bodies, wait_state
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.wrapped import Wrapped, room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")

#: How each goes on with its last conversation, and how it is told to make it shorter.
RESUME = {
    "claude": ["--continue"],
    "codex": ["resume", "--last"],
    "gemini": ["--resume", "latest"],
    "qwen": ["--continue"],
    "opencode": ["--continue"],
    "aider": ["--restore-chat-history"],
}
COMPACT = {
    "claude": "/compact",
    "codex": "/compact",
    "gemini": "/compress",
    "qwen": "/compress",
    "opencode": "/compact",
}
#: How one begins another conversation. Gemini CLI does so in test_gemini.
AFRESH = {"claude": "/clear", "codex": "/new", "qwen": "/clear"}


@pytest.mark.parametrize("name", list(AGENTS))
def test_history_is_not_heard_again(
    name: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("and now", Say(f"{AT} only now"))
    model.when("(?i)summar", Say(f"What was said:\n\n{AT} no: in a summary\n\nThat is all."))
    model.when("something else", Say(f"{AT} afresh"))
    model.when("begin", Say(f"{AT} said once\n\nThat was it."))
    binary = binary_of(name)
    with room(tmp_path, model) as people:
        ann = people.start("Ann", name, binary, Options(asks=False))
        ann.ask("please begin")
        wait_bodies("Ann", ["said once"])
        ann.ready()
        if name in COMPACT:
            asked = len(model.all_requests)
            command(ann, COMPACT[name])
            wait_until(lambda: len(model.all_requests) > asked, 60, "the summary to be asked for")
            wait_until(lambda: model.resting, 60)
            ann.ready()
        ann.quit()
    wait_state("Ann", "gone")
    with room(tmp_path, model) as people:
        ann = people.start("Ann", name, binary, Options(asks=False, arguments=RESUME[name]))
        ann.ask("and now again")
        wait_bodies("Ann", ["said once", "only now"])
        rest(ann, model)
        if name in AFRESH:
            command(ann, AFRESH[name])
            if name == "codex":
                ann.terminal.wait_for("Use current")
                ann.terminal.type("\r")
            ann.terminal.wait_that(lambda: "and now again" not in ann.terminal.text())
            ann.ready()
            ann.ask("something else")
            wait_bodies("Ann", ["said once", "only now", "afresh"])
            rest(ann, model)
            arrived_once(model, send("Ann", "MARK-NEW for the new one."), "MARK-NEW for the new")
            rest(ann, model)
        ann.quit()
    assert bodies_from("Ann") == ["said once", "only now", "afresh"][: 2 + (name in AFRESH)]


def command(ann: Wrapped, words: str) -> None:
    """Type a command of the program's own, and submit it."""
    ann.terminal.type(words)
    ann.terminal.wait_for(words)
    ann.terminal.wait_quiet()  # see Running.submit
    ann.terminal.type("\r")
