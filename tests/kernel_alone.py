"""The kernel without any feature: ``python -m tests.kernel_alone`` runs its quick tests like that.

The checkout is copied without ``relay/features`` and ``tests/features``, and stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What is quick and says the most: a test of one part each. Random examples have had their turn.
KIND = "unit and not hypothesis"
#: Where those are to which a feature can make a difference.
FOLDERS = [
    *("tests/core", "tests/protocol", "tests/directive", "tests/ledger", "tests/hooks"),
    *("tests/session", "tests/app", "tests/broker", "tests/ui"),
]


def copy_kernel(to: Path, *names: str) -> None:
    """Copy these files and folders of the checkout, all without names, without the features."""
    gone = {ROOT / "relay" / "features", ROOT / "tests" / "features"}
    # Links and what git does not know (``.venv``, ``.real_agents``) stay behind.
    kept = {".ci", *(path.name for path in ROOT.iterdir() if not path.name.startswith("."))}

    def left_out(folder: str, inside: list[str]) -> list[str]:
        return [
            name
            for name in inside
            if name in ("__pycache__", "build", "node_modules") or Path(folder, name) in gone
        ]

    for name in names or sorted(kept):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=left_out)
        else:
            shutil.copy2(ROOT / name, to / name)


def environment(folder: Path) -> dict[str, str]:
    """The environment in which Python imports relay from ``folder``."""
    return {**os.environ, "PYTHONPATH": str(folder)}


def main(args: list[str]) -> int:
    """Run pytest in a copy, with ``args`` in place of the quick tests if there are any."""
    with tempfile.TemporaryDirectory(prefix="relay-kernel-") as name:
        folder = Path(name).resolve()
        copy_kernel(folder)
        print(f"the kernel's tests, without any feature, in {folder}", flush=True)
        words = args or ["-n", "auto", "-q", "-m", KIND, *FOLDERS]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
        return subprocess.run(command, cwd=folder, env=environment(folder)).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
