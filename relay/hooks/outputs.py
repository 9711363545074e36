"""Reads a hook's answer: a program's exit status and output, or a function's value. Pure.

An answer that cannot be understood is a failure of the hook, never a guess; what a failure means
is what the hook's definition says (``OnFailure``).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from relay.core.plain import NotPlain, encodable, plain
from relay.hooks.events import DENIABLE, HookEventName
from relay.hooks.hook_types import (
    NOTHING_SAID,
    Decision,
    Dialect,
    HookDefinition,
    HookOutput,
    OnFailure,
)
from relay.hooks.output_keys import (
    ALLOWED,
    CONTEXT_MAX,
    HandlerError,
    clipped,
    decides,
    default_reason,
    flag,
    no_result,
    read_mapping,
    texts,
    unknown_key,
)

#: The longest ``error``, in characters.
ERROR_MAX = 1000
#: A name in front of an error is for others to put there.
_IT = "it"
_DENY_STATUS = 2
_RESULT_ALLOWED = 'None, a string, or {"inject": text or a list of texts, "stop": True}'
_RESULT_KEYS = ("inject", "stop")
_OUTPUT_ALLOWED = "one JSON object, or plain text"
#: Where a program written for Claude Code gives context to the model by just printing it.
_PRINTED_CONTEXT = (HookEventName.SESSION_START, HookEventName.BEFORE_AGENT)


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


@dataclass(frozen=True, slots=True)
class Result:
    """What a pattern's handler gave back."""

    #: Texts for the agent, in order, none empty.
    inject: tuple[str, ...] = ()
    #: No further handlers run.
    stop: bool = False


NO_RESULT = Result()


def read_pattern_value(value: object, handler: str) -> Result:
    """The Result for what ``handler`` (a name for people) returned. Raises HandlerError."""
    if value is None:
        return NO_RESULT
    if isinstance(value, str):
        return Result(inject=texts(value, handler))
    if isinstance(value, Mapping):
        return _from_mapping(value, handler)
    raise no_result(value, handler, _RESULT_ALLOWED)


def _from_mapping(value: Mapping[object, object], handler: str) -> Result:
    inject: tuple[str, ...] = ()
    stop = False
    for key, item in value.items():
        # "Inject" and "STOP" are accepted, like every spelling of the design document.
        word = key.lower() if isinstance(key, str) else ""
        if word == "inject":
            inject = texts(item, handler)
        elif word == "stop":
            stop = flag(item, "stop", handler)
        else:
            raise unknown_key(key, handler, _RESULT_KEYS, _RESULT_ALLOWED)
    return Result(inject, stop)


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
    raise ValueError(f"{word} is no JSON")


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
