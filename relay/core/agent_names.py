"""Names of agents and persons: which ones there can be. ``relay wrap`` reads this first."""

from __future__ import annotations

import os

#: Names that agents cannot take: relay speaks under its own, "*" is everyone, and the last three
#: are what agents say to join a channel (``@relay:join #build``).
RESERVED_NAMES = frozenset(
    {"relay", "all", "everyone", "memory", "broadcast", "join", "leave", "presence"}
)
#: Words with which agents mean the person whose processes these are.
PERSON_WORDS = frozenset({"me", "user", "human"})
#: Characters of the longest name.
NAME_MAX = 64
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
#: What may stand between the first character and the last.
NAME_CHARACTERS = _LETTERS | frozenset("_.-")
_LAST = _LETTERS | frozenset("_-")


def valid_name(name: str) -> bool:
    """Whether ``name`` can be an agent's: letters, digits, ``_ . -``, at most 64, not reserved."""
    return (
        0 < len(name) <= NAME_MAX
        and name[0] in _LETTERS
        and name[-1] in (_LAST if len(name) > 1 else _LETTERS)
        and all(c in NAME_CHARACTERS for c in name)
        and name.lower() not in RESERVED_NAMES
    )


def channel_of(word: str) -> str | None:
    """The channel that ``word`` names: ``#build`` for ``build``, ``#Build`` and ``#build``.

    None where it cannot be one. Without its sign it is a name like those of agents.
    """
    name = word.removeprefix("#").lower()
    return f"#{name}" if valid_name(name) else None


def owner_name() -> str:
    """What agents call the person whose processes these are; no agent can have that name.

    From the system's list of users, not from the environment.
    """
    import pwd

    try:
        return person_name(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return person_name(f"uid{os.getuid()}")


def owner_words() -> frozenset[str]:
    """What agents may write for ``owner_name``, in lower case: also the login as it is."""
    import pwd

    try:
        return PERSON_WORDS | {pwd.getpwuid(os.getuid()).pw_name.lower()}
    except KeyError:
        return PERSON_WORDS


def person_name(login: str) -> str:
    """A login name made into a valid name: one dash for what cannot stand in one."""
    name = ""
    for char in login:
        if char in NAME_CHARACTERS:
            name += char
        elif name[-1:] != "\0":
            name += "\0"
    name = name.replace("\0", "-").strip("-._")[:58] or "person"
    return name if valid_name(name) else f"{name}-user"
