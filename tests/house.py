"""The figures of the house, for developers and CI: ``python -m tests.house``.

Each of FIGURES may only fall. Whoever lowers one writes the new number here.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "relay"
FEATURES = "relay.features"
#: A feature that is built on another one.
BUILT_ON = {("automations", "personas")}

#: A constructor that takes more parts than this hides an object that has no name yet.
PARTS_MAX = 6
#: The most that each may be. FIGURES says what they count.
RATCHETS = {
    "arrows": 0,
    "crossings": 19,
    "constructors": 0,
    "callbacks": 113,
    "cycles": 0,
    "limits": 519,
    "words": 44,
}


class Source:
    """One file of the package."""

    def __init__(self, file: Path) -> None:
        self.file = file
        text = file.read_text()
        self.lines = text.count("\n")
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))
        parts = file.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def feature(self) -> str:
        """The feature that the file is a part of; "" for the kernel."""
        parts = self.name.split(".")
        return parts[2] if self.name.startswith(f"{FEATURES}.") else ""

    @property
    def is_kernel(self) -> bool:
        """Whether it stays when all features are deleted."""
        return not f"{self.name}.".startswith(f"{FEATURES}.")

    def imported(self) -> Iterator[tuple[int, str]]:
        """Lines and dotted names, also those in functions and under TYPE_CHECKING."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All of them, methods too."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def at(self, line: int) -> str:
        """A place as compilers write it."""
        return f"{self.file.relative_to(ROOT)}:{line}"


@cache
def sources() -> list[Source]:
    """Every file of the package."""
    return [Source(file) for file in sorted(PACKAGE.rglob("*.py"))]


def arrows(files: list[Source]) -> list[str]:
    """Imports of a feature in the kernel."""
    return [
        f"{file.at(line)} imports {name}"
        for file in files
        if file.is_kernel
        for line, name in file.imported()
        if f"{name}.".startswith(f"{FEATURES}.")
    ]


def crossings(files: list[Source]) -> list[str]:
    """Imports of one feature in another that is not built on it."""
    return [
        f"{file.at(line)} imports {name}"
        for file in files
        if file.feature
        for line, name in file.imported()
        if name.startswith(f"{FEATURES}.")
        and name.split(".")[2] != file.feature
        and (file.feature, name.split(".")[2]) not in BUILT_ON
    ]


def constructors(files: list[Source]) -> list[str]:
    """Constructors of more than PARTS_MAX parts."""
    return [
        f"{file.at(function.lineno)} takes {count} parts"
        for file in files
        for function in file.functions()
        if function.name == "__init__"
        and (count := len(function.args.args) + len(function.args.kwonlyargs) - 1) > PARTS_MAX
    ]


def callbacks(files: list[Source]) -> list[str]:
    """Parameters that are functions to be called back."""
    return [
        f"{file.at(argument.lineno)} {function.name}({argument.arg})"
        for file in files
        for function in file.functions()
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.annotation is not None
        and any(getattr(node, "id", "") == "Callable" for node in ast.walk(argument.annotation))
    ]


def cycles(files: list[Source]) -> list[str]:
    """Modules that import each other in a circle, or what such a circle needs."""
    names = {file.name for file in files}
    left: dict[str, set[str]] = {}
    for file in files:
        used = set()
        for _, name in file.imported():
            module = name if name in names else name.rpartition(".")[0]
            if module in names - {file.name, "relay"}:
                used.add(module)
        left[file.name] = used
    while free := {name for name, used in left.items() if not used & left.keys()}:
        for name in free:
            del left[name]
    return sorted(left)


def limits(files: list[Source]) -> list[str]:
    """Constants that are the most of something."""
    return [
        f"{file.at(node.lineno)} {target.id}"
        for file in files
        for node in file.tree.body
        if isinstance(node, ast.Assign)
        for target in _names(node.targets)
        if target.id.endswith(("_MAX", "_LIMIT"))
    ]


def _names(targets: list[ast.expr]) -> Iterator[ast.Name]:
    for target in targets:
        if isinstance(target, ast.Name):
            yield target
        elif isinstance(target, ast.Tuple):
            yield from _names(target.elts)


def words(_: list[Source]) -> list[str]:
    """The glossary's."""
    rows = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    return [row for row in rows if row.startswith("| **")]


def rooms(files: list[Source]) -> dict[str, int]:
    """In how many folders each feature is met: its own, and those of the kernel that import it."""
    met: dict[str, set[str]] = defaultdict(set)
    for file in files:
        if file.feature:
            met[file.feature].add(f"{FEATURES}.{file.feature}")
        elif file.is_kernel:
            for _, name in file.imported():
                if name.startswith(f"{FEATURES}."):
                    met[name.split(".")[2]].add(file.name.rpartition(".")[0])
    return {name: len(met[name]) for name in sorted(met)}


#: What each figure of RATCHETS counts, place by place.
FIGURES = {
    "arrows": arrows,
    "crossings": crossings,
    "constructors": constructors,
    "callbacks": callbacks,
    "cycles": cycles,
    "limits": limits,
    "words": words,
}


def main(names: list[str]) -> int:
    """Print the figures, or with names of some, their places too."""
    files = sources()
    kernel = [file for file in files if file.is_kernel]
    tests = sum(file.read_text().count("\n") for file in (ROOT / "tests").rglob("*.py"))
    print(f"kernel    {sum(file.lines for file in kernel):6} lines in {len(kernel)} files")
    rest = [file for file in files if not file.is_kernel]
    print(f"features  {sum(file.lines for file in rest):6} lines in {len(rest)} files")
    print(f"tests     {tests:6} lines")
    for feature, count in rooms(files).items():
        lines = sum(file.lines for file in files if file.feature == feature)
        print(f"  {feature:<14} {lines:6} lines, met in {count} folder{'s' if count > 1 else ''}")
    high = False
    for name, places_of in FIGURES.items():
        places = places_of(files)
        most = RATCHETS[name]
        remark = (
            "  too many"
            if len(places) > most
            else "  lower the ratchet"
            if len(places) < most
            else ""
        )
        high |= len(places) > most
        print(f"{name:<12} {len(places):5} of at most {most}{remark}")
        if name in names:
            print("".join(f"  {place}\n" for place in places), end="")
    return int(high)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
