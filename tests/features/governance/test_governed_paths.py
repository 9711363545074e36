"""Which folder is governed, and where a path really is."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.features.governance.governed_paths import governed_root, protected, real_places


def _governed(folder: Path) -> Path:
    (folder / ".orchestration").mkdir(parents=True)
    return folder


def test_the_outermost_folder_below_the_home_is_governed(tmp_path: Path) -> None:
    home = _governed(tmp_path)
    outer = _governed(home / "outer")
    inner = _governed(outer / "a" / "inner")
    (home / "other").mkdir()
    assert governed_root(str(inner), str(home)) == str(outer)
    assert governed_root(str(home / "other"), str(home)) == ""
    assert governed_root(str(home), str(home)) == ""
    # A home elsewhere: this one is a folder like any other.
    assert governed_root(str(home / "other"), "/nowhere") == str(home)


def test_a_link_or_a_file_governs_nothing(tmp_path: Path) -> None:
    real = _governed(tmp_path / "elsewhere")
    linked, plain = tmp_path / "linked", tmp_path / "plain"
    linked.mkdir()
    plain.mkdir()
    (linked / ".orchestration").symlink_to(real / ".orchestration")
    (plain / ".orchestration").write_text("")
    assert governed_root(str(linked), str(tmp_path)) == ""
    assert governed_root(str(plain), str(tmp_path)) == ""


def test_a_path_is_where_the_kernel_finds_it(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "a").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "src" / "deep")
    (tmp_path / "alias").symlink_to("src/a")

    def places(path: str, cwd: Path = tmp_path) -> tuple[str, ...]:
        return tuple(place.removeprefix(f"{tmp_path}/") for place in real_places(path, str(cwd)))

    assert places("src/../src/a") == ("src/a",)
    assert places("link/../a") == ("src/a", "a")  # as a shell goes, and as most programs do
    assert places("new/folder/file") == ("new/folder/file",)
    assert places("alias") == ("alias", "src/a")
    assert real_places("alias", str(tmp_path), follow=False) == (str(tmp_path / "alias"),)
    assert places("./a", tmp_path / "src") == ("src/a",)
    assert places(str(tmp_path / "src" / "a")) == ("src/a",)
    assert real_places("../outside", str(tmp_path)) == (str(tmp_path.parent / "outside"),)


@pytest.mark.parametrize("path", ["", "a\0b"], ids=["empty", "nul"])
def test_what_is_no_path_is_said(path: str) -> None:
    with pytest.raises(ValueError):
        real_places(path, "/")


@pytest.mark.parametrize(
    "path, expected",
    [
        (".orchestration/active_intents.yaml", True),
        (".ORCHESTRATION/x", True),
        (".git/config", True),
        ("vendor/lib/.git/hooks/pre-commit", True),
        (".claude/settings.json", True),
        ("sub/opencode.json", True),
        (".github/workflows/ci.yml", False),
        ("src/opencode.json.py", False),
        ("sub/.claude/skills/a/SKILL.md", True),
        (".opencode/plugin/a.js", True),
        (".mcp.json", True),
        ("docs/claude/a.md", False),
    ],
    ids=lambda value: str(value)[-20:],
)
def test_what_no_agent_writes(path: str, expected: bool) -> None:
    assert protected(path) is expected
