"""Packages from outside that bring a feature."""

import importlib
from pathlib import Path


def install(folder: Path, name: str, part: str, text: str) -> None:
    """Put a feature called ``name``, whose module ``part`` has ``text``, into ``folder``."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    (folder / name / f"{part}.py").write_text(text)
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[relay.features]\n{name} = {name}\n")
    importlib.invalidate_caches()  # a finder that has just looked there may know the older folder
