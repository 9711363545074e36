"""What the documentation says of the kernel and all its features is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.cli.help_verbs import reference
from relay.cli.verbs import is_verb
from relay.protocol.reference import all_ops, page
from tests.test_docs import PAGES, ROOT

_ATTACK = re.compile(r"^\|.*\| (tests/\S+\.py)::(test_\w+) \|$", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|\$ )(?:\.venv/bin/)?relay ([a-z-]+)", re.MULTILINE)


def shell_examples(text: str) -> list[str]:
    """What stands in fenced blocks without a language, or of a shell's."""
    examples: list[str] = []
    language: str | None = None
    for line in text.splitlines():
        if line.startswith("```"):
            language = line[3:].strip() if language is None else None
            if language in ("", "sh", "console"):
                examples.append("")
        elif language in ("", "sh", "console"):
            examples[-1] += line + "\n"
    return examples


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_examples_exist(page: Path) -> None:
    for block in shell_examples(page.read_text()):
        for verb in _COMMAND.findall(block):
            assert is_verb(verb), f"relay {verb}"


def test_the_reference_is_made_from_the_verbs() -> None:
    assert (ROOT / "docs" / "reference.md").read_text() == reference(), "relay help --all"


def test_the_page_of_the_ops_is_made_from_their_descriptions() -> None:
    told = "python -m relay.protocol.reference > docs/ops.md"
    assert (ROOT / "docs" / "ops.md").read_text() == page(all_ops()), told


def test_each_attack_names_a_test_that_exists() -> None:
    table = (ROOT / "docs" / "security.md").read_text().partition("## Attacks")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "attack |" not in line]
    named = _ATTACK.findall(table)
    assert len(named) == len(rows), "each row ends with | tests/….py::test_name |"
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
