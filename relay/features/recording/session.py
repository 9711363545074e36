"""Recording in a session: a recorder that is shown the frames of a run that is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.features.recording.recording import Recorder


def watcher(fds: Mapping[str, int | None], profile: str) -> Recorder | None:
    """What records this run, if it is recorded."""
    file, reports = fds.get("record"), fds.get("recorded")
    if file is None or reports is None:
        return None
    from relay.features.recording.recording import Recorder  # most sessions are not recorded

    return Recorder(file, reports, profile)
