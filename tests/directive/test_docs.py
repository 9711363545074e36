"""Every example of docs/patterns.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.directive.grammar import Found, Match, Unclosed
from tests.directive.whole_text import scan

PAGE = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text(encoding="utf-8")
NAMESPACES = ("relay", "deploy")
EXAMPLES = re.findall(
    r"^(`{3,})text\n(.*?)^\1\n^\1hears\n(.*?)^\1$", PAGE, flags=re.MULTILINE | re.DOTALL
)


def described(found: Found) -> str:
    """One find in the notation of the page: the body's further lines are indented."""
    if isinstance(found, Unclosed):
        return f"unclosed to {found.target}"
    assert isinstance(found, Match)
    words = " ".join(f"{key}={value}" for key, value in found.attributes.items())
    body = found.body.replace("\n", "\n    ")
    return f"{found.namespace} to {found.target}{f' ({words})' if words else ''}: {body}"


@pytest.mark.parametrize(("said", "heard"), [(x[1], x[2]) for x in EXAMPLES])
def test_an_example_of_the_page(said: str, heard: str) -> None:
    finds = [described(found) for found in scan(said, NAMESPACES)]
    assert "\n".join(finds or ["nothing"]) + "\n" == heard


def test_every_example_is_read() -> None:
    assert len(EXAMPLES) == len(re.findall(r"^`{3,}hears$", PAGE, flags=re.MULTILINE)) > 6


def test_the_page_itself_sends_nothing() -> None:
    assert scan(PAGE, NAMESPACES) == []
