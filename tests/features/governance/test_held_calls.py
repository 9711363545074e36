"""What a shell call does that the gate lets go on, by the real kernel: each way to write works
inside the intent's scope and changes nothing outside, and a normal day needs no question."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.agents.tool_uses import ToolUse, UseKind
from relay.features.confine import landlock
from relay.features.governance.confined_shell import ConfinedShell
from relay.features.governance.gate import ApprovalAnswer
from relay.features.governance.refusals import Reason
from relay.features.governance.start import held_shell
from tests.features.governance.test_gate import INTENTS, Agent, Project, reason
from tests.support import wait_until

pytestmark = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")

#: Files of the project, by whose help the lines below write ``$1`` or ``$F``.
FILES = {
    "docs/x.md": "as it was\n",
    "src/base": "base\n",
    "src/w.sh": 'echo x > "$1"\n',
    "src/w.py": "import sys; open(sys.argv[1], 'w').write('x')\n",
    "src/w.c": '#include <stdio.h>\nint main(int n, char **v) { return !fopen(v[1], "w"); }\n',
    "Makefile": "all:\n\techo x > $(F)\n",
    "package.json": '{"scripts": {"pretest": "echo x > $F", "test": "true"}}\n',
    "conftest.py": "import os; open(os.environ['F'], 'w')\n",
    ".git/hooks/pre-commit": "#!/bin/sh\necho x > $F\n",
    ".gitattributes": "*.filtered filter=w\n",
    "src/a.filtered": "x\n",
}
#: Ways to write a file, @, that is not there yet.
WAYS = [
    "echo x > @",
    "echo x >> @",
    "(echo x > @)",
    "{ echo x; } > @",
    "for f in @; do echo x > $f; done",
    "w() { echo x > @; }; w",
    "eval 'echo x > @'",
    "trap 'echo x > @' EXIT",
    "exec 3> @; echo x >&3",
    "cat <<END > @\nx\nEND",
    "cat <<< x > @",
    "echo x | tee @",
    "bash -c 'echo x > @'",
    "env A=1 sh -c 'echo x > @'",
    "sh src/w.sh @",
    "python3 src/w.py @",
    "python3 -c \"open('@', 'w')\"",
    "python3 - <<'END'\nimport shutil\nshutil.copy('src/base', '@')\nEND",
    "python3 -c \"import os; os.rename('src/base', '@')\"",
    "python3 -c \"import subprocess; subprocess.run('echo x > @', shell=True, check=True)\"",
    'perl -e \'open(O, ">", "@") or exit 1\'',
    'node -e \'require("fs").writeFileSync("@", "x")\'',
    'awk \'BEGIN { print "x" > "@" }\'',
    "sed -n 'w @' src/base",
    "dd if=src/base of=@",
    "cp src/base @",
    "mv src/base @",
    "ln src/base @",
    "ln -s base @",
    "mkdir -p @",
    "touch @",
    "truncate -s 1 @",
    "install -m 600 src/base @",
    "sort -o @ src/base",
    "find src -name base -exec cp {} @ ';'",
    "echo @ | xargs touch",
    "split -b 9 src/base @ && mv @aa @",
    "(sleep 0.1; echo x > @) & wait",
    "setsid sh -c 'echo x > @'",
    "nohup sh -c 'echo x > @' > /dev/null",
    "cc -o $TMPDIR/w src/w.c && $TMPDIR/w @",
    "make F=@",
    "F=@ make -e",
    "F=@ npm test",
    "F=@ $PYTHON -m pytest -q; true",
]
#: Commands of git's that run a hook and a filter, which write $F.
GIT = ["git commit -q --allow-empty -m hook", "git add src/a.filtered"]
#: Ways out of the scope that no file inside has.
ESCAPES = [
    "ln -s ../docs src/l && echo x > src/l/n",
    "echo x > src/out/n",
    "python3 src/w.py src/out/n",
    "python3 src/w.py /proc/self/cwd/docs/n",
    "cd src && python3 w.py ../docs/n",
    "cd / && echo x > $OLDPWD/docs/n",
    "mv src src2",
    "mv docs src/docs",
    "python3 -c \"import os; os.rename('docs', 'src/docs')\"",
    "python3 -c \"import os; os.rename('src', 'src2')\"",
    "rm -r docs",
    "python3 -c \"import shutil; shutil.rmtree('docs')\"",
    "python3 -c \"import os; os.truncate('docs/x.md', 0)\"",
    "sed -i s/as/AS/ docs/x.md",
    "unshare -rm sh -c 'echo x > docs/n'",
    "echo '{}' > .mcp.json",
    "python3 -c \"open('.orchestration/active_intents.yaml', 'a').write('x')\"",
    "python3 -c \"open('.git/hooks/evil', 'w')\"",
    "git -c alias.w='!echo x > docs/n' w",
    "git config core.fsmonitor 'echo x > docs/n'",
]


class HeldAgent(Agent):
    """An agent whose shell calls the kernel holds, as it does opencode's."""

    shell: ConfinedShell

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self._env}

    def begin(self, run_folder: Path, env: dict[str, str]) -> HeldAgent:
        self._env = env
        added, given = held_shell(str(run_folder), "opencode", self.env, self.gate.run.root)
        self._env = {**env, **added}
        self.again(run_folder, given)
        assert self.call_and_run("true") is None and self.shell.is_used
        return self

    def again(self, run_folder: Path, given: dict[str, object]) -> None:
        self.given = given
        self.shell = ConfinedShell(str(run_folder), "opencode", **given)  # type: ignore[arg-type]
        self.gate.run = replace(self.gate.run, shell=self.shell)

    def argv(self, line: str) -> list[str]:
        return [self.shell.path, "-c", line]

    def call_and_run(self, line: str) -> Reason | None:
        """Ask for a call, do it if it may go on, and tell of it; why it was refused."""
        call = self.call(ToolUse(UseKind.EXECUTE, command=line), "Bash")
        refusal = asyncio.run(self.gate.before(call))
        if refusal is not None:
            return refusal.reason
        self.done = subprocess.run(
            self.argv(line), cwd=self.gate.run.root, env=self.env, capture_output=True, text=True
        )
        self.told = asyncio.run(self.gate.after(call))
        return None


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    made.person.answer = ApprovalAnswer(False)
    git(made, "init", "-q")
    git(made, "config", "user.name", "Bob")
    git(made, "config", "user.email", "bob@example.org")
    git(made, "config", "filter.w.clean", "echo x > $F; cat")
    for name, text in FILES.items():
        (made.root / name).parent.mkdir(exist_ok=True)
        made.write(name, text)
    (made.root / ".git/hooks/pre-commit").chmod(0o700)
    (made.root / "src/out").symlink_to("../docs")
    yield made
    made.store.close()


def git(project: Project, *words: str) -> str:
    words = ("git", *words)
    return subprocess.run(
        words, cwd=project.root, check=True, capture_output=True, text=True
    ).stdout


def bob_of(project: Project, tmp_path: Path, **env: str) -> HeldAgent:
    bob = HeldAgent(project.agent("Bob").gate)
    bob.select()
    return bob.begin(tmp_path / "run", {"SHELL": "/bin/bash", "PYTHON": sys.executable, **env})


def outside(project: Project) -> dict[str, str]:
    """All that lies outside of ``src``, but what relay and git note for themselves."""
    found = {}
    for folder, folders, files in os.walk(project.root.parent / "project"):
        if Path(folder) == project.root:
            folders.remove("src")
        for path in (Path(folder, name) for name in (*folders, *files)):
            key = str(path.relative_to(project.root))
            own = key.startswith(".orchestration/") and not key.endswith(".yaml")
            if own or (
                key.startswith(".git/") and not key.startswith((".git/hooks", ".git/config"))
            ):
                continue
            found[key] = path.read_text() if path.is_file() else ""
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_writes_inside_works_and_changes_nothing_outside(
    project: Project, tmp_path: Path, way: str
) -> None:
    if way.split()[0] in ("cc", "node", "perl") and not shutil.which(way.split()[0]):
        pytest.skip("it is not installed here")
    bob = bob_of(project, tmp_path)
    before = outside(project)
    refused = bob.call_and_run(way.replace("@", "docs/new"))
    assert refused in (None, Reason.SCOPE_VIOLATION)
    assert outside(project) == before
    for name, text in FILES.items():
        if name.startswith("src/"):
            project.write(name, text)
    assert bob.call_and_run(way.replace("@", "src/new")) is None
    assert os.path.lexists(project.root / "src/new"), bob.done.stderr
    assert outside(project) == before and not project.person.asked


@pytest.mark.parametrize("way", GIT)
def test_what_git_runs_is_held_too(project: Project, tmp_path: Path, way: str) -> None:
    for place, made in (("docs/new", False), ("src/new", True)):
        (project.root / "src/a.filtered").write_text(place)  # else git has it already
        bob = bob_of(project, tmp_path, F=place)
        before = outside(project)
        assert bob.call_and_run(way) is None
        assert (project.root / place).exists() is made and outside(project) == before
    assert not project.person.asked


@pytest.mark.parametrize("way", ESCAPES)
def test_no_way_leads_out_of_the_scope(project: Project, tmp_path: Path, way: str) -> None:
    bob = bob_of(project, tmp_path)
    before = outside(project)
    refused = bob.call_and_run(way)
    assert outside(project) == before
    assert bool(project.person.asked) is way.startswith("git"), refused


def test_a_normal_day_needs_no_question(project: Project, tmp_path: Path) -> None:
    root = project.root
    for name in ("conftest.py", ".git/hooks/pre-commit", ".gitattributes", "src/a.filtered"):
        (root / name).unlink()
    project.write("src/test_a.py", "def test_a(): pass\n")
    project.write("package.json", '{"scripts": {"test": "echo x > src/by-npm"}}\n')
    project.write("Makefile", "all:\n\techo x > src/by-make\n")
    (root / "src/crate/src").mkdir(parents=True)
    project.write("src/crate/Cargo.toml", '[package]\nname = "a"\nversion = "0.1.0"\n')
    project.write("src/crate/src/main.rs", "fn main() {}\n")
    subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=root, check=True)
    with zipfile.ZipFile(root / "thing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing.py", "")
        about = "thing-1.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    cargo = shutil.which("cargo")
    rustup = str(Path(cargo).parents[2] / ".rustup") if cargo else ""  # HOME is the test's own
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bob = bob_of(project, tmp_path, PATH=path, RUSTUP_HOME=rustup)
    day = [
        "python -m pytest -q src",
        "make",
        "npm test" if shutil.which("npm") else "true",
        "cd src/crate && cargo build --offline" if cargo else "true",
        ".venv/bin/pip install --no-index ./thing-1-py3-none-any.whl",
        "git add -A && git commit -qm \"$(cat <<'EOF'\nA day's work\n\nBy make\nEOF\n)\"",
        "DEBUG=1 sh -c 'echo x > src/by-shell'",
    ]
    for line in day:
        assert bob.call_and_run(line) is None
        assert (bob.done.returncode, bob.told) == (0, ""), (line, bob.done.stderr)
    assert not project.person.asked
    assert git(project, "log", "--format=%s") == "A day's work\n"
    assert list(root.glob(".venv/lib/*/site-packages/thing.py"))
    assert (root / "src/crate/target/debug/a").exists() is bool(cargo)


def test_each_call_has_the_scope_of_its_own_time(project: Project, tmp_path: Path) -> None:
    bob = bob_of(project, tmp_path)
    line = (
        "echo x > src/begun; while [ ! -e src/go ]; do sleep 0.05; done; python3 src/w.py src/late"
    )
    call = bob.call(ToolUse(UseKind.EXECUTE, command=line), "Bash")
    assert asyncio.run(bob.gate.before(call)) is None
    with subprocess.Popen(bob.argv(line), cwd=project.root, env=bob.env) as long:
        wait_until((project.root / "src/begun").exists)
        (project.root / "src/part").mkdir()
        shrunk = INTENTS.replace("src/**", "src/part/**")
        project.write(".orchestration/active_intents.yaml", shrunk)
        project.write("src/go", "")
        assert long.wait(60) == 0
    assert (project.root / "src/late").exists()  # it keeps what it began with
    asyncio.run(bob.gate.after(call))
    assert bob.call_and_run("python3 src/w.py src/part/a") is None
    assert bob.call_and_run("python3 src/w.py src/b") is None
    assert (project.root / "src/part/a").exists() and not (project.root / "src/b").exists()


def test_an_intent_that_has_ended_opens_nothing(project: Project, tmp_path: Path) -> None:
    bob = bob_of(project, tmp_path)
    done = INTENTS.replace("status: IN_PROGRESS", "status: COMPLETE")
    project.write(".orchestration/active_intents.yaml", done)
    assert bob.call_and_run("python3 src/w.py src/a") is Reason.INTENT_INACTIVE
    assert bob.call_and_run("cat src/base") is None  # reading goes on, and is held to nothing
    ran = subprocess.run(bob.argv("echo x > src/a"), cwd=project.root, env=bob.env, check=False)
    assert ran.returncode != 0 and not (project.root / "src/a").exists()


def test_a_session_that_is_killed_leaves_its_calls_held(project: Project, tmp_path: Path) -> None:
    bob = bob_of(project, tmp_path)
    line = "while [ ! -e src/go ]; do sleep 0.05; done; echo x > src/late; python3 src/w.py docs/n"
    call = bob.call(ToolUse(UseKind.EXECUTE, command=line), "Bash")
    assert asyncio.run(bob.gate.before(call)) is None
    with subprocess.Popen(bob.argv(line), cwd=project.root, env=bob.env) as long:
        again = HeldAgent(project.agent("Bob").gate)  # the next session of the same run
        again._env = bob._env
        again.again(tmp_path / "run", bob.given)
        assert reason(again.runs("git push")) is Reason.HUMAN_REJECTED
        assert again.call_and_run("python3 src/w.py src/b; python3 src/w.py docs/b") is None
        project.write("src/go", "")
        assert long.wait(60) != 0
    assert asyncio.run(again.gate.after(call)) == ""
    assert {one.name for one in (project.root / "docs").iterdir()} == {"x.md"}
    assert (project.root / "src/b").exists() and (project.root / "src/late").exists()
