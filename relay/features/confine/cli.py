"""What confining adds to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from collections.abc import Iterator

from relay.core.paths import Home
from relay.features.confine import confinement


def checks(home: Home, cwd: str) -> Iterator[tuple[str, str, str]]:
    """A line of ``relay doctor``: what this system can do, found by trying it."""
    holder = confinement.holder()
    if not holder:
        hint = "relay confine and relay wrap --confine start nothing here"
        yield "warn", "no program can be confined: no Landlock, no sandbox-exec", hint
        return
    if problem := confinement.tried():
        yield "warn", f"{holder} is there, but {problem}", "a container may forbid it"
        return
    missing = confinement.weaknesses()
    text = f"{holder}: can restrict which folders a program writes to"
    if missing:
        yield "warn", f"{text}; but {'; '.join(missing)}", "a newer kernel holds that, too"
    else:
        yield "ok", text, ""
