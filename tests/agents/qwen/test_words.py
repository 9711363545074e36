"""Words that Qwen Code would take for the names of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.qwen.words import spelled

END = '(To answer, if needed: a line "@relay:Bob …". From an agent).'


@pytest.mark.parametrize(
    "text",
    [
        f"Write to me@example.org. {END}",
        f"No file is meant by (@this). {END}",
        f"Ask @carol and @dave @eve, please. {END}",
        f"class A:\n    @property\n    def x(self): ... {END}",
    ],
)
def test_what_it_leaves_alone_stays_as_it_is(tmp_path: Path, text: str) -> None:
    assert spelled(text, str(tmp_path), str(tmp_path)) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("see @README.md", "see \\@README.md"),
        ("see @README and me@example.org", "see \\@README and me@example.org"),
        ("one\n@property\ntwo", "one\n\\@property\ntwo"),
        ("see @one  @two", "see \\@one  \\@two"),
        ("| @relay:Bob quoted", "| \\@relay:Bob quoted"),
        ("see @mcp:thing", "see \\@mcp:thing"),
        ("see @a\\ b", "see \\@a\\ b"),
    ],
)
def test_a_backslash_says_that_nothing_is_meant(tmp_path: Path, text: str, wanted: str) -> None:
    (tmp_path / "README").write_text("")
    assert spelled(f"{text} {END}", str(tmp_path), str(tmp_path)) == f"{wanted} {END}"


def test_a_server_named_relay_is_not_asked(tmp_path: Path) -> None:
    text = f"Ask @carol. {END}"
    (tmp_path / "settings.json").write_text('{"mcpServers": {"relay": {}}}')
    assert spelled(text, "/srv/demo", str(tmp_path)) == f"Ask \\@carol. {END}"
