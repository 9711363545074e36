"""Makes records of hooks that ran: plain dicts for logs, the ledger and other processes.

A ``HookLog`` decides where a record goes. Durations are in seconds.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from relay.hooks.events import HookEventName
from relay.hooks.hook_types import NOTHING_SAID, Aggregated, Failure, HookOutput, HookRun

#: The kinds of record: one of each hook, another of each that failed, one of each event's hooks
#: together, and one of what went wrong in the engine itself.
RESULT = "hook:result"
FAILURE = "hook:failure"
BATCH_SUMMARY = "hook:batch_summary"
#: What stands as the kind of a summary in the ledger, where a hook's says what it is.
BATCH = "batch"
ENGINE_FAILURE = "hook:engine_failure"

_TEXT_MAX = 4000

Record = dict[str, Any]


class HookLog(Protocol):
    """Takes records of any of the kinds above."""

    def soon(self, records: Iterator[tuple[str, Record]]) -> None:
        """Log kinds and records, in order, once the hooks' answer has been given.

        It is called in the engine's loop, so it must not wait: ``records`` makes each when it is
        asked for it. What it raises is dropped.
        """


def write(
    log: HookLog | None,
    event: HookEventName,
    results: Sequence[HookRun],
    correlation_id: str,
) -> None:
    """Log the records of one event's hooks, if there is a log, soon. Never raises."""
    if log is not None:
        with contextlib.suppress(Exception):
            log.soon(_records(event, tuple(results), correlation_id))


def write_engine_failure(log: HookLog | None, failure: Failure) -> None:
    """Log that the engine failed, if there is a log, soon. Never raises."""
    if log is not None:
        with contextlib.suppress(Exception):
            log.soon(iter([(ENGINE_FAILURE, asdict(failure))]))


def _records(
    event: HookEventName, results: Sequence[HookRun], correlation_id: str
) -> Iterator[tuple[str, Record]]:
    """Each hook's own, in the order of ``results``, then the summary."""
    for result in results:
        yield RESULT, result_record(result, correlation_id)
        if not result.success:
            yield FAILURE, failure_record(result, correlation_id)
    yield BATCH_SUMMARY, batch_summary(event, results, correlation_id)


def result_record(result: HookRun, correlation_id: str) -> Record:
    """One hook's run: {event, hook, kind, source, duration, success, exit_status, stdout, stderr,
    error, correlation_id, decision, said}; ``decision`` is "" for a hook that made none, ``said``
    whether it said anything at all."""
    decision = result.output.decision if result.output is not None else None
    return {
        "event": result.hook.event.value,
        "hook": result.hook.name,
        "kind": result.hook.kind,
        "source": result.hook.source,
        "duration": result.duration,
        "success": result.success,
        "exit_status": result.exit_status,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "error": "" if result.success else result.error,
        "correlation_id": correlation_id,
        "decision": decision.value if decision is not None else "",
        "said": result.output not in (None, NOTHING_SAID),
    }


def failure_record(result: HookRun, correlation_id: str) -> Record:
    """What ``result_record`` says, and {on_failure, trace}: what the failure meant, and where in
    the user's code it was."""
    return {
        **result_record(result, correlation_id),
        "on_failure": result.hook.on_failure.value,
        "trace": result.trace,
    }


def batch_summary(event: HookEventName, results: Sequence[HookRun], correlation_id: str) -> Record:
    """{event, total, succeeded, failed, duration, correlation_id}; ``succeeded`` and ``failed``
    add up to ``total``, ``duration`` is the sum of all."""
    succeeded = sum(1 for result in results if result.success)
    return {
        "event": event.value,
        "total": len(results),
        "succeeded": succeeded,
        "failed": len(results) - succeeded,
        "duration": sum(result.duration for result in results),
        "correlation_id": correlation_id,
    }


def aggregated_record(aggregated: Aggregated, correlation_id: str = "") -> Record:
    """All of ``aggregated`` for another process. What hooks gave (``input``, ``response``,
    ``request``) is as they gave it."""
    tools = aggregated.tools
    return {
        "success": aggregated.success,
        "results": [result_record(result, correlation_id) for result in aggregated.results],
        "outputs": [{**_said(output), "last": output.last} for output in aggregated.outputs],
        "errors": [asdict(failure) for failure in aggregated.errors],
        **_said(aggregated),
        "tools": None
        if tools is None
        else {
            "mode": tools.mode.value,
            "names": None if tools.names is None else list(tools.names),
        },
        "conflicts": list(aggregated.conflicts),
        "duration": aggregated.duration,
    }


def error_text(error: BaseException) -> str:
    """One line for people of at most 4000 characters, whatever the error's ``__str__`` does."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return text[:_TEXT_MAX] or type(error).__name__


def error_details(error: BaseException) -> str:
    """The kind of the error and where it was raised, in at most 4000 characters."""
    frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    return f"{type(error).__name__}\n{frames[-_TEXT_MAX:]}".strip()


def _said(said: Aggregated | HookOutput) -> Record:
    """What one hook and all of them together have the same fields for."""
    return {
        "decision": said.decision.value if said.decision is not None else "",
        "reason": said.reason,
        "stop": said.stop,
        "stop_reason": said.stop_reason,
        "system_message": said.system_message,
        "suppress_output": said.suppress_output,
        "context": said.context,
        "input": None if said.input is None else dict(said.input),
        "response": said.response,
        "request": None if said.request is None else dict(said.request),
        "inject": list(said.inject),
    }
