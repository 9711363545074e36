"""A configuration that is trusted and has its manifest, as after ``relay trust``."""

from __future__ import annotations

from pathlib import Path

from relay.config import programs
from relay.config.examine import examine
from relay.config.manifest import write_manifest
from relay.config.trust import place_of, read_config, trust
from relay.core.paths import Home


def trusted(home: Home, path: Path | str) -> None:
    """Trust ``path`` as it is, and keep its manifest."""
    place = place_of(str(path))
    file = read_config(place)
    seen = examine(file)
    search = programs.search_path(place, str(Path(place).parent))
    trust(home, place, file.sha256, seen.programs, search)
    write_manifest(home, file.sha256, seen.manifest)
