"""Reads a hook's answer: a program's exit status and output, or a function's value. Pure.

An answer that cannot be understood is a failure of the hook, never a guess; what a failure means
is what the hook's definition says (``OnFailure``). A mapping may use any engine's spelling: keys
are read without case, ``_`` and ``-`` (``stopReason``, ``stop_reason`` and ``StopReason`` are one),
and the same keys may stand in ``hookSpecificOutput``.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from relay.core.errors import RelayError, did_you_mean, slips
from relay.core.message import BODY_MAX
from relay.core.plain import NotPlain, encodable, plain, shown
from relay.directive.escape import clean
from relay.hooks.events import DENIABLE, HookEventName
from relay.hooks.hook_types import (
    NOTHING_SAID,
    Decision,
    Dialect,
    HookDefinition,
    HookOutput,
    OnFailure,
    ToolMode,
    ToolSelection,
)

#: The longest ``error``, in characters.
ERROR_MAX = 1000
#: The longest text for people or as a reason, and for the model, in characters.
TEXT_MAX = 16_000
CONTEXT_MAX = 200_000
#: Unknown keys that are compared with the known ones; the rest is ignored.
_COMPARED_MAX = 32
#: A name in front of an error is for others to put there.
_IT = "it"
_DENY_STATUS = 2
ALLOWED = (
    'None, a string, or a mapping such as {"deny": reason}, {"input": {…}}, {"context": text} '
    'or {"inject": text}'
)
_RESULT_ALLOWED = 'None, a string, or {"inject": text or a list of texts, "stop": True}'
_RESULT_KEYS = ("inject", "stop")
_OUTPUT_ALLOWED = "one JSON object, or plain text"
#: Where a program written for Claude Code gives context to the model by just printing it.
_PRINTED_CONTEXT = (HookEventName.SESSION_START, HookEventName.BEFORE_AGENT)
#: relay's own keys, and those of other engines with what they mean.
_KEYS = (
    *("allow", "ask", "block", "context", "continue", "decision", "deny", "inject", "input"),
    *("reason", "request", "response", "stop", "stop_reason", "suppress_output"),
    *("system_message", "tools"),
)
_FOREIGN = {
    "permissionDecision": "permission",
    "permissionDecisionReason": "permission_reason",
    "hookSpecificOutput": "specific",
    "hookEventName": "ignored",
    "updatedInput": "input",
    "tool_input": "input",
    "additionalContext": "context",
    "updatedToolOutput": "response",
    "updatedMCPToolOutput": "response",
    "tool_response": "response",
    "llm_response": "response",
    "llm_request": "request",
    "toolConfig": "tools",
}
_DECIDING = frozenset({"decision", "permission", "deny", "block", "ask"})
_DECISIONS = {
    "allow": Decision.ALLOW,
    "approve": Decision.ALLOW,
    "ask": Decision.ASK,
    "deny": Decision.DENY,
    "block": Decision.DENY,
}
_RANK = list(Decision)


class HandlerError(RelayError):
    """A handler gave back something that is no result."""

    code = "handler"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a program said. ``error`` is one line for people, "" exactly when it did its work.

    With an ``error`` the ``output`` is already what the failure means (see ``on_failure``).
    """

    output: HookOutput | None = None
    error: str = ""


def read_process(
    definition: HookDefinition,
    event: HookEventName,
    exit_status: int | None,
    stdout: bytes,
    stderr: bytes,
) -> Reading:
    """What the end of a program means; also an HTTP answer, as status 0 with its body. No raise.

    Status 0: ``stdout`` is JSON in any dialect, or text, which decides nothing and is shown to the
    user. 2: denied, the reason is on ``stderr``. Any other (negative: a signal; None: it never
    ran) is a failure.
    """
    said, complaint = _text(stdout), _text(stderr)
    try:
        if exit_status == 0:
            return Reading(_answer(definition, event, said))
        if exit_status == _DENY_STATUS:
            return Reading(_denial(definition, event, said, complaint))
    except HandlerError as error:
        return _failed(definition, event, f"{error.message}; {error.hint}")
    reading = _failed(definition, event, _ending(exit_status, complaint))
    return replace(reading, output=_last_word(definition, event, said, complaint, reading.output))


def read_value(value: object, name: str, event: HookEventName) -> HookOutput:
    """What the function ``name`` (for people) returned for ``event``. Raises HandlerError.

    Everything that read_pattern_value takes means the same here.
    """
    if value is None:
        return NOTHING_SAID
    if isinstance(value, str):
        return HookOutput(inject=texts(value, name))
    if not isinstance(value, Mapping):
        raise no_result(value, name, ALLOWED)
    try:
        return read_mapping(value, name, event, strict=True)
    except HandlerError:
        raise
    except Exception as error:  # a mapping of the user's own making may do anything
        raise HandlerError(
            f"{name} returned a {type(value).__name__} that cannot be read"
            f" ({type(error).__name__})",
            hint=f"a handler returns {ALLOWED}",
        ) from None


def read_pattern_value(value: object, handler: str) -> HookOutput:
    """What a pattern's ``handler`` (a name for people) returned, which can only inject and stop.

    Raises HandlerError.
    """
    if isinstance(value, Mapping):
        for key in value:
            if _meaning(key) not in _RESULT_KEYS:
                raise unknown_key(key, handler, _RESULT_KEYS, _RESULT_ALLOWED)
    elif not isinstance(value, str | None):
        raise no_result(value, handler, _RESULT_ALLOWED)
    return read_value(value, handler, HookEventName.OUTPUT)


def on_failure(definition: HookDefinition, event: HookEventName, error: str) -> HookOutput | None:
    """What the failure of the hook means: a denial that says why, or None."""
    if definition.on_failure is not OnFailure.BLOCK or event not in DENIABLE:
        return None
    return denied(definition, error)


def denied(definition: HookDefinition, error: str) -> HookOutput:
    """What a hook that blocks when it fails says by that."""
    reason = f"the hook {clipped(definition.name, 200)} failed, and it blocks when it does: {error}"
    return HookOutput(decision=Decision.DENY, reason=clipped(reason))


def _failed(definition: HookDefinition, event: HookEventName, error: str) -> Reading:
    line = _one_line(error)
    return Reading(on_failure(definition, event, line), line)


def _answer(definition: HookDefinition, event: HookEventName, said: str) -> HookOutput | None:
    """What a program that did its work printed."""
    if not said:
        return None
    value = _parsed(said)
    if isinstance(value, Mapping):
        output = _read(definition, event, value)
        return None if output == NOTHING_SAID else output
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        raise no_result(value, _IT, _OUTPUT_ALLOWED)
    text = value if isinstance(value, str) else said
    if value is None or not text:
        return None
    _refuse_hidden_decision(text)
    if definition.dialect is Dialect.CLAUDE and event in _PRINTED_CONTEXT:
        return HookOutput(context=clipped(text, CONTEXT_MAX))
    return HookOutput(system_message=clipped(text))


def _denial(
    definition: HookDefinition, event: HookEventName, said: str, complaint: str
) -> HookOutput:
    """Exit status 2: what is on stdout can add to it, but not take it back."""
    if event not in DENIABLE:
        raise HandlerError(
            f"it exited with status 2, but {event.registration} cannot be denied",
            hint=_quoted(complaint) or "exit with 0 there",
        )
    output = _spoken(definition, event, said) or NOTHING_SAID
    own = output.reason if output.decision is not Decision.ALLOW else ""
    reason = clipped(complaint) or own or default_reason(definition.name)
    return replace(output, decision=Decision.DENY, reason=reason, input=None)


def _last_word(
    definition: HookDefinition,
    event: HookEventName,
    said: str,
    complaint: str,
    failure: HookOutput | None,
) -> HookOutput | None:
    """The output of a program that failed: its own denial, else what its failure means.

    Where that is nothing, its complaint is shown to the user.
    """
    spoken = _spoken(definition, event, said)
    if spoken is not None and spoken.decision is Decision.DENY:
        return HookOutput(decision=Decision.DENY, reason=spoken.reason)
    if failure is None and complaint:
        return HookOutput(system_message=clipped(f"Warning: {complaint}"))
    return failure


def _spoken(definition: HookDefinition, event: HookEventName, said: str) -> HookOutput | None:
    """The output that stands on ``said`` as a JSON object, where one does."""
    try:
        value = _parsed(said)
        return _read(definition, event, value) if isinstance(value, Mapping) else None
    except HandlerError:
        return None


def _read(
    definition: HookDefinition, event: HookEventName, value: Mapping[object, object]
) -> HookOutput:
    return read_mapping(value, _IT, event, strict=False, denier=definition.name)


def _parsed(said: str) -> Any:
    """The JSON value on ``said``, also encoded twice; ``said`` itself where that is plain text.

    Raises HandlerError for what begins like an object and is none.
    """
    value: Any = said
    for _encoded in range(3):
        try:
            value = plain(json.loads(value, parse_constant=_no_constant))
        except (ValueError, RecursionError) as error:
            if _like_an_object(value):
                raise HandlerError(
                    f"it printed broken JSON: {_json_problem(error)}",
                    hint=f"it began with {_quoted(value[:80])}",
                ) from None
            return value
        if not isinstance(value, str):
            return value
        value = value.strip()
    return value


def _like_an_object(text: str) -> bool:
    return text.lstrip('" \t\r\n').startswith("{")


def _refuse_hidden_decision(text: str) -> None:
    """A decision after other text would not be seen: that must not look like "nothing to say"."""
    # The first and the last place are enough to look at, and bound what it costs.
    for at in {text.find("\n{"), text.rfind("\n{")} - {-1}:
        try:
            value, _end = json.JSONDecoder().raw_decode(text, at + 1)
        except (ValueError, RecursionError):
            continue
        if decides(value):
            raise HandlerError(
                "it printed other text before its JSON", hint="print nothing but the JSON"
            )


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _json_problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    if isinstance(error, NotPlain):
        return str(error)
    return "it is nested too deep" if isinstance(error, RecursionError) else "not a JSON value"


def _ending(exit_status: int | None, complaint: str) -> str:
    if exit_status is None:
        text = "it did not run"
    elif exit_status < 0:
        text = f"it was killed by signal {-exit_status}{_signal_name(-exit_status)}"
    else:
        text = f"it exited with status {exit_status}"
    return f"{text}: {complaint}" if complaint else text


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


def _text(data: bytes) -> str:
    """``data`` decoded, without a byte order mark and the white space around it."""
    return encodable(data.decode("utf-8-sig", "replace")).strip()


def _quoted(text: str) -> str:
    return _one_line(text, 200)


def _one_line(text: str, limit: int = ERROR_MAX) -> str:
    """``text`` in one line. What is too long loses its middle: causes stand at either end."""
    line = " ".join(clipped(text, 4 * limit).split())
    if len(line) <= limit:
        return line
    return f"{line[: limit // 2]} … {line[3 - limit // 2 :]}"


def read_mapping(
    value: Mapping[object, object],
    name: str,
    event: HookEventName,
    *,
    strict: bool,
    denier: str = "",
) -> HookOutput:
    """The HookOutput for ``value``, which the hook ``name`` answered with. Raises HandlerError.

    ``denier`` is what a denial without a reason calls the hook, if not ``name``.

    ``strict`` is for functions: every key must be known and mean something for ``event``. A program
    may have been written for another engine, so what relay has no use for is ignored there; but not
    a decision that cannot be obeyed, nor what looks like a misspelt key.
    """
    answer = _Reader(name, event, strict, denier or name)
    answer.take(value)
    return answer.output()


def decides(value: object) -> bool:
    """Whether ``value`` is a mapping with a key that decides something, whatever it says."""
    if not isinstance(value, Mapping):
        return False
    keys = {_meaning(key) for key in value}
    return bool(keys & _DECIDING) or ("specific" in keys) or ("continue" in keys)


@dataclass
class _Reader:
    """Reads one answer, key by key."""

    #: The hook's name for people.
    name: str
    event: HookEventName
    #: Every key must be known and mean something for the event.
    strict: bool
    #: What a denial without a reason calls it.
    denier: str
    #: Fields of HookOutput that were read.
    said: dict[str, Any] = field(default_factory=dict)
    #: With a reason of its own, or None: the one of permissionDecisionReason, which may come later.
    decisions: list[tuple[Decision, str | None]] = field(default_factory=list)
    reason: str = ""
    permission_reason: str = ""
    unknown: int = 0

    def take(self, value: Mapping[object, object], path: str = "") -> None:
        """Read the keys of ``value``, which stands at ``path`` in the answer."""
        for key, item in value.items():
            meaning = _meaning(key)
            if meaning == "specific" and not path:
                if isinstance(item, Mapping):
                    self.take(item, f"{str(key)[:80]}.")
                elif item is not None:
                    raise self._wrong(key, item, "it is a mapping")
            elif meaning in ("", "specific"):
                self._not_known(key)
            elif item is not None and meaning != "ignored":
                self._take_one(meaning, f"{path}{str(key)[:80]}", item)

    def _take_one(self, meaning: str, key: str, item: object) -> None:
        if meaning in ("decision", "permission"):
            self._decide(self._decision(key, item), key, meaning == "permission")
        elif meaning in _DECISIONS:
            self._decide_shortly(_DECISIONS[meaning], key, item)
        elif meaning in ("reason", "permission_reason"):
            setattr(self, meaning, self._text(key, item).strip())
        elif meaning == "continue":
            self.said["stop"] = not flag(item, key, self.name)
        elif meaning == "stop":
            self.said["last"] = flag(item, key, self.name)
        elif meaning == "suppress_output":
            self.said["suppress_output"] = flag(item, key, self.name)
        elif meaning == "stop_reason":
            self.said["stop_reason"] = self._text(key, item).strip()
        elif meaning == "system_message":
            self.said["system_message"] = self._text(key, item)
        elif meaning == "context":
            context = self._text(key, item, CONTEXT_MAX)
            self.said["context"] = context if context.strip() else ""
        elif meaning == "inject":
            self.said["inject"] = tuple(encodable(text) for text in texts(item, self.name))
        else:
            self._rewrite(meaning, key, item)

    def output(self) -> HookOutput:
        """Everything together: the strongest decision, with its own reasons before the common."""
        said = dict(self.said)
        if said.get("stop") and not said.get("stop_reason"):
            said["stop_reason"] = self.reason
        if not self.decisions:
            return HookOutput(reason=self.reason, **said)
        decision = max((one for one, _reason in self.decisions), key=_RANK.index)
        given = [reason for one, reason in self.decisions if one is decision]
        own = [self.permission_reason if reason is None else reason for reason in given]
        reason = "\n".join(dict.fromkeys(text for text in own if text))
        reason = reason or self.reason or self.permission_reason
        if not reason and decision is Decision.DENY:
            reason = default_reason(self.denier)
        return HookOutput(decision=decision, reason=cut(reason, TEXT_MAX), **said)

    def _decision(self, key: str, item: object) -> Decision:
        word = item.lower() if isinstance(item, str) else ""
        if word not in _DECISIONS:
            hint = did_you_mean(word[:80], _DECISIONS)
            raise self._wrong(key, item, hint)
        return _DECISIONS[word]

    def _decide(self, decision: Decision, key: str, permission: bool) -> None:
        if self._may(decision, key):
            self.decisions.append((decision, None if permission else ""))

    def _decide_shortly(self, decision: Decision, key: str, item: object) -> None:
        """``{"deny": "why"}`` or ``{"deny": True}``. An empty reason denies, too."""
        if item is False:
            return
        if item is not True and not isinstance(item, str):
            raise self._wrong(key, item, "it is the reason, or True")
        if self._may(decision, key):
            reason = "" if item is True else self._text(key, item).strip()
            self.decisions.append((decision, reason))

    def _may(self, decision: Decision, key: str) -> bool:
        """Whether the decision means something here. Raises HandlerError where that is unsafe."""
        if self.event in DENIABLE and decision is not Decision.ASK:
            return True
        if self.event is HookEventName.BEFORE_TOOL:
            return True
        if decision is Decision.ALLOW and not self.strict:
            return False  # several engines' hooks say so of everything
        if decision is Decision.ASK:
            problem, hint = (
                f"nobody is asked about {self.event.registration}",
                "only on_before_tool asks",
            )
        else:
            what = "allowed" if decision is decision.ALLOW else "denied"
            problem = f"{self.event.registration} cannot be {what}"
            names = sorted(event.registration for event in DENIABLE)
            hint = "it is possible for " + ", ".join(names)
        raise HandlerError(f'{self.name} returned "{key}", but {problem}', hint=hint)

    def _rewrite(self, meaning: str, key: str, item: object) -> None:
        target = _TARGETS.get((meaning, self.event))
        if target is None:
            if self.strict:
                raise HandlerError(
                    f'{self.name} returned "{key}", which means nothing for'
                    f" {self.event.registration}",
                    hint=f"it is for {_events_with(meaning)}",
                )
        elif target == "tools":
            self.said["tools"] = self._tools(key, item)
        else:
            found = self._plain(key, item)
            if self.event is not HookEventName.AFTER_TOOL and not isinstance(found, dict):
                raise self._wrong(key, item, "it is a mapping with the keys to replace")
            self.said[target] = found

    def _tools(self, key: str, item: object) -> ToolSelection:
        if not isinstance(item, Mapping):
            raise self._wrong(key, item, _TOOLS_HINT)
        mode, names = ToolMode.AUTO, None
        for inner, value in item.items():
            word = _key(inner)
            if word == "mode":
                mode = ToolMode.AUTO if value is None else self._mode(f"{key}.mode", value)
            elif word in ("names", "allowed", "allowedfunctionnames"):
                names = None if value is None else self._names(f"{key}.{str(inner)[:80]}", value)
            elif self.strict:
                raise unknown_key(inner, self.name, ("mode", "names"), _TOOLS_HINT)
        return ToolSelection(mode, names)

    def _mode(self, key: str, value: object) -> ToolMode:
        try:
            return ToolMode(value.upper() if isinstance(value, str) else "")
        except ValueError:
            raise self._wrong(key, value, "it is AUTO, ANY or NONE") from None

    def _names(self, key: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise self._wrong(key, value, "it is a list of the tools' names")
        return tuple(dict.fromkeys(encodable(one) for one in value))

    def _plain(self, key: str, item: object) -> Any:
        try:
            return plain(item)
        except NotPlain as error:
            raise self._wrong(key, item, f"{error}: give only what JSON can say") from None

    def _text(self, key: str, item: object, limit: int = TEXT_MAX) -> str:
        if not isinstance(item, str):
            raise self._wrong(key, item, "it is a text")
        return clipped(item, limit)

    def _wrong(self, key: object, item: object, hint: str) -> HandlerError:
        return wrong_value(str(key)[:200], item, self.name, hint)

    def _not_known(self, key: object) -> None:
        if self.strict:
            raise unknown_key(key, self.name, _KEYS, ALLOWED)
        self.unknown += 1
        if self.unknown > _COMPARED_MAX or not isinstance(key, str) or len(key) > 80:
            return
        typed = _key(key)
        alike = (one for one in _SPELLINGS if abs(len(one) - len(typed)) < 3)
        if any(slips(typed, one) <= len(one) // 5 for one in alike):
            # A guard whose "decison" is passed over in silence guards nothing.
            raise HandlerError(
                f"{self.name} returned a dictionary with the unknown key {key!r}",
                hint=did_you_mean(key, (*_KEYS, *_FOREIGN)),
            )


_TOOLS_HINT = 'it is {"mode": "AUTO", "ANY" or "NONE", "names": […]}'
#: What a rewrite of one kind is for one event: the field of HookOutput.
_TARGETS = {
    ("input", HookEventName.BEFORE_TOOL): "input",
    ("response", HookEventName.AFTER_TOOL): "response",
    ("request", HookEventName.BEFORE_MODEL): "request",
    # An answer in the model's place: it is not asked at all.
    ("response", HookEventName.BEFORE_MODEL): "response",
    ("response", HookEventName.AFTER_MODEL): "request",
    ("tools", HookEventName.BEFORE_TOOL_SELECTION): "tools",
}


def _events_with(meaning: str) -> str:
    return ", ".join(event.registration for kind, event in _TARGETS if kind == meaning)


def _key(key: object) -> str:
    return key.lower().replace("_", "").replace("-", "") if isinstance(key, str) else ""


#: What a key that was reduced by _key means.
_SPELLINGS = {_key(key): key for key in _KEYS} | {_key(key): own for key, own in _FOREIGN.items()}


def _meaning(key: object) -> str:
    """The one word for ``key``; "" for an unknown one."""
    return _SPELLINGS.get(_key(key), "")


def clipped(text: str, limit: int = TEXT_MAX) -> str:
    """``text`` for people: nothing in it that a terminal obeys, at most about ``limit`` long."""
    text = cut(text, limit)
    return cut(clean(text), limit)


def cut(text: str, limit: int) -> str:
    """``text``, or its beginning and end with what is missing between them counted."""
    if len(text) <= limit:
        return text
    mark = f"\n… ({len(text) - limit} characters left out) …\n"
    room = max(limit - len(mark), 2)
    return text[: room // 2] + mark + text[-(room // 2) :]


def default_reason(name: str) -> str:
    """Why something was denied, when the hook ``name`` did not say."""
    return f"denied by the hook {clipped(name, 200)}, which gave no reason"


def no_result(value: object, handler: str, allowed: str) -> HandlerError:
    """The error for a ``value`` of a type that means nothing; ``allowed`` says what would."""
    return HandlerError(f"{handler} returned {shown(value)}", hint=f"a handler returns {allowed}")


def unknown_key(key: object, handler: str, known: Iterable[str], allowed: str) -> HandlerError:
    """The error for a mapping's ``key`` that is not among ``known``, with the nearest of them."""
    nearest = did_you_mean(key[:80] if isinstance(key, str) else "", known)
    return HandlerError(
        f"{handler} returned a dictionary with the unknown key {shown(key)}",
        hint=f"{nearest}; a handler returns {allowed}",
    )


def wrong_value(key: str, value: object, handler: str, expected: str) -> HandlerError:
    """The error for a ``value`` that ``key`` cannot have; ``expected`` says what it can."""
    return HandlerError(f'{handler} returned "{key}": {shown(value)}', hint=expected)


def flag(value: object, key: str, handler: str) -> bool:
    """``value`` as True or False (None is False). Raises HandlerError for anything else."""
    if not isinstance(value, bool | None):
        raise wrong_value(key, value, handler, "it is True or False")
    return bool(value)


def texts(value: object, handler: str) -> tuple[str, ...]:
    """``value`` as texts to inject, none blank. Raises HandlerError."""
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise wrong_value("inject", value, handler, "it is a text or a list of texts")
    found = tuple(item for item in items if item.strip())  # a blank one is nothing to say
    if sum(len(text.encode("utf-8", "surrogatepass")) for text in found) > BODY_MAX:
        raise HandlerError(
            f"{handler} returned more than {BODY_MAX} bytes to inject",
            hint="write it to a file and inject the file's name",
        )
    return found
