"""Whatever line the gate lets go on, a real bash changes nothing outside of the scope by it."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from relay.agents.tool_uses import ToolUse, UseKind
from relay.core.paths import Home
from relay.features.governance.call_plan import GateCall, GovernedRun
from relay.features.governance.commands import CommandKind, classify
from relay.features.governance.gate import Gate
from relay.features.governance.governance_store import GovernanceStore
from relay.features.governance.intents import GovernanceSettings
from relay.features.governance.orchestration import IntentsFile
from relay.features.governance.trace import Trace

INTENTS = """\
active_intents:
  - {id: INT-1, name: All of src, status: IN_PROGRESS, owned_scope: [src/**, "!src/secret"]}
"""
LINES = 150
READ = ("src/a", "src/d/x")
FILES = (*READ, "src/b", "src/secret/k", "README", "docs/x")
LINKS = {"src/out": "../docs", "src/f": "../README", "src/d/up": "../..", "in": "src"}
PATHS = (
    *FILES, *LINKS, "src/n", "src/n/y", "src/m/x", "src/out/x", "src/d/up/README", "in/a", "in/n",
    "src/d/", "src/out/", "src/.", "src/out/../README", "src/d/../b", "src", "docs", "x", "a", "..",
    "../o", "$PWD/README", "~/x", "src/e", "src/e/d", "'src/a b'", "src/?", ".git/config",
)  # fmt: skip
COMMANDS = (
    "mv", "mv -f", "cp", "cp -r", "cp -a", "rm", "rm -r", "rm -rf", "touch", "mkdir", "mkdir -p",
    "echo 2 >", "echo 2 >>", "tee", "tee -a", "cd", "rmdir", "cat", "chmod 600", "truncate -s 0",
    "sed -i s/1/2/", "ln -s", "ls", "head", "find", "sort", "( rm", "if true; then rm", "env rm",
)  # fmt: skip


def _line(chance: random.Random) -> str:
    command = chance.choice(COMMANDS)
    parts = [command, *chance.choices(PATHS, k=chance.choice((1, 1, 2, 2, 3)))]
    if chance.random() < 0.15:
        parts += [chance.choice((">", ">>", "2>", "<", "&>")), chance.choice(PATHS)]
    parts.append({"( rm": ")", "if true; then rm": "; fi"}.get(command, ""))
    line = " ".join(parts)
    if chance.random() < 0.4:
        line += chance.choice((" && ", "; ", " || ", " | ", "\n")) + _line(chance)
    return line


def _make(top: Path) -> Path:
    shutil.rmtree(top, ignore_errors=True)
    root = top / "project"
    for path in (".orchestration/active_intents.yaml", ".git/config", *FILES):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(INTENTS if path.endswith("yaml") else f"1 {path}\n")
    for path, to in LINKS.items():
        (root / path).symlink_to(to)
    (top / "o").write_text("1\n")
    (top / "home").mkdir()
    return root


def _seen(top: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            what = f"{os.lstat(path).st_mode:o} "
            if os.path.islink(path):
                what += os.readlink(path)
            elif os.path.isfile(path):
                what += Path(path).read_text()
            yield os.path.relpath(path, top), what


async def _lets(root: Path, store: GovernanceStore, line: str) -> bool:
    run = GovernedRun(line, "Bob", str(root), str(root), os.getpid())
    trace = Trace(str(root), store)
    intents = IntentsFile(str(root))
    gate = Gate(run, intents=intents, store=store, trace=trace, approver=None, now_ms=lambda: 1)
    await gate.select("INT-1")
    await gate.before(GateCall("Read", ToolUse(UseKind.READ, reads=READ)))
    refusal = await gate.before(GateCall("Bash", ToolUse(UseKind.EXECUTE, command=line)))
    await gate.ended()
    return refusal is None


def test_nothing_outside_of_the_scope_is_changed(tmp_path: Path) -> None:
    chance = random.Random(17)
    store = GovernanceStore.open(Home(str(tmp_path / "relay")))
    top, allowed = tmp_path / "top", 0
    for _ in range(LINES):
        line = _line(chance)
        kind = classify(line, GovernanceSettings()).kind
        if kind not in (CommandKind.READ, CommandKind.WRITE):
            continue
        root = _make(top)
        if not asyncio.run(_lets(root, store, line)):
            continue
        allowed += kind is CommandKind.WRITE
        before = dict(_seen(top))
        env = {"PATH": os.environ["PATH"], "HOME": str(top / "home")}
        silent = subprocess.DEVNULL
        argv = ["bash", "-c", line]
        subprocess.run(
            argv, cwd=root, env=env, stdin=silent, stdout=silent, stderr=silent, timeout=9
        )
        after = dict(_seen(top))
        changed = {one for one in before.keys() | after.keys() if before.get(one) != after.get(one)}
        outside = [one for one in changed if not f"{one}/".startswith("project/src/")]
        secret = [one for one in changed if one.startswith("project/src/secret")]
        assert (line, outside + secret) == (line, [])
    store.close()
    assert allowed > LINES // 20
