"""How Qwen Code is started: what is added, and what is left as the person gave it."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.launch import Launch, plan
from tests.agents.installs import install, run_of


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that says it is a Qwen Code of the version that all of this is for."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return Path(install(tmp_path, "qwen"))


def planned(argv: list[str], base: Path, *, primer: bool = False) -> Launch:
    run = run_of(
        "Alice",
        token="t",
        port=None,
        folder=str(base / "run"),
        primer=primer,
    )
    return plan(argv, {"HOME": str(base / "home"), "PATH": ""}, run)


def test_the_two_files_lie_in_the_runs_folder(installed: Path, tmp_path: Path) -> None:
    launch = planned([str(installed), "-c"], tmp_path)
    events, given = tmp_path / "run" / "events.jsonl", tmp_path / "run" / "input.jsonl"
    files = ["--json-file", str(events), "--input-file", str(given)]
    assert launch.argv == [str(installed), *files, "-c"]
    assert (launch.profile, launch.env) == ("qwen", {})
    assert launch.data == {"events": True, "input": True}
    assert not events.exists()
    assert given.read_bytes() == b""
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert given.stat().st_mode & 0o777 == 0o600


def test_the_primer_follows_what_the_person_has_the_model_told(
    installed: Path, tmp_path: Path
) -> None:
    told = planned([str(installed)], tmp_path, primer=True).argv
    assert told[5] == "--append-system-prompt"
    assert "Your name here is Alice" in told[6]
    name = "--append-system-prompt"
    for own in ([name, "Mine."], [f"{name}=Mine."], ["--appendSystemPrompt", "Mine."]):
        argv = planned([str(installed), *own, "-c"], tmp_path, primer=True).argv
        assert sum("ppend" in word for word in argv) == 1
        [text] = [word for word in argv if "Mine." in word]
        assert text.index("Mine.") < text.index("Your name here is Alice")
        assert argv[-1] == "-c"


@pytest.mark.parametrize(
    ("own", "missing", "data"),
    [
        (["--json-file", "x"], "heard by its screen", {"events": False, "input": True}),
        (["--jsonFile=x"], "heard by its screen", {"events": False, "input": True}),
        (["--json-fd=3"], "heard by its screen", {"events": False, "input": True}),
        (["--input-file", "x"], "messages are typed", {"events": True, "input": False}),
    ],
)
def test_the_persons_own_files_stay(
    installed: Path, tmp_path: Path, own: list[str], missing: str, data: dict[str, bool]
) -> None:
    launch = planned([str(installed), *own], tmp_path)
    assert launch.argv[-len(own) :] == own
    assert missing in str(launch.data.pop("degraded"))
    assert launch.data == data


@pytest.mark.parametrize("where", ["home/.qwen", "project/.qwen"])
def test_files_named_in_settings_stay_too(installed: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / where).mkdir(parents=True)
    settings = '{ // mine\n "dualOutput": {"jsonFile": "/srv/demo/mine.jsonl"} }'
    (tmp_path / where / "settings.json").write_text(settings)
    launch = planned([str(installed)], tmp_path)
    assert "--json-file" not in launch.argv
    assert "--input-file" in launch.argv
    assert "heard by its screen" in str(launch.data["degraded"])


def test_a_folder_that_cannot_be_made_is_said(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    launch = planned([str(installed)], tmp_path)
    assert launch.argv == [str(installed)]
    assert "cannot be made" in str(launch.data["degraded"])
