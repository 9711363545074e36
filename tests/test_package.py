"""What an index would hold: the wheel, installed as a person would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from relay import __version__

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
#: What an installation of relay may add to a disk.
MEGABYTES_MAX = 60
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a person with uv and pipx, who has installed nothing by them yet."""
    if not (BIN / "uv").exists() or not (BIN / "pipx").exists():
        pytest.skip("uv and pipx are installed by: python3 -m relay.bootstrap test --all")
    home = tmp_path_factory.mktemp("newcomer")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    pip = [sys.executable, str(next((ROOT / ".ci" / "wheels").glob("pip-*.whl")) / "pip")]
    # uv asks the index that pip asks.
    asked = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, timeout=60)
    for line in asked.stdout.splitlines():
        name, _, value = line.partition("=")
        if name.endswith(".index-url"):
            kept["UV_DEFAULT_INDEX"] = value.strip("'")
        if name.endswith(".cert"):
            kept["SSL_CERT_FILE"] = value.strip("'")
    return {
        **kept,
        "HOME": str(home),
        "PATH": f"{home}/.local/bin:{BIN}:{os.environ['PATH']}",
        "RELAY_HOME": str(home / "relay"),
        "RELAY_BROKER_IDLE": "2",
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "PIPX_DEFAULT_BACKEND": "uv",
    }


@pytest.fixture(scope="module")
def built(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the sdist and the wheel, of a copy: a build writes beside its source."""
    folder = tmp_path_factory.mktemp("package")
    source, dist = folder / "source", folder / "dist"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "relay", source / "relay", ignore=shutil.ignore_patterns("__pycache__"))
    run(["uv", "build", "--out-dir", str(dist), str(source)], environ)
    yield dist
    shutil.rmtree(folder)


def run(command: list[str], environ: dict[str, str], status: int = 0) -> str:
    """Both outputs of a command that must end with this status."""
    done = subprocess.run(
        command,
        env=environ,
        cwd=environ["HOME"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == status, (command, done.stdout)
    return done.stdout


def test_both_packages_hold_all_files_and_say_what_an_index_shows(built: Path) -> None:
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    assert wheel.name == f"relay_wrap-{__version__}-py3-none-any.whl"
    files = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "relay").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with ZipFile(wheel) as archive:
        assert files - {*archive.namelist()} == set()
        metadata = archive.read(f"relay_wrap-{__version__}.dist-info/METADATA").decode()
    with tarfile.open(sdist) as archive:
        prefix = f"relay_wrap-{__version__}/"
        assert files - {name.removeprefix(prefix) for name in archive.getnames()} == set()
    said = Parser().parsestr(metadata)
    assert said["Name"] == "relay-wrap" and said["Version"] == __version__
    assert said["License-Expression"] == "MIT" and said["Requires-Python"] == ">=3.11"
    assert said["Description-Content-Type"] == "text/markdown" and "# relay" in said.get_payload()
    extras = {"all", "languages", "mcp", "mem0", "qdrant", "vectors"}
    assert extras <= {*said.get_all("Provides-Extra", [])}


def test_uvx_plays_the_demo_of_the_wheel(built: Path, environ: dict[str, str]) -> None:
    (wheel,) = built.glob("*.whl")
    shown = run(["uvx", "--from", str(wheel), "relay", "demo"], environ)
    assert "All 3 messages were seen." in shown


def test_pipx_installs_a_light_relay_that_says_what_it_lacks(
    built: Path, environ: dict[str, str]
) -> None:
    (wheel,) = built.glob("*.whl")
    run(["pipx", "install", str(wheel)], environ)
    assert run(["relay", "--version"], environ).startswith(f"relay {__version__}+")
    (venv,) = Path(environ["HOME"]).rglob("venvs/relay-wrap")
    size = sum(file.lstat().st_blocks * 512 for file in venv.rglob("*"))
    assert size < MEGABYTES_MAX * 1024**2
    added = f"pipx install --force 'relay-wrap[mcp] @ {wheel.as_uri()}'"
    assert added in run(["relay", "mcp"], environ, status=1)
    assert f"pipx install --force 'relay-wrap[all] @ {wheel.as_uri()}'" in run(
        ["relay", "doctor"], environ
    )
