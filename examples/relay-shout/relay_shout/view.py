"""How the feature's rows look in ``relay watch``, the console and the web page."""

from __future__ import annotations

from relay.ui.row_view import Json, Piece


def _shout(row: Json) -> list[Piece]:
    return [(f"{row['who']} shouts at {row['to']}: ", "name"), (row["words"], "bold")]


ROWS = {"shout": _shout}
