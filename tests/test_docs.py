"""The documentation is true: its links lead somewhere, and nothing that there is is left out.

What it says of all features together, tests/features/test_docs.py compares.
"""

from __future__ import annotations

import re
from contextlib import closing
from html import unescape
from pathlib import Path

import pytest

from relay import __version__
from relay.agents.installed import parse_version
from relay.agents.known_agents import ADAPTERS
from relay.agents.launch import PLANNERS
from relay.agents.profile import profile_names
from relay.cli.verbs import every
from relay.core import sqlite
from relay.ledger.schema import SCHEMA
from tests.picture import SAID
from tests.real_agents.install import PINS, PROFILED

ROOT = Path(__file__).resolve().parent.parent
AGENTS = sorted((ROOT / "docs" / "agents").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *AGENTS]
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_TABLE = re.compile(r"^\| `(\w+)` \| ([\w, →]+) \| [^|]+ \|$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_picture_shows_what_the_recorded_agents_say() -> None:
    shown = unescape((ROOT / "docs" / "console.svg").read_text())
    assert [text for text in SAID if text.split(" ", 1)[1][:30] not in shown] == []
    # Where nothing is animated, as in many viewers, one screen stands there.
    assert shown.count('<g class="s"') == shown.count('visibility="hidden"') + 1


def test_every_verb_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [verb for verb in sorted(every()) if f"relay {verb}" not in text] == []


def test_the_tables_of_the_ledger_are_those_of_its_schema(tmp_path: Path) -> None:
    told = {}
    page = (ROOT / "docs" / "ledger.md").read_text().partition("## The tables")[2]
    for name, columns in _TABLE.findall(page):
        told[name] = columns.split(", ")
    there = {}
    with closing(sqlite.connect(str(tmp_path / "ledger.db"), SCHEMA)) as db:
        tables = db.execute(
            "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite%'"
        )
        for (name,) in tables.fetchall():
            others = {row[3]: row[2] for row in db.execute(f"PRAGMA foreign_key_list({name})")}
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
            there[name] = [f"{one} → {others[one]}" if one in others else one for one in columns]
    assert told == there


def test_the_readme_leads_to_the_index_and_that_to_every_page() -> None:
    readme, index = (ROOT / "README.md").read_text(), (ROOT / "docs" / "README.md").read_text()
    pages = [page for page in PAGES[1:] if page not in AGENTS and page.name != "README.md"]
    assert "(docs/README.md)" in readme and len(readme.splitlines()) < 120
    assert [page.name for page in pages if f"({page.name})" not in index] == []


def test_each_agent_has_a_page_with_the_version_that_the_tests_drive() -> None:
    assert [page.stem for page in AGENTS] == sorted(PINS)
    table = (ROOT / "docs" / "agents.md").read_text()
    [checked] = [line for line in table.splitlines() if line.startswith("| checked with")]
    for program, pin in PINS.items():
        assert f"agents/{program}.md" in table
        assert f" {pin.version} " in checked
        assert pin.version in (ROOT / "docs" / "agents" / f"{program}.md").read_text()


def test_the_tests_drive_each_program_that_has_a_profile_in_the_version_that_it_names() -> None:
    assert set(profile_names("")) == set(PINS | PROFILED)
    for pin in (PINS | PROFILED).values():
        assert pin.package and parse_version(pin.version, 2)


def test_each_agent_is_known_everywhere() -> None:
    assert set(PLANNERS) == set(ADAPTERS) == set(PINS)


def test_the_version_is_that_of_the_newest_changes() -> None:
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == __version__


def test_the_test_command_of_the_readme_is_what_ci_runs() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "python3 -m relay.bootstrap test" in readme
    assert '"$python" -m relay.bootstrap test' in ci
