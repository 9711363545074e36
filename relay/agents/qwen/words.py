"""Words that Qwen Code would not leave as they are. Looks at file names, reads no files.

Once an ``@`` stands behind white space anywhere in a message, Qwen Code takes every ``@word`` in it
for the name of a file, a server or a session: it adds what it finds under that name, and spaces of
its own. A backslash before the ``@`` is its way to say that nothing is meant.
"""

from __future__ import annotations

import os
import re

_BEHIND_SPACE = re.compile(r"(?<=\s)@")
#: What Qwen Code leaves exactly as it is, as long as nothing has that name.
_HARMLESS = re.compile(r"(?<= )@([\w-]+)(?=[,;!?()\[\]{}\s]|$)")
#: Between two of them white space would be lost.
_CLOSE = re.compile(r"@[\w-]+(?! @)\s+@")
#: An envelope's last words, in which a space more does no harm.
_ANSWER = re.compile(r'a line "@relay:[^"\n]*"')


def spelled(text: str, cwd: str, home: str) -> str:
    """``text`` so that Qwen Code, at work in ``cwd``, finds nothing to add in it.

    ``home`` is where it keeps the person's settings.
    """
    if not _BEHIND_SPACE.search(text):
        return text
    body = _ANSWER.sub("", text)
    names = {found[1] for found in _HARMLESS.finditer(body)}
    harmless = len(_HARMLESS.findall(body)) == body.count("@") and not _CLOSE.search(body)
    if harmless and not _known(names, cwd) and not _server_relay(cwd, home):
        return text
    return _BEHIND_SPACE.sub(r"\\@", text)


def _known(names: set[str], cwd: str) -> bool:
    return any(os.path.lexists(os.path.join(cwd, name)) for name in names)


def _server_relay(cwd: str, home: str) -> bool:
    """Whether a server may have the name that an envelope's last words begin with."""
    places = (cwd, ".mcp.json"), (cwd, ".qwen", "settings.json"), (home, "settings.json")
    for place in places:
        try:
            with open(os.path.join(*place), encoding="utf-8", errors="replace") as file:
                if '"relay"' in file.read():
                    return True
        except OSError:
            continue
    return False
