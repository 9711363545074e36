"""``relay agent check`` with a real program of a recipe, and the scripted model for its model.

    python -m tests.real_agents.check qwen [--json] [OPTION ...]       (options of the verb)

What counts as ``seen`` is compared with what the model got: that is the last row's proof here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.real_agents import install
from tests.real_agents.model import Repeat, ScriptedModel
from tests.real_agents.people import plain_conversation
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.recipes_node import NODE
from tests.real_agents.recipes_pypi import PYPI

#: Seconds that all of it may take.
DEADLINE = 600
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


def main() -> int:
    name, options = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="relay-check-agent-") as folder:
        os.chmod(folder, 0o700)
        found = check(name, install.binary(name), Path(folder), *options)
    if "--json" in options:
        print(json.dumps(found, indent=1))
    print(f"{name} {found['kind']}, heard by its {found['source']}")
    for row in found["rows"]:
        mark = {True: "yes", False: "NO", None: "-"}[row["holds"]]
        print(f"  {row['as']:<9} {row['what']:<20} {mark:<4} {row['reason']}")
    print("seen and not so at the model:", untrue(found) or "none")
    if not found["holds"]:
        print("\n".join(found["screen"]))
    for one in found["messages"]:
        if one["state"] == "seen" and not one["whole"]:
            print(one["body"])
    return 0 if found["holds"] and not untrue(found) else 1


if __name__ == "__main__":
    sys.exit(main())
