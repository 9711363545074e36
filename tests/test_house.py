"""The house: one folder is one process or one library, imports go down, and a name is given once.

docs/architecture.md tells people the same; a test here compares the two.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests import house

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "relay"
DOCS = ROOT / "docs"

#: From the bottom to the top: a folder may import those before it, and itself.
FLOORS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "core",
        "protocol",
        "directive ledger",
        "hooks screen",
        "agents",
        "config",
        "pump session broker",
        "app",
        "ui",
        "cli demo integrations __main__ bootstrap",
        "testing",
    )
)
#: The three kinds of process of the kernel, which meet in ``protocol`` only.
PROCESSES = FLOORS[6]
#: Every agent's folder has files, and classes, of these names.
TEMPLATE = {"launch", "adapter", "source", "hook_codec", "screen", "channel"}
#: What does no I/O and reads no clock imports none of these. ``traceback`` reads source files,
#: ``uuid`` and ``random`` ask the system for chance. ``datetime`` may be imported: its class also
#: reads and writes times that are given.
IMPURE = {
    *("os", "pathlib", "shutil", "tempfile", "socket", "ssl", "select", "sqlite3", "subprocess"),
    *("asyncio", "threading", "concurrent.futures", "queue", "time"),
    *("random", "secrets", "uuid", "traceback", "linecache"),
}
#: Files of these folders are pure, but for the emulator's; so is each that says "Pure." of itself.
PURE_FOLDERS = {"directive", "screen"}
NOT_PURE = {"relay.screen.emulator", "relay.screen.emulator_library"}
#: The modules of a feature by which the parts of relay meet it: each may have one of each name.
DOORS = {
    *("broker", "cli", "ops", "session", "settings", "start"),
    *("status_lines", "tables", "verbs", "view", "worker"),
}
KINDS = re.compile(r"(Process \d: |Library: |Library, pure(?: but for [\w ]+)?: |Program: )")


class Module:
    """One file of the package."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.parts = (*file.relative_to(ROOT).with_suffix("").parts,)
        if self.parts[-1] == "__init__":
            self.parts = self.parts[:-1]
        self.name = ".".join(self.parts)
        self.folder = self.parts[1] if len(self.parts) > 1 else ""
        text = file.read_text()
        self.lines = text.count("\n")
        self.tree = ast.parse(text)
        self.docstring = ast.get_docstring(self.tree) or ""
        self.of_an_agent = self.parts[1:2] == ("agents",) and len(self.parts) > 3

    @property
    def imported(self) -> set[str]:
        """Dotted names, in functions and under TYPE_CHECKING too."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return found


@cache
def modules() -> dict[str, Module]:
    """All files of the package. Read in a test: whoever collects the tests need not wait."""
    return {module.name: module for module in map(Module, sorted(PACKAGE.rglob("*.py")))}


def own(name: str) -> str:
    """The module of relay's that a dotted name is, or is in; "" for somebody else's."""
    if name in modules():
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in modules() else ""


@cache
def uses() -> dict[str, set[str]]:
    """The modules of relay's that each imports."""
    return {
        name: {used for used in map(own, module.imported) if used not in ("", "relay", name)}
        for name, module in modules().items()
    }


def feature_of(name: str) -> str:
    """The feature that a module is a part of; "" for the kernel."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["features"] and len(parts) > 2 else ""


def floor(folder: str) -> int:
    for number, names in enumerate(FLOORS):
        if folder in names:
            return number
    raise AssertionError(f"relay/{folder} has no floor: add it to FLOORS")


def test_a_folder_says_which_process_or_library_it_is() -> None:
    firsts = {
        module.name: module.docstring
        for module in modules().values()
        if module.file.name == "__init__.py" and len(module.parts) == 2
    }
    assert {name: text for name, text in firsts.items() if not KINDS.match(text)} == {}


def test_imports_only_go_down() -> None:
    wrong = [
        f"{name} imports {used}"
        for name, imported in uses().items()
        for used in imported
        if modules()[name].folder
        and "features" not in (modules()[name].folder, modules()[used].folder)
        if floor(modules()[used].folder) > floor(modules()[name].folder)
    ]
    assert wrong == []


def test_processes_meet_in_protocol_only() -> None:
    wrong = [
        f"{name} imports {used}"
        for name, imported in uses().items()
        for used in imported
        if {modules()[name].folder, modules()[used].folder} <= PROCESSES
        and modules()[name].folder != modules()[used].folder
    ]
    assert wrong == []


@pytest.mark.parametrize("name", house.RATCHETS)
def test_no_figure_of_the_house_rises(name: str) -> None:
    """``python -m tests.house NAME`` lists the places."""
    places = house.FIGURES[name](house.sources())
    assert len(places) <= house.RATCHETS[name], places


def test_a_file_name_is_given_once() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for module in modules().values():
        is_door = bool(feature_of(module.name)) and module.file.stem in DOORS
        is_door |= module.file.stem == "door"  # of a part of the kernel
        if not module.file.name.startswith("__") and not is_door:
            template = module.of_an_agent and module.file.stem in TEMPLATE
            files[module.file.stem].append("an agent's" if template else module.name)
    # The shared codec and screen stand beside those of the agents.
    twice = {
        stem: names
        for stem, names in files.items()
        if len([name for name in names if name != "an agent's"]) > 1
    }
    assert twice == {}


def test_a_public_class_name_is_given_once() -> None:
    classes: dict[str, list[Module]] = defaultdict(list)
    for module in modules().values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(module)
    twice = {
        name: [module.name for module in modules]
        for name, modules in classes.items()
        if len([module for module in modules if not module.of_an_agent]) > 1
        or (len(modules) > 1 and len({module.file.stem for module in modules}) > 1)
    }
    assert twice == {}


def test_what_is_pure_stays_pure() -> None:
    wrong = [
        f"{name} imports {used}"
        for name, module in modules().items()
        if (module.folder in PURE_FOLDERS or re.search(r"\bPure\b", module.docstring))
        and name not in NOT_PURE
        for used in module.imported
        if used in IMPURE or used.rpartition(".")[0] in IMPURE
    ]
    assert wrong == []


def test_tests_stand_where_the_code_does() -> None:
    folders = {module.folder for module in modules().values() if len(module.parts) > 2}
    folders.discard("features")
    assert [name for name in sorted(folders) if not (ROOT / "tests" / name).is_dir()] == []


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading of a page, without its head."""
    text = (DOCS / page).read_text().split(f"## {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    lines = table.group().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_architecture_page_knows_every_folder() -> None:
    told = {cells[0].strip("`/"): cells[1] for cells in rows("architecture.md", "Folders")}
    said = {
        name: modules()[f"relay.{name}"].docstring.split("\n", 1)[0].rstrip(".")
        for name in {module.folder for module in modules().values() if len(module.parts) > 2}
    }
    assert told == said


@pytest.mark.parametrize("page", ["architecture.md", "glossary.md"])
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    text = (DOCS / page).read_text()
    names = re.findall(r"`((?:relay|tests|bench|docs)/[\w./*-]+)`", text)
    assert names
    assert [name for name in names if not list(ROOT.glob(name))] == []


def test_each_step_of_a_way_leads_to_the_next() -> None:
    """A way is a numbered list of files: each is there, and none is passed twice."""
    ways = re.findall(
        r"(?:^\d+\. `relay/.*\n(?:   .*\n)*)+", (DOCS / "architecture.md").read_text(), re.M
    )
    assert len(ways) == 3
    for way in ways:
        files = re.findall(r"^\d+\. `(relay/[\w./]+)`", way, re.M)
        assert len(files) == len(set(files)) >= 5
        assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_architecture_page_knows_every_feature() -> None:
    text = (DOCS / "architecture.md").read_text().partition("## The features\n")[2]
    entries = dict(re.findall(r"^- \*\*(\w+)\*\*((?:.*\n)(?:  .*\n)*)", text, re.M))
    folders = {feature_of(name) for name in modules()} - {""}
    assert folders <= entries.keys()
    for feature in folders:
        files = re.findall(r"`(\w+\.py)`", entries[feature])
        there = {file.name for file in (PACKAGE / "features" / feature).iterdir()}
        assert files and set(files) <= there, feature


def test_the_glossary_is_in_order_and_gives_each_word_once() -> None:
    words = [cells[0].strip("*") for cells in rows("glossary.md", "Words")]
    assert words == sorted(set(words), key=str.lower)
    assert 25 <= len(words) <= 45
