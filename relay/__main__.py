"""The console script: ``relay VERB …``.

``wrap`` has a frame of its own: it ends as the agent ends. Every other verb is run by
:mod:`relay.cli.command_line`.
"""

from __future__ import annotations

import os
import sys


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    args = sys.argv[1:] if argv is None else argv
    if "PYTHONPATH" in os.environ:
        _forget_imports()
    if args and args[0] == "wrap":
        from relay.cli.wrap import main as wrap

        return wrap(args[1:])
    from relay.cli.command_line import main as dispatch

    return dispatch(args)


def _forget_imports() -> None:
    """Import nothing from where agents write."""
    from relay.config.trust import project_root
    from relay.core.environment import forget_imports_from

    try:
        forget_imports_from(project_root(os.getcwd()))
    except FileNotFoundError:
        forget_imports_from(os.sep + "nowhere")  # the folder is gone


if __name__ == "__main__":
    sys.exit(main())
