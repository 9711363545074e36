"""The command that an agent's hooks run to tell relay's session what happened.

It costs no Python start-up: bash speaks HTTP to the loopback port whose listening socket the pump
owns, so that a report is kept by the kernel while the session restarts. It needs bash, and where
that is missing the report is left out. The token comes from the environment, because everybody on
the machine can read a command line.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD = r"""command -v bash >/dev/null 2>&1 || exit 0
exec bash -c 'LC_ALL=C
event=$(cat)
exec 3<>"/dev/tcp/127.0.0.1/$RELAY_PORT" || exit 0
printf "POST /hook HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n" "$RELAY_TOKEN" >&3
"""
_TAIL = r"""printf "Content-Type: application/json\r\nConnection: close\r\n" >&3
printf "Content-Length: %d\r\n\r\n%s" "${#event}" "$event" >&3
exit 0' 2>/dev/null"""


def reporter(headers: Mapping[str, str] | None = None) -> str:
    """A command line for ``sh`` that posts its standard input (one JSON object) to the session.

    ``headers``: more HTTP headers; a value is a variable of the environment, as ``$NAME``.
    """
    more = "".join(
        f'printf "{name}: %s\\r\\n" "{value}" >&3\n' for name, value in (headers or {}).items()
    )
    return _HEAD + more + _TAIL
