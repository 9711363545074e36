"""What docs/agents/gemini.md tells the person to put into their own settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def documented_hooks() -> dict[str, Any]:
    """The settings of the page, as an object."""
    text = (Path(__file__).parents[3] / "docs" / "agents" / "gemini.md").read_text()
    found: dict[str, Any] = json.loads(text.partition("```json\n")[2].partition("```")[0])
    return found
