"""The architecture: packages import only those further down, whatever the import's place."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "relay"

#: From the top to the bottom; those on one floor may import each other.
FLOORS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "__main__ app cli demo bootstrap integrations",
        "terminal",
        "agents",
        "session",
        "broker",
        "ledger",
        "memory memory_settings config settings outline foresight trust vocabulary",
        "hooks",
        "text",
        "names paths ids jsontext suggest model errors",
    )
)
#: What does no I/O and reads no clock may not import what does.
PURE = (
    "text/",
    *(
        f"{folder}/{name}.py"
        for folder, names in (
            ("broker", "delivery router"),
            ("session", "guards hearing plainpost"),
            ("hooks", "aggregator answers binding definitions environment events files matching"),
            ("hooks", "model outputs plain planner registry replies requests results spelling"),
            ("hooks", "translation utterances validation"),
            ("memory", "embedding/wordpiece extraction providers spec"),
        )
        for name in names.split()
    ),
)
#: ``traceback`` reads source files, ``uuid`` and ``random`` ask the system for chance.
IMPURE = {
    *("os", "pathlib", "shutil", "tempfile", "socket", "ssl", "select", "sqlite3", "subprocess"),
    *("asyncio", "threading", "concurrent.futures", "queue", "time", "datetime"),
    *("random", "secrets", "uuid", "traceback", "linecache"),
}


def floor(name: str) -> int:
    for number, names in enumerate(FLOORS):
        if name in names:
            return number
    raise AssertionError(f"relay/{name} has no floor: add it to FLOORS")


def imports(file: Path) -> set[str]:
    """The dotted names of all modules that ``file`` imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "relay":
                found |= {f"relay.{alias.name}" for alias in node.names}
    return found


def modules() -> list[Path]:
    return [file for file in sorted(ROOT.rglob("*.py")) if file != ROOT / "__init__.py"]


def test_imports_only_go_down() -> None:
    wrong = []
    for file in modules():
        own = floor(file.relative_to(ROOT).parts[0].removesuffix(".py"))
        for name in imports(file):
            parts = name.split(".")
            ours = parts[0] == "relay" and len(parts) > 1 and parts[1][0] != "_"
            if ours and floor(parts[1]) < own:
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_what_is_called_pure_is_there() -> None:
    assert [name for name in PURE if not (ROOT / name).exists()] == []


def test_what_is_pure_stays_pure() -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in modules()
        if str(file.relative_to(ROOT)).startswith(PURE)
        for name in imports(file) & IMPURE
    ]
    assert wrong == []


def test_every_test_file_stands_where_its_module_does() -> None:
    tests = Path(__file__).parent
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert [name for name in sorted(folders) if not (tests / name).is_dir()] == []
