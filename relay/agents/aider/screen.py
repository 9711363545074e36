"""What aider's screen says of its prompt and of the turn before; never for hearing. Pure.

Above each prompt stands a rule (without colours: an empty row), and the files of the chat::

    ────────────────────────────
    Readonly: notes.md
    ask> what the person types

What was submitted stays where it stands, and what comes of it follows. So only a terminal in raw
mode, with a prompt as the last thing on its screen, waits for a message: a question that aider
asks (``(Y)es/(N)o [Yes]:``) is raw too, and Enter would answer it.
"""

from __future__ import annotations

import re

from relay.agents.input_line import ComposerState

_FORMATS = (
    "architect|ask|code|context|diff-fenced|diff|editor-diff-fenced|editor-diff|editor-whole|func"
    "|help|patch|udiff-simple|udiff|whole"
)
_PROMPT = re.compile(rf"(?:{_FORMATS})?(?:(?:^| )multi)?>(?: |$)")
_MULTI = re.compile(rf"(?:(?:{_FORMATS}) )?multi>")
_RULE = re.compile(r"─{8,}$")
_QUESTION = re.compile(r"\(Y\)es/\(N\)o.{0,60}\[[^\[\]]{1,20}\]:")
#: A turn that was broken off, by the person or by the model's server, or cut at its end.
_BROKEN = re.compile(
    r"\^C (?:again to exit|KeyboardInterrupt)|[\s░█]*litellm\.\w+: |Model .+ has hit a token limit!"
)
#: What is left of the spinner stands before it.
_ERROR = re.compile(r"[\s░█]*litellm\.(\w+): ")
_ANSWERED = re.compile(r"^Tokens: \S+ sent\b.*\breceived\.")


def composer_state(rows: list[str]) -> ComposerState:
    """What stands where aider's prompt would be, on a screen whose terminal is in raw mode."""
    block = _block(rows)
    if question(rows):
        return "dialog"
    prompts = [at for at, row in enumerate(block) if _PROMPT.match(row)]
    if not prompts:
        return "busy"
    only = prompts[0] == len(block) - 1 and block[-1].rstrip().endswith(">")
    return "empty" if only and _PROMPT.fullmatch(block[-1].rstrip()) else "draft"


def multiline(rows: list[str]) -> bool:
    """Whether Enter begins a new line at this prompt, and Alt-Enter submits."""
    return any(_MULTI.match(row) for row in _block(rows))


def question(rows: list[str]) -> str:
    """The question that aider asks and waits for, or nothing."""
    shown = _shown(rows)[-4:]
    text = "".join(shown)
    found = list(_QUESTION.finditer(text))
    if not found or len(text) - found[-1].end() > 20:
        return ""
    end = found[-1].start()
    for row in shown:
        if end <= len(row):
            return row[:end].strip()
        end -= len(row)
    return ""


def broken_off(rows: list[str], *, prompting: bool) -> bool:
    """Whether the last turn on this screen did not come to its end."""
    return any(_BROKEN.match(row) for row in _turn(rows, prompting=prompting))


def ended(rows: list[str], *, prompting: bool) -> bool:
    """Whether the last turn shows what its answer has cost, or that it was broken off."""
    turn = _turn(rows, prompting=prompting)
    return any(_ANSWERED.match(row) or _BROKEN.match(row) for row in turn)


def error(rows: list[str], *, prompting: bool) -> str:
    """The last error of the model's server in the last turn: the name of its kind, or nothing."""
    names = [found[1] for row in _turn(rows, prompting=prompting) if (found := _ERROR.match(row))]
    return names[-1] if names else ""


def answered(rows: list[str]) -> bool:
    """Whether the screen shows that the model has answered."""
    return any(_ANSWERED.match(row) for row in rows)


def _shown(rows: list[str]) -> list[str]:
    shown = list(rows)
    while shown and not shown[-1].strip():
        shown.pop()
    return shown


def _block(rows: list[str]) -> list[str]:
    """The last rows that hang together: the prompt with what stands in it, if there is one."""
    shown = _shown(rows)
    for at in range(len(shown) - 1, -1, -1):
        if not shown[at].strip() or _RULE.match(shown[at].rstrip()):
            return shown[at + 1 :]
    return shown


def _turn(rows: list[str], *, prompting: bool) -> list[str]:
    """The rows of the last turn: below the last rule, or above it where the prompt is back.

    The rule is drawn a moment before the prompt.
    """
    parts: list[list[str]] = [[]]
    for row in _shown(rows)[: -len(_block(rows)) or None] if prompting else _shown(rows):
        if _RULE.match(row.rstrip()):
            parts.append([])
        else:
            parts[-1].append(row)
    while len(parts) > 1 and not any(_PROMPT.match(row) for row in parts[-1]):
        parts.pop()
    return parts[-1]
