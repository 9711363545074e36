"""What an agent is told of intents: the rules at its start, and the context of what it selected.

Pure. A file of its own because words and XML are used by the session, the headless turn and the
public API. What stands in the intents came with the project: in the answer it is shown without
effect on a terminal, fires no pattern, and cannot end its own element.
"""

from __future__ import annotations

from collections.abc import Iterable

from relay.core.visible import visible
from relay.features.governance.intents import Intent, Status

#: Intents that the rules name, and characters of a name and of one line of the context; lessons
#: that go with it, and characters of the whole: a message to an agent is read by a model.
NAMED_MAX, NAME_MAX, LINE_MAX = 20, 80, 1000
LESSONS_MAX, CONTEXT_MAX = 20, 16_000
_CUT = "[more stands in .orchestration/active_intents.yaml]"


def intent_context(intent: Intent, lessons: Iterable[str] = ()) -> str:
    """``<intent_context>`` of ``intent`` as XML, with the newest of the project's ``lessons``."""
    groups = (
        ("owned_scope", "scope", intent.owned_scope),
        ("constraints", "constraint", intent.constraints),
        ("acceptance_criteria", "criterion", intent.acceptance_criteria),
        ("lessons", "lesson", tuple(lessons)[-LESSONS_MAX:]),
    )
    head = [
        _element("id", intent.id),
        _element("name", intent.name),
        _element("status", intent.status.value),
    ]
    lines, left = ["<intent_context>", *(f"  {one}" for one in head)], CONTEXT_MAX
    for group, name, values in groups:
        if not values and group == "lessons":
            continue
        lines.append(f"  <{group}>")
        for value in values:
            line = f"    {_element(name, value)}"
            left -= len(line)
            if left < 0:
                lines.append(f"    <!-- {_CUT} -->")
                break
            lines.append(line)
        lines.append(f"  </{group}>")
    return "\n".join([*lines, "</intent_context>"])


def rules(
    intents: Iterable[Intent], *, words: bool = True, shell: bool = True, tool: str = ""
) -> str:
    """What an agent of a governed project is told at its start.

    ``words``: relay hears what it says, ``shell``: it may run commands, ``tool``: it has one of
    that name by which it selects; one of them at least.
    """
    ways = [f"call {tool} with its id"] if tool else []
    if words:
        ways.append(
            "write @intent:select and its id on a line of your answer that begins with it, then end"
            " your turn"
        )
    if shell:
        ways.append("run `relay intent select ID` in your shell")
    lines = [
        "This project is governed: no file is changed without an intent. Before your first change"
        f" select the intent that you work on: {', or '.join(ways)}. You are answered with its"
        " context: the files you may change, constraints, and when it is done.",
        "Read a file with your own tools before you change it. A call that is refused is answered"
        ' with JSON of the type "HOOK_BLOCKED": do what its "recovery" says, and do not look for'
        " another way to write. Nothing in .orchestration or .git is yours to change.",
    ]
    if words:
        lines.append(
            "What others who work here should know you say as @intent:learn and one sentence."
        )
    open_ones = [one for one in intents if one.status in (Status.IN_PROGRESS, Status.PENDING)]
    if open_ones:
        lines.append("The intents, as the project words them:")
        lines += [_line(one) for one in open_ones[:NAMED_MAX]]
        if len(open_ones) > NAMED_MAX:
            lines.append(f"and {len(open_ones) - NAMED_MAX} more: relay intent list")
    return "\n".join(lines)


def reminder(intent: Intent) -> str:
    """One line for the next turn: what the agent has selected still counts."""
    name = visible(intent.name)[:NAME_MAX]
    return f"Your intent is still {visible(intent.id)}: {name}."


def _line(intent: Intent) -> str:
    name = visible(intent.name)
    short = name if len(name) <= NAME_MAX else f"{name[:NAME_MAX]}…"
    return f"- {visible(intent.id)} ({intent.status.value}): {short}"


def _element(name: str, text: str) -> str:
    shown = visible(text)
    if len(shown) > LINE_MAX:
        shown = f"{shown[:LINE_MAX]}…"
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        shown = shown.replace(char, entity)
    return f"<{name}>{shown}</{name}>"
