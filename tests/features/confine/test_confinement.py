"""What is decided before a program is confined: places, rights, the profile of macOS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.agents.launch import Endpoint, Folders, Launch, LaunchTerms, Run
from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.features.confine import confinement, landlock, places
from relay.features.confine.refused import write_in
from relay.features.confine.settings import CONFINE, parse_confine
from relay.features.confine.start import ConfinedStart


def test_each_version_of_the_kernel_adds_what_it_holds() -> None:
    known = [landlock.rights(version) for version in range(8)]
    assert known[0] == (0, 0) and known[3] == known[4] and known[6] == known[7]
    assert all(
        older[0] & newer[0] == older[0] for older, newer in zip(known, known[1:], strict=False)
    )
    assert [version for version in range(8) if not known[version][1]] == list(range(6))
    counts = [len(landlock.weaknesses(version)) for version in range(1, 8)]
    assert counts == [4, 3, 2, 2, 1, 0, 0]


def test_the_profile_of_macos_has_the_places_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / 'so "called" \\ '
    folder.mkdir()
    text = confinement.profile([str(folder), "/dev/null"], ["/dev/ttys001"])
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    assert text.splitlines() == [
        "(version 1)",
        "(allow default)",
        "(deny file-write*)",
        f'(allow file-write* (subpath "{quoted}") (literal "/dev/null") (literal "/dev/ttys001"))',
        "(deny signal)",
        "(allow signal (target same-sandbox))",
    ]


def test_defaults_open_nothing_of_relays_or_the_persons(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "state"))
    for name in (".cache", "state/cache", ".npm", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".yarn").symlink_to(tmp_path)
    (tmp_path / "berry" / "cache").mkdir(parents=True)
    env = {"HOME": str(tmp_path), "npm_config_cache": str(tmp_path)}
    usual = places.usual(home, env, ["~/elsewhere", "~/none"])
    own = [path for path in usual if not path.startswith("/dev/")]
    assert own == [str(tmp_path / name) for name in (".cache", "berry/cache", "elsewhere")]
    assert "/dev/pts" not in usual
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "state" / "cache")}
    assert str(tmp_path / "state" / "cache") not in places.usual(home, env)


@pytest.mark.parametrize("name", ["", ".config", ".ssh", "state", "state/run", ".local"])
def test_what_must_stay_closed_is_seen_in_a_folder(tmp_path: Path, name: str) -> None:
    home, env = Home(str(tmp_path / "state")), {"HOME": str(tmp_path)}
    assert places.exposed(str(tmp_path / name), home, env)
    assert not places.exposed(str(tmp_path / "project"), home, env)


def test_what_an_agent_keeps_is_as_its_profile_says_and_no_link_of_a_repository(
    tmp_path: Path,
) -> None:
    profiles, project = tmp_path / "profiles", tmp_path / "project"
    profiles.mkdir(mode=0o700)
    project.mkdir()
    (tmp_path / ".bashrc").write_text("")
    (project / ".evil").symlink_to("../.bashrc")
    (tmp_path / ".tool").mkdir()
    (tmp_path / ".tool" / "log").write_text("")
    forms = "['${T:-~/.tool}/sessions/', log, none, ./.history, ./cache/, ./.evil]"
    (profiles / "tool.yaml").write_text(f"state: {forms}\n")
    env = {"HOME": str(tmp_path)}
    found = places.state("tool", str(profiles), env, str(project))
    names = (".tool/sessions", ".tool/log", "project/.history", "project/cache")
    assert found == [str(tmp_path / name) for name in names]
    assert places.state("tool", str(profiles), env, str(project)) == found
    assert places.state("unknown", str(profiles), env, str(project)) == []


@pytest.mark.parametrize(
    ("form", "path"),
    [
        ("~/x", "/home/p/x"),
        ("~", "/home/p"),
        ("${A:-~/.a}/b", "/home/p/.a/b"),
        ("${B:-~/.a}/b", "/else/b"),
        ("/a/~", "/a/~"),
    ],
)
def test_forms_of_paths(form: str, path: str) -> None:
    assert places.expanded(form, {"HOME": "/home/p", "B": "/else"}) == path


@pytest.mark.parametrize(
    "line",
    [
        "bash: line 1: docs/a: Permission denied",
        "rm: cannot remove 'docs/a': Permission denied",
        "mv: cannot move ‘src/b’ to ‘docs/a’: Permission denied",
        "PermissionError: [Errno 13] Permission denied: 'docs/a'",
        "Error: EACCES: permission denied, open 'docs/a'",
        "Can't open docs/a: Permission denied at -e line 1.",
        "open docs/a: permission denied",
        "error: unable to create file docs/a: Permission denied",
        "tee: docs/a: Permission denied\nexit status 1",
    ],
)
def test_what_was_refused_is_read_in_what_programs_say(line: str, tmp_path: Path) -> None:
    for name in ("src", "docs"):
        (tmp_path / name).mkdir()
    assert write_in(line, [str(tmp_path / "src")], str(tmp_path)) == "docs/a"
    assert write_in(line, [str(tmp_path)], str(tmp_path)) == ""


def test_what_the_person_could_not_write_either_is_no_refusal_of_relays(tmp_path: Path) -> None:
    gone = "bash: none/a: Permission denied"
    assert write_in(gone, [], str(tmp_path)) == ""
    assert write_in("a: No such file or directory", [], str(tmp_path)) == ""


def test_the_scratch_folder_is_the_persons_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = places.scratch("/some/where")
    assert os.stat(folder).st_mode & 0o777 == 0o700 and folder == places.scratch("/some/where")
    assert folder != places.scratch("/some/where/else")
    base = Path(folder).parent
    os.rename(base, tmp_path / "moved")
    base.symlink_to(tmp_path / "moved")
    with pytest.raises(PermissionError):
        places.scratch("/some/where")


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("codex", [], "--sandbox danger-full-access"),
        ("codex", ["--sandbox", "danger-full-access"], ""),
        ("claude", [], ""),
    ],
)
def test_an_agent_is_started_through_what_confines_it(
    kind: str,
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(confinement, "check", lambda: None)
    home, project = Home(str(tmp_path / "state")), tmp_path / "project"
    for name in ("project/.git/hooks", "more"):
        (tmp_path / name).mkdir(parents=True)
    start = ConfinedStart(home, str(project), [str(tmp_path / "more")], [])
    plan = Launch([kind, *words], {}, kind, {})
    run = Run("Al", "run-1", Endpoint("", None), Folders(home.run_folder("run-1")), LaunchTerms())
    command = start.command(run, plan, f"/bin/{kind}")
    assert command[-len(plan.argv) - 2 :] == ["--", f"/bin/{kind}", kind, *words]
    scratch = plan.env["TMPDIR"]
    assert {str(project), str(tmp_path / "more"), scratch} <= set(command)
    assert scratch.startswith(home.run) and str(tmp_path) not in command
    assert said in capsys.readouterr().err if said else not capsys.readouterr().err
    plan.writable = [str(project / "src")]  # an intent's, instead of its folder
    command = start.command(run, plan, f"/bin/{kind}")
    assert str(project / "src") in command and str(project) not in command


# -- The setting ``confine``.


@pytest.mark.parametrize(
    ("written", "agents", "writable"),
    [
        (True, ["*"], []),
        (None, [], []),
        ({"agents": ["a*"]}, ["a*"], []),
        ({"writable": ["~/x", "${A:-/b}/c"]}, [], ["~/x", "${A:-/b}/c"]),
    ],
)
def test_what_may_be_written(written: object, agents: list[str], writable: list[str]) -> None:
    value = parse_confine(written)
    assert value == {"agents": agents, "writable": writable}
    assert CONFINE.kept(value) == value
    assert bool(CONFINE.summary(value)) == bool(agents or writable) == bool(CONFINE.shown(value))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("*", "must be True or a dictionary"),
        ({"agent": []}, "unknown key 'agent'"),
        ({"agents": "claude"}, "agents must be a list"),
        ({"writable": [1]}, "writable must be a list"),
        ({"writable": ["src"]}, "'src' has to begin with /"),
    ],
)
def test_what_may_not(written: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_confine(written)
