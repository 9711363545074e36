"""The command that adds an extra, by how relay was installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relay.core import extras

REQUIREMENTS = [
    "h11>=0.14",
    'pytest>=8; extra == "mcp"',
    'no-such-package<3,>=2; extra == "mem0"',
    'pytest>=8; extra == "mem0"',
    'relay-wrap[mcp,mem0]; extra == "all"',
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where relay is installed, with all that the extra ``mcp`` needs, and half of ``mem0``."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(extras, "_requirements", lambda: REQUIREMENTS)
    monkeypatch.setattr(extras, "_origin", dict)
    return tmp_path


@pytest.mark.usefixtures("environment")
def test_an_extra_is_there_when_all_its_packages_are() -> None:
    assert extras.extras() == {"mcp": True, "mem0": False}


def test_it_is_added_by_what_made_the_environment(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert extras.adding("mem0") == f"add it: {sys.executable} -m pip install 'relay-wrap[mem0]'"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    by_uv = f"uv pip install --python {sys.executable} 'relay-wrap[mem0]'"
    assert extras.command("mem0") == by_uv
    (environment / "pipx_metadata.json").touch()
    assert extras.command("mem0") == "pipx install --force 'relay-wrap[mcp,mem0]'"
    (environment / "uv-receipt.toml").touch()
    assert extras.command("mem0") == "uv tool install 'relay-wrap[mcp,mem0]'"
    (environment / extras.BOOTSTRAP_STAMP).touch()
    clone = environment.parent
    assert extras.command("mem0") == f"(cd {clone} && python3 -m relay.bootstrap setup mem0)"


def test_a_tool_installs_it_again_from_where_it_came(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (environment / "uv-receipt.toml").touch()
    monkeypatch.setattr(extras, "_origin", lambda: {"url": "file:///a%20b.whl"})
    assert extras.command("mcp") == "uv tool install 'relay-wrap[mcp] @ file:///a%20b.whl'"
    from_git = {"url": "https://example.org/relay", "vcs_info": {"vcs": "git"}}
    monkeypatch.setattr(extras, "_origin", lambda: from_git)
    assert extras.command("mcp") == (
        "uv tool install 'relay-wrap[mcp] @ git+https://example.org/relay'"
    )
