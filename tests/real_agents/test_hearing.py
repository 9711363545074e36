"""Each of the six: exactly its own live directives are messages, however it draws itself, and
what was said before is not said again: a conversation that is made shorter, resumed, cleared.

One start of the program for all of it, and one to resume, because a start costs most.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.wrapped import kill_session
from tests.real_agents.conftest import Binary
from tests.real_agents.conversation import (
    AT,
    COMMAND,
    CUT,
    FIRST,
    HALF,
    HEARD,
    LONG,
    LONG_HEARD,
    SECOND,
    THOUGHT,
)
from tests.real_agents.model import Fail, Say, ScriptedModel, Shell, Think
from tests.real_agents.people import (
    arrived_once,
    bodies_from,
    send,
    source_of,
    wait_bodies,
    wait_state,
)
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.wrapped import Wrapped, room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")

#: The other tests are at 80x24. What is heard here does not come from the screen; what does is
#: heard of recordings in three sizes (tests/screen).
COLS, ROWS = 120, 40
EACH = [pytest.param(agent.name, agent.renderers[0], id=name) for name, agent in AGENTS.items()]
#: The keys that stop a turn, each once the one before it is seen to be taken; Escape elsewhere.
INTERRUPT = {"aider": ("\x03",), "opencode": ("\x1b", "\x1b")}
#: Those that put a stopped turn's question back into the input line, and what takes it out again.
PUTS_BACK = {"qwen": "\x15"}


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


def script(model: ScriptedModel, has_tools: bool) -> None:
    # The latest first: a turn without an answer leaves its prompt among the newest words.
    model.when("something else", Say(f"{AT} afresh"))
    model.when("and now", Say(f"{AT} only now"))
    model.when("(?i)summar", Say(f"What was said:\n\n{AT} no: in a summary\n\nThat is all."))
    model.when("one more", Say(f"{AT} after all"))
    model.when("fail now", Fail(400))
    # A block that had ended would be a whole message to some of them.
    model.when("be broken off", Say(f"{CUT}dle\n", gate="never", at=len(CUT)))
    if has_tools:
        model.when("run the demo", Think(THOUGHT), Say(FIRST), Shell(COMMAND))
        model.when_tool(Say(SECOND))
    else:
        model.when("run the demo", Think(THOUGHT), Say(f"{FIRST}\n\n{SECOND}"))
    model.when("the long answer", Say(LONG, 40, 0.004, gate="half", at=HALF))
    model.when("look at this", Say("I have looked."))
    model.when("typed by", Say("So you did."))


@pytest.mark.parametrize(("name", "renderer"), EACH)
def test_exactly_what_it_says_to_others_is_sent(
    name: str,
    renderer: str,
    binary_of: Binary,
    tmp_path: Path,
    model: ScriptedModel,
) -> None:
    agent = AGENTS[name]
    script(model, agent.has_tools)
    heard: list[str] = []
    options = Options(renderer, asks=False)
    with room(tmp_path, model) as people:
        ann = people.start("Ann", name, binary_of(name), options, cols=COLS, rows=ROWS)
        assert source_of("Ann") == "structured"

        ask(ann, "run the demo")
        heard += HEARD
        wait_bodies("Ann", heard)

        # What the person types, and what a message quotes, are not the agent's words.
        ask(ann, f"this was typed by me: {AT} no: typed, so there")
        send("Ann", f"look at this:\n{AT} no: quoted in a message\n\n{AT} no: and again")
        wait_until(lambda: model.seen("look at this"), 90)
        rest(ann, model)

        ask(ann, "give me the long answer", wait=False)
        wait_until(lambda: model.held("half"), 90)
        ann.terminal.resize(COLS - 7, ROWS + 3)
        # A session that is killed in the middle of it loses and doubles nothing, either way.
        late = send("Ann", "look at this when you can")
        kill_session(ann.terminal)
        model.open("half")
        arrived_once(model, late, "look at this when you can")
        rest(ann, model)
        heard += LONG_HEARD
        wait_bodies("Ann", heard)

        ask(ann, "please be broken off", wait=False)
        ann.terminal.wait_for("I begin.")
        for number, key in enumerate(INTERRUPT.get(name, ("\x1b",))):
            if number:
                ann.terminal.wait_for("again to interrupt")
            ann.terminal.type(key)
        wait_until(lambda: model.requests[-1].aborted or ann.idle, 60)
        model.open("never")
        if name in PUTS_BACK:
            ann.terminal.wait_match(r"^[>*] please be broken off")
            ann.terminal.type(PUTS_BACK[name])
        rest(ann, model)

        ask(ann, "now fail now", wait=False)
        wait_until(lambda: model.seen("fail now"), 60)
        rest(ann, model)
        ask(ann, "one more please")
        heard.append("after all")
        wait_bodies("Ann", heard)
        kill_session(ann.terminal)
        ask(ann, "and one more again")
        heard.append("after all")
        wait_bodies("Ann", heard)
        wait_state("Ann", "idle")
        if name in COMPACT:
            asked = len(model.all_requests)
            command(ann, COMPACT[name])
            wait_until(lambda: len(model.all_requests) > asked, 60, "the summary to be asked for")
            rest(ann, model)
        ann.quit()
    wait_state("Ann", "gone")
    assert bodies_from("Ann") == heard
    options.arguments = RESUME[name]
    with room(tmp_path, model) as people:
        ann = people.start("Ann", name, binary_of(name), options, cols=COLS, rows=ROWS)
        ask(ann, "and now again")
        heard.append("only now")
        wait_bodies("Ann", heard)
        rest(ann, model)
        if name in AFRESH:
            begins_afresh(ann, model, name, heard)
        ann.quit()
    assert bodies_from("Ann") == heard


def begins_afresh(ann: Wrapped, model: ScriptedModel, name: str, heard: list[str]) -> None:
    """A new conversation is heard, and reached, as the one before."""
    command(ann, AFRESH[name])
    if name == "codex":
        ann.terminal.wait_for("Use current")
        ann.terminal.type("\r")
    ann.terminal.wait_that(lambda: "and now again" not in ann.terminal.text())
    ann.ready()
    ask(ann, "something else")
    heard.append("afresh")
    wait_bodies("Ann", heard)
    rest(ann, model)
    arrived_once(model, send("Ann", "MARK-NEW for the new one."), "MARK-NEW for the new")
    rest(ann, model)


def command(ann: Wrapped, words: str) -> None:
    """Type a command of the program's own, and submit it."""
    ann.terminal.type(words)
    ann.terminal.wait_for(words)
    ann.terminal.wait_quiet()  # see Running.submit
    ann.terminal.type("\r")


def ask(agent: Wrapped, text: str, *, wait: bool = True) -> None:
    agent.ask(text)
    if wait:
        agent.ready()


def rest(agent: Wrapped, model: ScriptedModel) -> None:
    """Until the turn is over."""
    wait_until(lambda: model.resting, 90)
    agent.ready()
