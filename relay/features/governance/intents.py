"""Intents: what people write in ``.orchestration/active_intents.yaml``, and what agents hear of it.

Pure. The file may come with a repository: nothing in it is more than text, and all of it is
bounded. In what an agent hears it is shown without effect on a terminal, fires no pattern, and
cannot end its own XML element.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from relay.core.errors import NotFound, did_you_mean, nearest
from relay.core.visible import visible
from relay.core.yaml_tree import PARTS_MAX, Mistake, YamlError, YamlForm, YamlNode, read_tree
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.scope import glob_mistake

#: The files in the folder of a governed project.
INTENTS_FILE = "active_intents.yaml"
TRACE_FILE = "agent_trace.jsonl"
MAP_FILE = "intent_map.md"
LESSONS_FILE = "CLAUDE.md"
#: Bytes of the file; a larger one is refused.
FILE_MAX = 1024 * 1024
#: Characters of a name, and of a constraint or a criterion; how many of these an intent can have.
NAME_MAX, TEXT_MAX, TEXTS_MAX = 200, 2000, 100
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_T = TypeVar("_T", bound=StrEnum)


class IntentsError(YamlError):
    """The file of intents cannot be used."""

    code = "intents_invalid"
    file = f"{FOLDER}/{INTENTS_FILE}"


class TraceKind(StrEnum):
    """What a record of the trace tells of."""

    MUTATION = "mutation"
    VIOLATION = "violation"  # files that a call changed though its intent does not allow them
    REFUSAL = "refusal"
    SELECTION = "selection"
    APPROVAL = "approval"
    LESSON = "lesson"
    GOVERNANCE = "governance"  # off, on, ungoverned, the trace itself was tampered with


class Status(StrEnum):
    """How far an intent is. Only one that is in progress lets anybody write."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETE = "COMPLETE"
    BLOCKED = "BLOCKED"


class Unknown(StrEnum):
    """What becomes of a command or tool of which nobody can tell what it changes."""

    APPROVE = "approve"  # a person is asked
    REFUSE = "refuse"
    ALLOW = "allow"  # an intent is enough


@dataclass(frozen=True, slots=True)
class Intent:
    """One intent, as the file has it."""

    id: str
    name: str
    status: Status
    #: Globs relative to the project's root; one that begins with ``!`` excludes, and always wins.
    owned_scope: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    acceptance_criteria: tuple[str, ...] = ()
    #: The line of the file on which it begins, from 1.
    line: int = 0
    #: Calls that the person has allowed once and for all (``relay answer ITEM always``): shell
    #: lines as from the project's folder, and ``tool: NAME``. It counts where the person has said
    #: it here, too (GovernanceStore.always): a clone brings only the words.
    always_allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GovernanceSettings:
    """The section ``governance`` of the file; each has a default. Globs match whole commands."""

    #: Commands, beside relay's own lists, that only read; that build or test, for which an intent
    #: is enough; and that always need a person's yes.
    read_commands: tuple[str, ...] = ()
    run_commands: tuple[str, ...] = ()
    approve_commands: tuple[str, ...] = ()
    #: The same for tools that relay does not know, such as those of MCP servers.
    read_tools: tuple[str, ...] = ()
    run_tools: tuple[str, ...] = ()
    approve_tools: tuple[str, ...] = ()
    unknown: Unknown = Unknown.APPROVE
    #: Seconds that a person has to say yes, and that a lease lasts without a further write.
    approve_seconds: float = 300.0
    lease_seconds: float = 600.0
    #: An agent selects its intent anew in every turn.
    select_every_turn: bool = False

    @property
    def loosened(self) -> tuple[str, ...]:
        """What of it lets agents do more than relay would, as the file says it."""
        lists = ("read_commands", "run_commands", "read_tools", "run_tools")
        found = [f"{name}: {', '.join(getattr(self, name))}" for name in lists]
        found = [one for one, name in zip(found, lists, strict=True) if getattr(self, name)]
        return (*(["unknown: allow"] if self.unknown is Unknown.ALLOW else []), *found)


@dataclass(frozen=True, slots=True)
class IntentDocument:
    """The whole file, by intents' ids in the file's order."""

    intents: dict[str, Intent] = field(default_factory=dict)
    settings: GovernanceSettings = field(default_factory=GovernanceSettings)


# -- reading


def parse(text: str) -> IntentDocument:
    """Read the file. Raises IntentsError with all mistakes."""
    return _Form(*read_tree(text, IntentsError)).document()


def with_status(text: str, intent_id: str, status: Status) -> str:
    """The file with another status of one intent; nothing else in it changes.

    Raises IntentsError where the file is wrong, NotFound where it has no such intent.
    """
    tree, mistakes = read_tree(text, IntentsError)
    document = _Form(tree, mistakes).document()
    check_id(document, intent_id)
    for node in tree.get("active_intents").items if tree else ():
        if node.get("id").value == intent_id:
            old = node.get("status")
            break
    changed = f"{text[: old.start]}{old.quote}{status}{old.quote}{text[old.end :]}"
    meant = {**document.intents}
    meant[intent_id] = replace(meant[intent_id], status=status)
    if parse(changed).intents != meant:  # then nothing is written
        raise IntentsError([Mistake(old.line, f"the status cannot be changed to {status}")])
    return changed


#: Said of the calls when the first is written.
_ALWAYS_NOTE = "# what you have allowed always: relay answer ID always"


def with_always(text: str, intent_id: str, call: str) -> str:
    """The file with one more call that an intent allows always; nothing else in it changes.

    Raises IntentsError where the file is wrong or cannot be changed so, NotFound where it has no
    such intent.
    """
    tree, mistakes = read_tree(text, IntentsError)
    document = _Form(tree, mistakes).document()
    intent = check_id(document, intent_id)
    if call in intent.always_allow:
        return text
    nodes = tree.get("active_intents").items if tree else ()
    node = next(one for one in nodes if one.get("id").value == intent_id)
    changed = _one_more(text, node, json.dumps(call, ensure_ascii=False))
    meant = {**document.intents}
    meant[intent_id] = replace(intent, always_allow=(*intent.always_allow, call))
    try:
        same = _without_lines(parse(changed).intents) == _without_lines(meant)
    except IntentsError:
        same = False
    if not same:  # then nothing is written
        why = f"always_allow: this cannot be added here: {call[:200]}"
        raise IntentsError([Mistake(node.line, why)])
    return changed


def _one_more(text: str, intent: YamlNode, quoted: str) -> str:
    listed = [value for key, value in intent.pairs if key.value == "always_allow"]
    last = listed[0].items[-1] if listed and listed[0].items else None
    if last is not None and text[listed[0].start] == "[":
        return f"{text[: last.end]}, {quoted}{text[last.end :]}"
    if last is not None:
        begin = text.rfind("\n", 0, last.start) + 1
        return _line_behind(text, last.end, text[begin : last.start] + quoted)
    if listed:  # it is empty
        there = listed[0].end
        one = quoted if listed[0].kind == "list" else f" [{quoted}]"
        return f"{text[:there]}{one}{text[there:]}"
    key, status = next(pair for pair in intent.pairs if pair[0].value == "status")
    if text[intent.start] == "{":
        return f"{text[: status.end]}, always_allow: [{quoted}]{text[status.end :]}"
    indent = " " * (key.start - text.rfind("\n", 0, key.start) - 1)
    lines = (f"{indent}always_allow: {_ALWAYS_NOTE}", f"{indent}  - {quoted}")
    return _line_behind(text, status.end, *lines)


def _line_behind(text: str, place: int, *lines: str) -> str:
    """``text`` with these lines behind the one that ``place`` stands in."""
    end = text.find("\n", place)
    brk = "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"
    if end < 0:
        return text + brk + brk.join(lines) + brk
    return text[: end + 1] + "".join(f"{line}{brk}" for line in lines) + text[end + 1 :]


def _without_lines(intents: dict[str, Intent]) -> dict[str, Intent]:
    return {id_: replace(intent, line=0) for id_, intent in intents.items()}


def check_id(document: IntentDocument, intent_id: str) -> Intent:
    """The intent of this id. Raises NotFound, which says what there is."""
    found = document.intents.get(intent_id)
    if found is None:
        ids = list(document.intents)
        valid = ", ".join(ids[:50]) + (" …" if len(ids) > 50 else "")
        raise NotFound(
            f"intent {intent_id[:64]!r} is not in {FOLDER}/{INTENTS_FILE}; valid ids: "
            + (valid or "none, the file has no intents"),
            hint=did_you_mean(intent_id[:64], ids) if ids else "",
        )
    return found


class _Form(YamlForm):
    """Makes intents and settings of a document, and notes every mistake on the way."""

    def __init__(self, root: YamlNode | None, mistakes: list[Mistake]) -> None:
        super().__init__(mistakes)
        self._root = root

    def document(self) -> IntentDocument:
        intents: dict[str, Intent] = {}
        settings = GovernanceSettings()
        if self._root is not None:
            found = self.mapping(self._root, ("active_intents", "governance"), ())
            if "active_intents" in found:
                intents = self._intents(found["active_intents"])
            if "governance" in found and not found["governance"].is_null:
                settings = self._settings(found["governance"])
        if self.mistakes:
            raise IntentsError(self.mistakes)
        return IntentDocument(intents, settings)

    def _intents(self, node: YamlNode) -> dict[str, Intent]:
        made: dict[str, Intent] = {}
        for one in self.entries(node, "active_intents"):
            intent = self._intent(one)
            if intent.id in made:
                first = made[intent.id].line
                self.wrong(one, f"there is an intent {intent.id!r} already, in line {first}")
            elif intent.id:
                made[intent.id] = intent
        return made

    def _intent(self, node: YamlNode) -> Intent:
        needed = ("id", "name", "status", "owned_scope")
        known = (*needed, "constraints", "acceptance_criteria", "always_allow")
        found = self.mapping(node, known, needed)
        intent_id, name = self.short(found, "id", NAME_MAX), self.short(found, "name", NAME_MAX)
        if intent_id and not _ID.fullmatch(intent_id):
            said = "an id is made of letters, digits, '.', '_' and '-', at most 64"
            self.wrong(found["id"], f"{intent_id[:64]!r} is not a valid id: {said}")
        status = Status.PENDING
        if "status" in found:
            status = self._choice(found["status"], Status, "status") or status
        globs = self._texts(found, "owned_scope", PARTS_MAX, glob_mistake)
        constraints = self._texts(found, "constraints", TEXTS_MAX)
        criteria = self._texts(found, "acceptance_criteria", TEXTS_MAX)
        always = self._texts(found, "always_allow", TEXTS_MAX)
        return Intent(intent_id, name, status, globs, constraints, criteria, node.line, always)

    def _settings(self, node: YamlNode) -> GovernanceSettings:
        defaults = GovernanceSettings()
        names = tuple(one.name for one in fields(GovernanceSettings))
        values: dict[str, Any] = {}
        found = self.mapping(node, names, ())
        for name, value in found.items():
            default = getattr(defaults, name)
            if isinstance(default, Unknown):
                values[name] = self._choice(value, Unknown, name) or default
            elif isinstance(default, bool):
                if not value.plain or value.value.lower() not in ("true", "false"):
                    self.wrong(value, f"{name}: true or false is meant here")
                values[name] = value.value.lower() == "true"
            elif isinstance(default, float):
                values[name] = self._seconds(value, name, *_SECONDS[name])
            else:
                values[name] = self._texts(found, name, TEXTS_MAX, _MISTAKES.get(name))
        return replace(defaults, **values)

    def _seconds(self, node: YamlNode, name: str, least: float, most: float) -> float:
        number = node.value.replace(".", "", 1)
        fits = node.kind == "text" and number.isascii() and number.isdigit() and len(number) < 12
        if not fits or not least <= float(node.value) <= most:
            self.wrong(node, f"{name}: seconds are meant here, from {least:g} to {most:g}")
            return least
        return float(node.value)

    def _choice(self, node: YamlNode, kind: type[_T], name: str) -> _T | None:
        one_line = node.kind == "text" and (node.plain or node.quote)
        if one_line and node.value in set(kind):
            return kind(node.value)
        shown = f"{node.value[:40]!r}" if node.kind == "text" else "this"
        known = [str(one) for one in kind]
        near = nearest(node.value[:40], known)
        hint = f" (did you mean {near}?)" if near else ""
        self.wrong(node, f"{name}: {shown} is not one of {', '.join(known)}{hint}")
        return None

    def _texts(
        self,
        found: dict[str, YamlNode],
        name: str,
        most: int,
        mistake: Callable[[str], str] | None = None,
    ) -> tuple[str, ...]:
        if name not in found:
            return ()
        nodes = self.entries(found[name], name)
        if len(nodes) > most:
            self.wrong(nodes[most], f"{name}: there are more than {most}")
        texts = [(node, self.text(node, name, TEXT_MAX)) for node in nodes[:most]]
        for node, text in texts:
            if text and mistake is not None and (said := mistake(text)):
                self.wrong(node, f"{name}: {said}")
        return tuple(text for _, text in texts)


def _names_nothing(glob: str) -> str:
    """What would let more go on than anybody can have meant."""
    return "begin with the name of what is meant" if glob.strip()[:1] in "*?[" else ""


#: What is wrong with a glob of each list that lets calls go on.
_MISTAKES = dict.fromkeys(
    ("read_commands", "run_commands", "read_tools", "run_tools"), _names_nothing
)
#: The least and the most of each setting in seconds. An agent's own hook waits for 590 at most.
_SECONDS = {"approve_seconds": (1.0, 580.0), "lease_seconds": (1.0, 86_400.0)}


#: Intents that the rules name, and characters of a name and of one line of the context; lessons
#: that go with it, and characters of the whole: a message to an agent is read by a model.
NAMED_MAX, SHOWN_NAME_MAX, LINE_MAX = 20, 80, 1000
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
    name = visible(intent.name)[:SHOWN_NAME_MAX]
    return f"Your intent is still {visible(intent.id)}: {name}."


def _line(intent: Intent) -> str:
    name = visible(intent.name)
    short = name if len(name) <= SHOWN_NAME_MAX else f"{name[:SHOWN_NAME_MAX]}…"
    return f"- {visible(intent.id)} ({intent.status.value}): {short}"


def _element(name: str, text: str) -> str:
    shown = visible(text)
    if len(shown) > LINE_MAX:
        shown = f"{shown[:LINE_MAX]}…"
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        shown = shown.replace(char, entity)
    return f"<{name}>{shown}</{name}>"
