"""``relay agent check`` with a real program of a recipe, and the scripted model for its model.

    python -m tests.real_agents.check qwen [--json] [OPTION ...]       (options of the verb)
    python -m tests.real_agents.check pi --keep       (… and keep what holds in checked.json)
    python -m tests.real_agents.check --docs          (write the table of docs/agents.md from that)

What counts as ``seen`` is compared with what the model got: that is the last row's proof here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from relay.features.agent_check.standard_conversation import ROWS
from tests.real_agents import install
from tests.real_agents.model import Repeat, ScriptedModel
from tests.real_agents.people import plain_conversation
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.recipes_node import NODE
from tests.real_agents.recipes_pypi import PYPI

#: Seconds that all of it may take.
DEADLINE = 600
#: What opens a dialog of those that ask before no command.
DIALOGS = {"pi": r"/settings\r", "elia": "\x12"}
#: A row that is newer than what was found of a program.
NOT_TRIED = ("–", "not tried yet")
MARKS = {True: "yes", False: "no", None: "–"}
TOKEN = re.compile(r"\bT[0-9a-f]{6}\b")
#: What held of each further program when it was last checked, and the page that tells it.
KEPT = Path(__file__).with_name("checked.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
BEGIN, END = "<!-- made by tests/real_agents/check.py -->\n", "<!-- end -->\n"
ROOT = Path(__file__).resolve().parents[2]


def check(
    name: str, binary: Path, folder: Path, *options: str, made: Options | None = None
) -> dict[str, Any]:
    """What ``relay agent check --json`` says of the program; ``seen`` is true, or it fails."""
    with ScriptedModel() as model:
        model.when("BEGIN ", Repeat())
        recipe = (AGENTS | NODE | PYPI)[name].recipe(
            binary, folder, model.url_for(name), made or Options()
        )
        if name in DIALOGS and "--dialog" not in options:
            options = (*options, "--dialog", DIALOGS[name])
        found = run(name, recipe.argv, recipe.env, recipe.cwd, *options)
        got = [request.last_text for request in model.requests]
        told = plain_conversation(model.requests[-1]) if model.requests else ""
        assert model.errors == []
    for message in found["messages"]:
        marker = f"message [{message['id'][-8:]}"
        arrived = [text for text in got if marker in text]
        message["reached"] = bool(arrived) or marker in told
        message["whole"] = any(_bare(message["body"]) in _bare(text) for text in [*arrived, told])
    return found


def run(
    name: str, argv: list[str], env: dict[str, str], cwd: Path, *options: str
) -> dict[str, Any]:
    """``relay agent check NAME --json OPTIONS -- ARGV``, parsed."""
    relay = [sys.executable, "-P", "-m", "relay", "agent", "check", name, "--yes", "--json"]
    done = subprocess.run(
        [*relay, *options, "--", *argv],
        env={"PYTHONPATH": str(ROOT), **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert "error" not in found, found
    assert done.returncode == (0 if found["holds"] else 1)
    return found


def untrue(found: dict[str, Any]) -> list[str]:
    """The messages that count as seen and did not reach the model, or not whole."""
    return [
        f"{one['id'][-8:]} {'reached it cut' if one['reached'] else 'never reached it'}"
        for one in found["messages"]
        if one["state"] == "seen" and not one["whole"]
    ]


def _bare(text: str) -> str:
    """Text without white space, and without the bars and signs that stand for ends of lines."""
    return "".join(text.replace("\\@", "@").replace("\n| ", "\n").replace("⏎", "").split())


def mark(row: dict[str, Any]) -> str:
    """What the table says of a row."""
    return "as told" if row["holds"] and row["as_told"] else MARKS[row["holds"]]


def keep(name: str, found: dict[str, Any]) -> None:
    """Note what holds of a program in checked.json."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept[name] = {row["what"]: [mark(row), TOKEN.sub("…", row["reason"])] for row in found["rows"]}
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def table() -> str:
    """The table of docs/agents.md, with a line for each thing that does not plainly hold."""
    kept = json.loads(KEPT.read_text())
    names = sorted(kept)
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    pins = install.PINS | install.PROFILED
    lines.append(f"| version | {' | '.join(pins[name].version for name in names)} |")
    notes: dict[tuple[str, str], list[str]] = {}
    for what in ROWS:
        cells = [kept[name].get(what, NOT_TRIED) for name in names]
        lines.append(f"| {what} | {' | '.join(cell[0] for cell in cells)} |")
        for name, (said, reason) in zip(names, cells, strict=True):
            if said != "yes":
                notes.setdefault((what, f"{said}: {reason}"), []).append(name)
    told = [f"- {what}, {', '.join(of)}: {why}" for (what, why), of in notes.items()]
    return "\n".join([*lines, "", *told, ""])


def page() -> str:
    """The page with its table as it should be."""
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    if sys.argv[1:] == ["--docs"]:
        PAGE.write_text(page())
        return 0
    name, options = sys.argv[1], [word for word in sys.argv[2:] if word != "--keep"]
    with tempfile.TemporaryDirectory(prefix="relay-check-agent-") as folder:
        os.chmod(folder, 0o700)
        found = check(name, install.binary(name), Path(folder), *options)
    if "--keep" in sys.argv:
        keep(name, found)
    if "--json" in options:
        print(json.dumps(found, indent=1))
    print(f"{name} {found['kind']}, read from its {found['source']}")
    for row in found["rows"]:
        print(f"  {row['as']:<9} {row['what']:<20} {mark(row):<8} {row['reason']}")
    print("seen and not so at the model:", untrue(found) or "none")
    if not found["holds"]:
        print("\n".join(found["screen"]))
    for one in found["messages"]:
        if one["state"] == "seen" and not one["whole"]:
            print(one["body"])
    return 0 if found["holds"] and not untrue(found) else 1


if __name__ == "__main__":
    sys.exit(main())
