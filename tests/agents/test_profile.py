"""Profiles: their form, whose they may be, which program has which, what input lines hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.agents.arguments import SHIPPED
from relay.agents.interpreters import script_of
from relay.agents.known_agents import ADAPTERS, profile_of_run, source_of
from relay.agents.profile import (
    ComposerState,
    InputLine,
    Profile,
    ProfileError,
    find_profile,
    parse_profile,
    profile_names,
    read_profile,
)
from relay.core.message import AgentState
from relay.core.source_events import StateChange

SHIPPED_FILES = sorted(Path(SHIPPED).glob("*.yaml"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The person's folder of profiles."""
    folder = tmp_path / "profiles"
    folder.mkdir(mode=0o700)
    return folder


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("path", SHIPPED_FILES, ids=lambda path: path.stem)
def test_what_relay_brings_can_be_read(path: Path) -> None:
    assert read_profile(str(path)).name == path.stem


def test_each_agent_with_interfaces_of_its_own_has_a_profile() -> None:
    assert set(ADAPTERS) <= {path.stem for path in SHIPPED_FILES}


def test_the_persons_own_wins(own: Path) -> None:
    write(own, "claude", 'checked_with: "mine"')
    profile, notes = find_profile("claude", str(own))
    assert (profile.checked_with, notes) == ("mine", [])


def test_a_broken_one_costs_a_remark_and_relays_stands_in(own: Path) -> None:
    path = write(own, "claude", "screen:\n  person: '('\n")
    profile, notes = find_profile("claude", str(own))
    assert profile.input is not None
    assert len(notes) == 1 and notes[0].startswith(f"{path}:2: screen.person: ")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_others_can_write_to_is_not_used(own: Path, what: str) -> None:
    path = write(own, "pi", "enter: x")
    (path if what == "file" else own).chmod(0o777)
    profile, notes = find_profile("pi", str(own))
    assert profile.enter == "\r"
    assert len(notes) == 1 and "can be written to by others" in notes[0]


def test_a_link_is_not_used(own: Path, tmp_path: Path) -> None:
    (own / "nobody.yaml").symlink_to(write(tmp_path, "elsewhere", "enter: x"))
    profile, notes = find_profile("nobody", str(own))
    assert profile.enter == "\r"
    assert len(notes) == 1 and "is a link" in notes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed: 3", "1: there is no 'speed' here (known: "),
        ("enter: x\nenter: y", "2: 'enter' is here twice, first in line 1"),
        ("\ninput:\n  prompt: '['", "3: input.prompt: this is not a regular expression"),
        ("input: [1]", "1: input: names with values are meant here"),
        ("dialog: who", "1: dialog: a list is meant here"),
        ("dialog: [{a: b}]", "1: dialog: text is meant here"),
        ("shows_paste: 3", "1: shows_paste: true or false is meant here"),
        ("input:\n  above_within: many", "2: input.above_within: a number is meant here"),
        ("screen:\n  spelling: [[a]]", "2: screen.spelling: two are meant"),
        ("a: b: c", "1: put it in quotes (mapping values are not allowed"),
        ("- a", "1: names with values are meant here"),
        ("!!python/name:os.system x", "1: 'tag:yaml.org,2002:python/name:os.system' begins"),
        ("enter: *x", "1: '*x' begins with a character that YAML uses: put it in quotes"),
        ("[" * 3000, ""),
        ("takes: all", "1: takes: line or paste is meant here"),
        ("told_by: --system", "1: told_by: an option or VARIABLE= and {text}, {file} or"),
        ("told_by: -s {text} # so", "1: 'told_by' must stand on one line, without a remark"),
        ("answers_once:\n  - -p", "1: 'answers_once' must stand on one line, without a remark"),
        ("name: x", "1: there is no 'name' here"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "pi.yaml")
    assert caught.value.message.startswith(f"pi.yaml:{said}")


def test_all_mistakes_are_told_at_once_with_the_paths_of_their_fields() -> None:
    text = "speed: 3\ninput:\n  prompt: '['\n  above_within: many\ntakes: all\n"
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "pi.yaml")
    lines = [(one.line, one.text.partition(":")[0]) for one in caught.value.mistakes[1:]]
    assert lines == [(3, "input.prompt"), (4, "input.above_within"), (5, "takes")]


def test_what_is_no_file_or_far_too_long_is_not_read(own: Path) -> None:
    os.mkfifo(own / "pipe.yaml", 0o600)
    write(own, "long", "#" * 70_000)
    for name, said in (("pipe", "it is not a file"), ("long", "more than 65536 bytes")):
        assert said in find_profile(name, str(own))[1][0]


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        ("pi", ""),
        ("python3 -m gptme --model x", "gptme"),
        ("python3.12 -X utf8 src/gptme.py", "gptme"),
        ("python3 -c gptme", ""),
        ("node dist/pi.js", "pi"),
        ("node --require x.js pi.mjs", "pi"),
        ("npx -y -p @scope/thing pi --help", "pi"),
        ("npx grok@1.2", "grok"),
        ("uvx --from gptme-ai gptme", "gptme"),
        ("uv tool run gptme", "gptme"),
        ("uv run --with x python", "python"),
        ("vim pi.py", ""),
    ],
)
def test_the_program_that_another_one_runs(argv: str, script: str) -> None:
    assert script_of(argv.split()) == script


def test_a_script_has_the_profile_of_its_program_but_no_interface(own: Path) -> None:
    write(own, "pi", "enter: x")
    for argv, kind in (
        (["node", "pi.js"], "pi"),
        (["node", "other.js"], "node"),
        (["node", "claude.js"], "node"),  # nothing was put into its start
    ):
        args = {"profile": "node", "argv": argv}
        assert profile_of_run(args, str(own))[0].name == kind


def test_its_screen_tells_what_a_program_does() -> None:
    text = "busy: [Working]\ndialog: [Sure]\ndialog_title: '!$'\nbusy_title: '^\\*'"
    source = source_of(None, parse_profile(text, "pi.yaml"))
    assert source is not None and not source.trusted  # its words are heard on the screen
    seen = [
        [event.state for event in source.look([row], title, 0.0) if isinstance(event, StateChange)]
        for row, title in (
            ("words", ""),
            ("Working", ""),
            ("Sure?", ""),
            ("words", "* pi"),
            ("words", "pi!"),
            ("words", "pi"),
        )
    ]
    busy, blocked, idle = AgentState.BUSY, AgentState.BLOCKED, AgentState.IDLE
    assert seen == [[], [busy], [blocked], [busy], [blocked], [idle]]
    assert source_of(None, Profile("pi")) is None


def test_the_start_of_a_program_and_a_message_from_the_shell_read_no_yaml() -> None:
    code = (
        "import sys, relay.cli.messages, relay.broker.client, relay.app.wrapped_run;"
        "from relay.agents import launch; launch.takes_primer(['codex'], '');"
        "where, terms = launch.Endpoint('t', 1), launch.LaunchTerms();"
        "run = launch.Run('a', 'r', where, launch.Folders(), terms);"
        "launch.plan(['nobody'], {}, run);"
        "print([m for m in ('yaml', 'relay.agents.profile') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_example_in_the_documentation_is_true() -> None:
    page = Path(__file__).parents[2] / "docs" / "profiles.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    parse_profile(example, "pi.yaml")
    told = set(re.findall(r"^ *(\w+):", example, re.MULTILINE))
    known = {one.name for form in (Profile, InputLine) for one in fields(form)}
    assert told >= known - {"name"}


@pytest.mark.parametrize(
    ("kind", "words", "cause"),
    [
        ("claude", "Not logged in · Please run /login", "login"),
        ("claude", "Invalid API key · Fix external API key", "login"),
        ("claude", "The tests fail: Not logged in · Please run /login", None),
        ("codex", "unexpected status 401 Unauthorized: Missing bearer", "login"),
        (
            "codex",
            "WARNING: no aliases\nNot inside a trusted directory and --skip-git-repo",
            "trust",
        ),
        ("gemini", "Please set an Auth method in your .gemini/settings.json", "login"),
        ("gemini", "Gemini CLI is not running in a trusted directory. To proceed", "trust"),
        ("qwen", "No auth type is selected. Please configure an auth type", "login"),
        ("opencode", "Unexpected server error. Check server logs for details.", None),
    ],
)
def test_a_program_s_own_words_say_what_the_person_has_to_do(
    kind: str, words: str, cause: str | None
) -> None:
    form = find_profile(kind, "")[0].headless
    assert form is not None
    needed = form.needs(words)
    assert (needed and needed[0]) == cause


FRAMED = r"""
input: {prompt: '\s*│ > ?', side: '\s*│', below: '\s*╰─', placeholder: [Type here]}
dialog: ['\[y/n\]']
busy: [Working]
busy_title: '[⠁-⣿]'
"""
BARE = "input: {prompt: '>>> '}\nbusy: [Generating]"
RULED = "input: {above: '─{8,}', below: '─{8,}', covered: '─{8,}'}"
RULE = "─" * 20
ALL = profile_names("")
ROWS = [
    *("", " ", RULE, " " + RULE, "╭" + RULE, "╰" + RULE, "│ > a", "│   b", "> ", ">", "❯ 1. Yes"),
    *("  2. No", "›", "! ls", "┃", "  ┃  Build · x", "  ╹" + "▀" * 9, "esc to interrupt", "words"),
    *("? for shortcuts", "Enter to confirm", "User:", "[y/N]:"),
]


def framed(*text: str) -> list[str]:
    return ["│ > said before │", "╰──╯", "╭──╮", *(f"│{row:12}│" for row in text), "╰──╯", "gpt"]


@pytest.mark.parametrize(
    ("profile", "rows", "state"),
    [
        (FRAMED, framed(" > "), "empty"),
        (FRAMED, framed(" > Type here"), "empty"),
        (FRAMED, framed(" > one"), "draft"),
        (FRAMED, framed(" > ", "   two"), "draft"),
        (FRAMED, ["│ > cut off"], "busy"),
        (FRAMED, ["Run it? [y/n]"], "dialog"),
        (FRAMED, ["1. Yes", "2. No"], "dialog"),
        (FRAMED, ["Working (3s)", *framed(" > ")], "busy"),
        (FRAMED, ["Working (3s)", *framed(" > one")], "draft"),
        (FRAMED, [*framed(" > "), "Run it? [y/n]"], "dialog"),
        (FRAMED, [*framed(" > "), "", "❯ Allow once", "  Deny"], "dialog"),
        (FRAMED, [*framed(" > [y/n]"), ""], "draft"),
        (BARE, ["hello", ">>> "], "empty"),
        (BARE, ["hello", ">>>"], "empty"),
        (BARE, ["Shall I continue?", ">>> "], "empty"),
        (FRAMED, ["Shall I continue?", *framed(" > ")], "empty"),
        (BARE, [">>> ", "", "Continue? [y/N]"], "dialog"),
        (BARE, [">>> old", "an answer", "", ">>> "], "empty"),
        (BARE, [">>> 1. list", "", "2. other"], "dialog"),
        (BARE, ["nothing that is known"], "busy"),
        (RULED, [RULE, "", RULE, "footer"], "empty"),
        (RULED, [RULE, "words", RULE], "draft"),
        (RULED, ["words", RULE], "busy"),
        ("busy: [Working]", ["Working"], "busy"),
        ("busy: [Working]", ["words"], "unknown"),
        ("dialog_anywhere: [Sure]", ["Sure?"], "dialog"),
    ],
)
def test_the_state_of_an_input_line(profile: str, rows: list[str], state: str) -> None:
    assert made(profile).composer_at_rest(rows, "") == state


def test_without_a_box_it_is_where_the_cursor_is() -> None:
    rows = [">>> ", "", "an answer that is still written"]
    assert [made(BARE).composer_at_rest(rows, "", at) for at in (0, 2)] == ["empty", "busy"]
    assert made(FRAMED).composer_at_rest(framed(" > "), "", 23) == "empty"


@given(st.lists(st.sampled_from(ROWS), max_size=12), st.sampled_from(ALL), st.integers(0, 12))
def test_whatever_stands_on_the_screen_each_profile_makes_something_of_it(
    rows: list[str], name: str, cursor: int
) -> None:
    state = find_profile(name)[0].composer_at_rest(rows, "", cursor)
    assert state in get_args(ComposerState)


@given(st.lists(st.sampled_from(ROWS), max_size=6), st.text("ab c1.", min_size=1))
def test_what_stands_in_the_input_line_is_never_taken_for_nothing(
    above: list[str], text: str
) -> None:
    rows = [*above, *framed(f" > {text}")]
    assert (made(FRAMED).composer(rows) == "empty") == (not text.strip())


def made(profile: str) -> Profile:
    return parse_profile(profile, "thing.yaml")
