"""The console script: ``relay VERB …``.

``wrap`` is dispatched before anything heavy is imported; every other verb goes through argparse
in :mod:`relay.cli.main`.
"""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    args = sys.argv[1:] if argv is None else argv
    if args and args[0] == "wrap":
        from relay.cli.wrap import main as wrap

        return wrap(args[1:])
    from relay.cli.main import main as dispatch

    return dispatch(args)


if __name__ == "__main__":
    sys.exit(main())
