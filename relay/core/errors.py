"""The errors that relay shows to people: what happened, why, and what to do next.

Exit statuses: 0 done, 1 failed, 2 usage, 3 not found, 4 not delivered, 5 timeout.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_NOT_DELIVERED = 4
EXIT_TIMEOUT = 5


class RelayError(Exception):
    """A failure with a message for a person.

    ``code`` is a stable word for programs (``--json`` prints it), ``hint`` says what to do next,
    ``details`` holds whatever else a caller may show.
    """

    code = "failed"
    exit_status = EXIT_FAILED

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details or {}
        if code is not None:
            self.code = code

    @property
    def line(self) -> str:
        """One line for a person: what happened, and the hint in parentheses if there is one."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(RelayError):
    """The request itself is wrong: an argument, a name, a configuration value."""

    code = "usage"
    exit_status = EXIT_USAGE


class NotFound(RelayError):
    """Something that was named does not exist."""

    code = "not_found"
    exit_status = EXIT_NOT_FOUND


class NameTaken(RelayError):
    """Another running agent has this name."""

    code = "name_taken"


class NotDelivered(RelayError):
    """A message ended as failed, or could not be accepted at all."""

    code = "not_delivered"
    exit_status = EXIT_NOT_DELIVERED


class Timeout(RelayError):
    """A wait ran out."""

    code = "timeout"
    exit_status = EXIT_TIMEOUT


class StorageError(RelayError):
    """The ledger cannot store or read: nothing was acknowledged, the file is untouched."""

    code = "storage"


class DamagedFile(StorageError):
    """What is in the file cannot be read any more."""


class FileLost(StorageError):
    """The file was removed or replaced while it was open."""


class BrokerUnavailable(RelayError):
    """The broker cannot be reached or started."""

    code = "broker_unavailable"


class ConfigError(RelayError):
    """The configuration cannot be used."""

    code = "config"
    exit_status = EXIT_USAGE


#: code -> class, for errors that cross the broker's socket.
BY_CODE: dict[str, type[RelayError]] = {
    cls.code: cls
    for cls in (
        RelayError,
        UsageError,
        NotFound,
        NameTaken,
        NotDelivered,
        Timeout,
        StorageError,
        BrokerUnavailable,
        ConfigError,
    )
}


def only_the_person(what: str, agent: str = "", hint: str = "") -> RelayError:
    """The error for an agent that wants what only the person may do."""
    who = f"the agent {agent}" if agent else "an agent"
    return RelayError(
        f"only the person may {what}, not {who}",
        # A person can be meant too: a terminal that an agent has opened looks like any other.
        hint=hint or "whatever was started inside an agent counts as that agent, a tmux server too",
        code="forbidden",
    )


def error_fields(error: RelayError) -> dict[str, object]:
    """What ``error`` looks like on the wire and in ``--json``."""
    fields: dict[str, object] = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "status": error.exit_status,
    }
    if error.details:
        fields["details"] = error.details
    return fields


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The best of ``known`` for ``word``, or None when nothing is near. Ignores case.

    Near is what begins with the word or is its beginning, and what differs from it by slips in at
    most a third of the letters.
    """
    typed = word.lower().lstrip("-")[:_LONGEST]
    best, least = None, _LONGEST + 1
    for name in known:
        meant = name.lower().lstrip("-")
        shorter, longer = sorted((len(typed), len(meant)))
        begins = meant.startswith(typed) or typed.startswith(meant)
        apart = slips(typed, meant) if longer - shorter <= longer // 3 else _LONGEST
        if apart > longer // 3:
            if not begins or shorter < 3:
                continue
            apart = longer  # what slips explain is nearer
        if apart < least:
            best, least = name, apart
    return best


#: Letters of a word that are compared: no name is longer, and what agents say may be.
_LONGEST = 100
#: Letters from the first slip to the last: the broker has no time for more, with many names.
_BETWEEN = 24


def slips(word: str, other: str) -> int:
    """How many slips of a finger make ``other`` of ``word``: a letter left out, typed in addition
    or typed wrongly, or two that have changed places."""
    while word and other and word[0] == other[0]:
        word, other = word[1:], other[1:]
    while word and other and word[-1] == other[-1]:
        word, other = word[:-1], other[:-1]
    if (longer := max(len(word), len(other))) > _BETWEEN:
        return longer
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        two_before, before, row = before, row, [i]
        for j, there in enumerate(other, 1):
            least = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != there))
            if i > 1 and j > 1 and (letter, word[i - 2]) == (other[j - 2], there):
                least = min(least, two_before[j - 2] + 1)
            row.append(least)
    return row[-1]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for people: the nearest known word, else all of them (at most 20)."""
    names = sorted(known)
    best = nearest(word, names)
    if best is not None:
        return f"did you mean {best!r}?"
    if not names:
        return ""
    return "known: " + ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
