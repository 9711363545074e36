"""Words that Gemini CLI would not leave as they are. Looks at file names, reads nothing."""

from __future__ import annotations

import os
import re

#: Where Gemini CLI sees a file, a folder or one of its agents named: unless a backslash stands
#: before it, what is found there is added to the prompt.
_REFERENCE = re.compile(
    r"(?<!\\)@((?:\"[^\"]*\"|\\.|[^ \t\n\r,;!?()\[\]{}.\\]|\.(?!$|[ \t\n\r]))+)", re.MULTILINE
)
_AGENTS = frozenset(("codebase_investigator", "cli_help", "generalist", "browser_agent"))


def spelled(text: str, cwd: str) -> str:
    """``text`` with a backslash before each ``@`` that names what there is in ``cwd``.

    Else a peer's words could have the agent read files, and would look otherwise than they were
    written.
    """

    def escaped(found: re.Match[str]) -> str:
        return f"\\{found[0]}" if _exists(found[1], cwd) else found[0]

    return _REFERENCE.sub(escaped, text)


def _exists(name: str, cwd: str) -> bool:
    plain = re.sub(r"\\(.)", r"\1", name.replace('"', ""))
    try:
        return plain in _AGENTS or os.path.exists(os.path.join(cwd, plain))
    except ValueError:  # a null byte
        return False
