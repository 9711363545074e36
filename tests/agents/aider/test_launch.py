"""The plan for starting aider: what is added, and that what the person has set stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.agents.aider.launch import AiderSettings, Unclear
from relay.agents.arguments import after_module
from relay.agents.launch import Launch, Primer, plan
from tests.agents.installs import install, run_of

SPACES = ("relay", "deploy")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")
    return folder


def installed(base: Path) -> str:
    return install(base, "aider")


def make(
    base: Path, argv: list[str], *, told: bool = False, env: dict[str, str] | None = None
) -> Launch:
    run = run_of(
        "Ada", token="T", port=None, folder=str(base / "run"), primer=told, namespaces=SPACES
    )
    return plan(argv, {"TERM": "xterm", "HOME": str(base / "home"), **(env or {})}, run)


def test_a_history_of_the_run_and_nothing_else(tmp_path: Path) -> None:
    aider = installed(tmp_path)
    launch = make(tmp_path, [aider, "--model", "x", "a.py"])
    path = str(tmp_path / "run" / "aider-llm-history")
    assert launch.argv == [aider, "--llm-history-file", path, "--model", "x", "a.py"]
    assert (launch.env, launch.profile) == ({}, "aider")
    chats = str(tmp_path / "project" / ".aider.chat.history.md")
    history = {"history": path, "own": True, "from": [0, 0]}
    assert launch.data == {"lines": False, "chats": chats, **history}
    assert os.stat(tmp_path / "run").st_mode & 0o777 == 0o700
    assert os.listdir(tmp_path / "run") == []


def test_it_is_told_by_a_file_to_read(tmp_path: Path) -> None:
    launch = make(tmp_path, [installed(tmp_path)], told=True)
    path = tmp_path / "run" / "relay-primer.md"
    assert launch.argv[-2:] == ["--read", str(path)]
    assert path.read_text() == Primer("Ada", SPACES).text()


def test_the_module_is_the_program_too(tmp_path: Path) -> None:
    path = Path(installed(tmp_path)).with_name("python3")
    path.write_text("")
    path.chmod(0o755)
    python = str(path)
    launch = make(tmp_path, [python, "-X", "utf8", "-m", "aider", "--vim"])
    assert launch.argv[:5] == [python, "-X", "utf8", "-m", "aider"]
    assert launch.argv[5] == "--llm-history-file" and launch.argv[-1] == "--vim"
    assert after_module(["python", "-m"]) is None
    assert after_module(["python", "-c", "-m", "aider"]) is None
    assert after_module(["python", "aider.py", "-m", "aider"]) is None
    assert after_module(["pytest", "-m", "aider"]) is None


@pytest.mark.parametrize("how", ["flag", "joined flag", "environment", ".env", "file", "home"])
def test_the_persons_own_history_is_read_and_left_alone(
    tmp_path: Path, project: Path, how: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    aider, own = installed(tmp_path), project / "sub" / "own.log"
    env: dict[str, str] = {}
    own.write_text("before\n")
    argv = [aider]
    if how == "flag":
        argv += ["--llm-history-file", "own.log"]
    elif how == "joined flag":
        argv += [f"--llm-history-file={own}"]
    elif how == "environment":
        env["AIDER_LLM_HISTORY_FILE"] = "own.log"
    elif how == ".env":
        (project / ".env").write_text("X=1\nexport AIDER_LLM_HISTORY_FILE='own.log'\n")
    elif how == "file":
        (project / ".aider.conf.yml").write_text("# llm\nllm-history-file: own.log # mine\n")
    else:
        (home / ".aider.conf.yml").write_text('"llm-history-file": "own.log"\n')
    launch = make(tmp_path, argv, env=env)
    assert launch.argv == argv
    assert launch.data["history"] == str(own)
    assert launch.data["from"] == [own.stat().st_ino, 7]
    assert "mark" not in launch.data
    assert make(tmp_path, argv, env=env, told=True).data["mark"] == "run/relay-primer.md"
    assert own.read_text() == "before\n"


def test_what_cannot_be_told_is_not_overruled(tmp_path: Path, project: Path) -> None:
    (project / ".aider.conf.yml").write_text("base: &x\n  llm-history-file: y\n")
    launch = make(tmp_path, [aider := installed(tmp_path)])
    assert launch.argv == [aider]
    assert "settings for llm-history-file" in str(launch.data["degraded"])


@pytest.mark.parametrize("text", ["read: [a.md, 'b.md']", "read:\n- a.md # x\n- b.md\nvim: true"])
def test_what_the_person_has_it_read_goes_along(tmp_path: Path, project: Path, text: str) -> None:
    (project / ".aider.conf.yml").write_text(text)
    launch = make(tmp_path, [installed(tmp_path), "x.py"], told=True)
    told = str(tmp_path / "run" / "relay-primer.md")
    assert launch.argv[3:] == ["--read", "a.md", "--read", "b.md", "--read", told, "x.py"]
    flagged = make(tmp_path, [installed(tmp_path), "--read", "c.md"], told=True)
    assert flagged.argv[3:] == ["--read", told, "--read", "c.md"]


@pytest.mark.parametrize("option", ["--env-file", "--config"])
def test_a_pipe_is_left_to_aider(tmp_path: Path, option: str) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"AIDER_READ=notes.md\n")
        given = [option, f"/dev/fd/{reading}"]
        launch = make(tmp_path, [installed(tmp_path), *given], told=True)
        assert launch.argv[1:] == given
        assert "cannot be read" in str(launch.data["degraded"])
        assert os.read(reading, 100) == b"AIDER_READ=notes.md\n"
    finally:
        os.close(reading)
        os.close(writing)


def test_a_reader_of_lines_is_known(tmp_path: Path) -> None:
    aider = installed(tmp_path)
    assert make(tmp_path, [aider, "--no-fancy-input"]).data["lines"] is True
    assert make(tmp_path, [aider], env={"TERM": "dumb"}).data["lines"] is True


def test_the_order_of_settings(tmp_path: Path, project: Path) -> None:
    (project / ".aider.conf.yml").write_text("read: from-root\nvim: true\n")
    (project / "sub" / ".aider.conf.yml").write_text("read: from-here\n")
    (project / "given.yml").write_text("read:\n  {x: 1}\n")
    env = {"HOME": str(tmp_path)}
    cwd = str(project / "sub")
    assert AiderSettings([], env, cwd).values("--read") == ("file", ["from-here"])
    assert AiderSettings([], env, cwd).values("--vim") == ("file", ["true"])
    assert AiderSettings([], {**env, "AIDER_READ": "e"}, cwd).values("--read") == (
        "environment",
        ["e"],
    )
    assert AiderSettings(["--read", "f"], env, cwd).values("--read") == ("flag", ["f"])
    assert AiderSettings(["--", "--read", "f"], env, cwd).values("--read")[0] == "file"
    assert AiderSettings([], env, "/").values("--read") == ("", [])
    (project / "sub" / ".aider.conf.yml").write_text("read: |\n  x\n")
    with pytest.raises(Unclear):
        AiderSettings([], env, cwd).values("--read")
