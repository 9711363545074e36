"""Shells at their prompt: what is typed there is run, so a message must never become a command."""

from __future__ import annotations

import os

SHELLS = frozenset({"bash", "zsh", "sh", "dash", "fish", "ksh", "mksh", "ash"})
#: Options after which a word follows that is the option's value.
_WITH_VALUE = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file", "-C", "--init-command"})


def is_interactive_shell(argv: list[str]) -> bool:
    """Whether ``argv`` starts a shell that reads commands from the person.

    ``bash`` and ``zsh -il`` do; ``bash script.sh`` and ``sh -c 'make'`` do not.
    """
    if not argv or os.path.basename(argv[0]).lstrip("-") not in SHELLS:
        return False
    words = iter(argv[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word == "-s" or word == "-i":
            return True
        elif word in ("--", "-"):
            return next(words, None) is None
        elif word.startswith("--"):
            if word.split("=")[0] in ("--command", "--version", "--help"):
                return False
        elif word.startswith(("-", "+")):
            if "c" in word:
                return False
        else:
            return False
    return True
