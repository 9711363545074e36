"""Our hooks for one run of an agent: their shell commands, and their place among its own settings.

The commands cost no Python start-up: bash speaks HTTP to the loopback port whose listening socket
the pump owns, so that a request is kept by the kernel while the session restarts. The token comes
from the environment, because everybody on the machine can read a command line. Where bash is
missing, reports are left out, and what would be asked is refused.

Some agents put their environment's values into their settings, which would change a script, and
take variables that look like secrets out of a hook's environment. For these the script stands in a
file in the run's folder, which nobody else can read, with the port and the token.

Which hooks an agent has, and where it takes them from, stands in its launch module.
"""

from __future__ import annotations

import json
import os
import sys

from relay.agents.installed import read_settings, which
from relay.agents.launch import GATE_TIMEOUT, private_file

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from relay.agents.launch import Primer, Run

    #: Groups of hooks by event, in the form that Claude Code has made common.
    Groups = dict[str, list[dict[str, Any]]]


def command_hook(command: str, timeout: float, **more: Any) -> dict[str, Any]:
    """A hook that runs a command of the shell's."""
    return {"type": "command", **more, "command": command, "timeout": timeout}


def primer_hook(primer: Primer, timeout: float) -> dict[str, Any]:
    """A hook that gives the model the primer when a session starts, resumes or was compacted."""
    text = primer.text()
    output = {"hookEventName": "SessionStart", "additionalContext": text}
    quoted = json.dumps({"hookSpecificOutput": output}).replace("'", "'\\''")
    return command_hook(f"printf '%s' '{quoted}'", timeout)


def merged(theirs: object, ours: Groups) -> dict[str, Any]:
    """Their hooks with ours after them. Raises ValueError where theirs cannot be extended."""
    whole = theirs or {}  # empty ones have any form
    if not isinstance(whole, dict):
        raise ValueError("their hooks are not an object")
    added: dict[str, Any] = {}
    for event, groups in ours.items():
        before = whole.get(event) or []
        if not isinstance(before, list):
            raise ValueError(f"their {event} hooks are not a list")
        added[event] = [*before, *groups]
    return {**whole, **added}


def turned_off(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Which of these settings, with their names, turns all hooks off (``disableAllHooks``).

    The first that says anything decides; "" where hooks are on. They are only read: turned on
    again, the person's own would come back with ours.
    """
    for name, settings in layers:
        if "disableAllHooks" in settings:
            return name if settings["disableAllHooks"] is True else ""
    return ""


class SystemSettings:
    """Where Gemini CLI, and Qwen Code after it, read settings of the whole machine.

    Their ``defaults`` may be a file of one run: what the machine has there goes into it.
    """

    def __init__(self, prefix: str, folder: str, mac_folder: str) -> None:
        #: The variables that name other files.
        self.defaults_variable = f"{prefix}_SYSTEM_DEFAULTS_PATH"
        self._system_variable = f"{prefix}_SYSTEM_SETTINGS_PATH"
        self._folder = f"/Library/Application Support/{mac_folder}"
        if sys.platform != "darwin":
            self._folder = f"/etc/{folder}"

    def system(self, env: Mapping[str, str]) -> str:
        """The file that overrules all others."""
        return env.get(self._system_variable) or os.path.join(self._folder, "settings.json")

    def defaults(self, env: Mapping[str, str]) -> str:
        """The file that all others overrule."""
        beside = os.path.join(os.path.dirname(self.system(env)), "system-defaults.json")
        return env.get(self.defaults_variable) or beside

    def unreadable(self, env: Mapping[str, str]) -> str:
        """Say that the defaults are damaged, and cannot be extended; "" where they are not."""
        path = self.defaults(env)
        return f"the settings in {path} cannot be read" if read_settings(path) is None else ""

    def put_in(self, run: Run, theirs: dict[str, Any], ours: Groups) -> dict[str, str]:
        """Write defaults with our hooks; return what names them in the environment.

        Raises OSError, or ValueError where theirs cannot be extended.
        """
        settings = {**theirs, "hooks": merged(theirs.get("hooks"), ours)}
        return {self.defaults_variable: private_file(run, "settings.json", json.dumps(settings))}


#: Seconds within which an answer that has begun must be there.
ANSWER_TIMEOUT = 5
#: Bytes that the head of any answer has which says how long it is: bash reads them at once. For the
#: rest of it, it makes two system calls and more for each byte.
CERTAIN = 30

# Its own locale would cost it a third of its start, and what a person has in BASH_ENV or in a
# function of the environment must not speak here.
_BASH = """export LC_ALL=C
exec bash -p -c 'LC_ALL=C
"""

# Without a process of its own, as most events are short; bash alone is slow with a long one.
_EVENT = """read -r -N 65536 event
[ "${#event}" -lt 65536 ] || event=$event$(cat)
"""
# In one piece: each would wake the session, which then has to put them together. With printf bash
# writes line by line; with echo the C library of most systems does not, once it has written
# anything, and if the text ends with a line. (shopt: a bash can have been built to read more into
# the text of an echo.)
_REQUEST = (
    r"""printf -v said "POST /hook HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n""",
    r"""Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s\n" "$RELAY_TOKEN" """,
    """"$((${#event} + 1))" "$event"
shopt -u xpg_echo
echo >&2
echo -n "$said" >&3
""",
)
_REPORT = (
    r"""command -v bash >/dev/null 2>&1 || exit 0
"""
    + _BASH
    + _EVENT,
    r"""exec 3<>"/dev/tcp/127.0.0.1/$RELAY_PORT" || exit 0
""",
    """exit 0' 2>/dev/null""",
)
# Around what nobody waits for. It begins after the event has been read: the agent
# takes its end for the end of its reading, and the rest of a long event would be lost.
_ASIDE = "{\n", "} </dev/null >/dev/null 2>&1 &\n"
# $1: seconds to wait, $2: the status without an answer, $3: what to say then. An answer that is cut
# off would be none to the agent, and it would go on: so its length counts.
_ASK = (
    _BASH
    + r"""exec 4>&2 2>/dev/null
none() { [ -z "$3" ] || echo "$3: $4" >&4; exit "$2"; }
"""
    + _EVENT
    + r"""trap "" PIPE
exec 3<>"/dev/tcp/127.0.0.1/$RELAY_PORT" || none "$@" "it cannot be reached"
""",
    r"""printf -v end "\r\n\r"
read -r -u 3 -t "$1" -N 1 head || none "$@" "it did not answer"
read -r -u 3 -t SOON -N REST line
head=$head$line
while read -r -u 3 -t SOON line; do
  head=$head$line
  [ "${head: -3}" != "$end" ] || break
  head=$head${end:1:1}
done
status=${head:9:3}
[ "$status" = 200 ] || none "$@" "it answered with the status $status"
length=${head##*[Cc]ontent-[Ll]ength: }
length=${length%%"${end:2}"*}
read -r -u 3 -t SOON -N "$length" answer
[ "${#answer}" = "$length" ] && [ "$length" -gt 1 ] || none "$@" "its answer was cut off"
[ "$answer" = "{}" ] || printf %s "$answer"
exit 0' """.replace("SOON", str(ANSWER_TIMEOUT)).replace("REST", str(CERTAIN - 1)),
)


def reporter(headers: Mapping[str, str] | None = None, *, aside: bool = False) -> str:
    """A command line for ``sh`` that posts its standard input (one JSON object) to the session.

    ``headers``: more HTTP headers; a value is a variable of the environment, as ``$NAME``.
    ``aside``: it ends when it has read the event, and does not wait for the session.
    """
    read, connect, end = _REPORT
    opened, closed = _ASIDE if aside else ("", "")
    return f"{read}{opened}{connect}{_request(headers or {})}{closed}{end}"


def asker(timeout: int, why: str = "") -> str:
    """A command line for ``sh`` that posts its standard input and prints the session's answer.

    ``{}`` is printed as nothing. The answer is waited for ``timeout`` seconds. Where there is none,
    it ends with status 2, which refuses what is asked about, and says ``why`` and what was wrong on
    its standard error; without ``why`` it ends with status 0. ``why`` has no quotes in it.
    """
    status = 2 if why else 0
    missing = f"""echo "{why}: bash is missing" >&2; exit 2""" if why else "exit 0"
    head, tail = _ASK
    return (
        f"command -v bash >/dev/null 2>&1 || exec sh -c '{missing}'\n"
        f'{head}{_request({})}{tail}relay {timeout} {status} "{why}"'
    )


def _request(headers: Mapping[str, str]) -> str:
    begin, middle, end = _REQUEST
    names = "".join(rf"{name}: %s\r\n" for name in headers)
    values = "".join(f'"{value}" ' for value in headers.values())
    # The values follow the token's; the format has them in the same order.
    return begin + names + middle + values + end


# -- scripts in files -----------------------------------------------------------------------------

FILE, TELL_FILE, TELLER = "ask.sh", "tell.sh", "teller"
#: Seconds that may pass until the session is told.
TOLD_TIMEOUT = 5
#: Seconds that an answer may take: less than the agent waits for the script.
PATIENCE = GATE_TIMEOUT - 5
#: The same where nothing is asked, and messages may come with the answer; and the seconds after
#: which the agent goes on without one.
STEERED, STEERED_TIMEOUT = 2, 3


# $1: the process whose hook it is. What the agent's own tools start has its settings too, through
# the environment, but its turns are none of the agent's. The first that tells anything is the agent
# itself; it may start anew, as another process.
_ONLY_ONE = """read -r teller <TELLER
if [ "$teller" != "$1" ]; then
  [ -z "$teller" ] || ! kill -0 "$teller" || exit 0
  echo "$1" >TELLER
fi
"""


def why_not(run: Run, env: dict[str, str]) -> str:
    """Say why no script could ask; "" where one can."""
    if run.endpoint.port is None:
        return "no loopback port could be bound for hooks"
    if which("bash", env) is None:
        return "its hooks need bash, which is missing"
    return ""


def write(run: Run, *, patient: bool = True) -> str:
    """Write the script that asks, and return its path; ``patient``: it waits for hooks.

    Raises OSError.
    """
    ask = asker(PATIENCE if patient else STEERED, "relay could not be asked")
    return _write(run, FILE, ask)


def write_teller(run: Run, *, aside: bool = False) -> str:
    """Write the script that tells, and return its path; ``aside``: nobody waits for the session.

    Raises OSError.
    """
    only_one = _ONLY_ONE.replace("TELLER", quoted(os.path.join(run.folders.run, TELLER)))
    return _write(run, TELL_FILE, only_one + reporter(aside=aside))


def _write(run: Run, name: str, script: str) -> str:
    where = f"RELAY_PORT={run.endpoint.port} RELAY_TOKEN={quoted(run.endpoint.token)}"
    return private_file(run, name, f"{where}\nexport RELAY_PORT RELAY_TOKEN\n{script}\n")


def command(path: str, refusal: str = "") -> str:
    """The command line for a hook that runs the script.

    ``refusal`` is for a gate: what it prints when there is no answer, whatever the reason, in the
    agent's own words. It holds no ``$``.
    """
    otherwise = f"printf '%s' {quoted(refusal)}" if refusal else ":"
    return f"sh {quoted(path)} 2>/dev/null || {otherwise}"


def giver(file: str) -> str:
    """The command line for a hook that prints ``file`` once, if it is there, and waits for nobody
    (see relay.agents.context_door)."""
    told = quoted(f"{file}.told")
    return f"mv {quoted(file)} {told} 2>/dev/null && cat {told} || :"


def telling(path: str) -> str:
    """The command line for a hook that runs the script that tells."""
    return f"sh {quoted(path)} $PPID 2>/dev/null || :"


def quoted(text: str) -> str:
    """``text`` as one word of a shell's."""
    return "'" + text.replace("'", "'\\''") + "'"
