"""What Qwen Code's screen says about its input line and about what it is doing. Pure.

The input line stands between two rules as wide as the screen, its first row headed by a mark::

     ⠏ Thinking… (3s · esc to cancel)
    ────────────────────────────
    >   Type your message or @path/to/file
    ────────────────────────────

A dialog takes its place, so where the box is missing nothing may be typed.
"""

from __future__ import annotations

import re

from relay.agents.base import ComposerState

_RULE = re.compile(r"^─{8,}")
_MARK = re.compile(r"^[>!*](?: |$)")
_PLACEHOLDERS = frozenset(
    (
        "Type your message or @path/to/file",
        "Press 'i' for INSERT mode and 'Esc' for NORMAL mode.",
        "Nachricht eingeben oder @Pfad/zur/Datei",
        "Tapez votre message ou @chemin/vers/fichier",
        "Escriviu el vostre missatge o @camí/al/fitxer",
        "Digite sua mensagem ou @caminho/do/arquivo",
        "Введите сообщение или @путь/к/файлу",
        "メッセージを入力、@パス/ファイルでファイルを添付(D&D対応)",
        "輸入您的消息或 @ 檔案路徑",
        "输入您的消息或 @ 文件路径",
    )
)
_CHOICE = re.compile(r"^[\s│]*(?:[›❯●]\s*)?(\d)[.)]\s+\S")
_WAITS = re.compile(r"Waiting for user confirmation|\bEsc to (?:cancel|close|go back)\b", re.I)
#: Stands above the input line while a turn runs, in the person's language: how long it has run. A
#: row may end anywhere behind that.
_BUSY = re.compile(r"\((?:\d+h ?)?(?:\d+m ?)?\d+s ·")
_ABOVE = 12  # rows above the input line in which that is looked for; a queue may lie in between
#: In English whatever the language.
_CANCELLED = re.compile(r"● Request cancelled\.\s*$")
_SCROLL_BAR = re.compile(r"\s*[│█]?\s*$")


def composer_state(rows: list[str]) -> ComposerState:
    """Whether the input line is empty, holds a draft, or a dialog stands in its place.

    ``rows`` are the screen's rows from top to bottom. ``unknown`` when this is not a screen that
    is known here: then nothing should be typed that is not safe anywhere.
    """
    box = _box(rows)
    if box is None:
        return "dialog" if _shows_choices(rows) else "unknown"
    first = rows[box[0]]
    text = "\n".join([first[1:], *rows[box[0] + 1 : box[1]]]).strip()
    if first[:1] == "!":
        return "draft"  # what is typed there runs as a command
    return "empty" if not text or text in _PLACEHOLDERS else "draft"


def is_busy(rows: list[str]) -> bool:
    """Whether the screen shows a turn that runs."""
    box = _box(rows)
    above = rows[: box[0] - 1] if box else rows
    return any(_BUSY.search(row) for row in above[-_ABOVE:])


def was_cancelled(rows: list[str]) -> bool:
    """Whether the last thing that the screen shows is that the person stopped the turn."""
    box = _box(rows)
    above = [_SCROLL_BAR.sub("", row) for row in (rows[: box[0] - 1] if box else rows)]
    last = next((row for row in reversed(above) if row), "")
    return bool(_CANCELLED.search(last))


def _box(rows: list[str]) -> tuple[int, int] | None:
    """Where the input line begins and ends (exclusive), when it stands there."""
    rules = [at for at, row in enumerate(rows) if _RULE.match(row)]
    if len(rules) < 2:
        return None
    first, end = rules[-2] + 1, rules[-1]
    return (first, end) if first < end and _MARK.match(rows[first]) else None


def _shows_choices(rows: list[str]) -> bool:
    numbers = [found.group(1) for row in rows if (found := _CHOICE.match(row))]
    return "1" in numbers and "2" in numbers or any(_WAITS.search(row) for row in rows)
