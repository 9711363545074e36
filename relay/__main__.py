"""The console script: ``relay VERB …``.

``wrap`` has a frame of its own: it ends as the agent ends. Every other verb is run by
:mod:`relay.cli.command_line`.
"""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    args = sys.argv[1:] if argv is None else argv
    if args and args[0] == "wrap":
        from relay.cli.wrap import main as wrap

        return wrap(args[1:])
    from relay.cli.command_line import main as dispatch

    return dispatch(args)


if __name__ == "__main__":
    sys.exit(main())
