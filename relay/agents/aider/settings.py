"""Which value an option of aider's will have, before aider is started.

aider takes an option from its command line, else from the environment (which the ``.env`` files
overrule), else from ``.aider.conf.yml``: of the working folder, of the repository, of the home.
Of YAML only what people write there is read; where more stands, the answer is that nobody knows.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of a settings file that are looked at.
FILE_MAX = 256 * 1024


class Unclear(Exception):
    """The option is set, but to what cannot be told without aider itself."""


class Settings:
    """The settings of one start: ``arguments`` are those after the program's name."""

    def __init__(self, arguments: list[str], env: dict[str, str], cwd: str) -> None:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        self._arguments = arguments[:end]
        self._env = env
        self._cwd = cwd
        self._home = env.get("HOME") or os.path.expanduser("~")
        self.git_root = _git_root(cwd)

    def given(self, *names: str) -> bool:
        """Whether one of these flags stands on the command line."""
        return any(word.partition("=")[0] in names for word in self._arguments)

    def values(self, option: str) -> tuple[str, list[str]]:
        """Where ``option`` (such as ``--read``) is set, and to what.

        Where: ``flag``, ``environment``, ``file`` or, for no setting at all, "". Raises Unclear.
        """
        flags = self._flags(option)
        if flags:
            return "flag", flags
        variable = "AIDER_" + option.lstrip("-").replace("-", "_").upper()
        named = self._environment(variable)
        if named is not None:
            return "environment", _list(named)
        for path in self._config_files():
            found = _from_yaml(_read(path), option.lstrip("-"))
            if found is not None:
                return "file", found
        return "", []

    def path(self, option: str) -> str | None:
        """The file that ``option`` names, whole; None when it is not set. Raises Unclear."""
        values = self.values(option)[1]
        return os.path.join(self._cwd, values[-1]) if values and values[-1] else None

    def _flags(self, option: str) -> list[str]:
        found = []
        for at, word in enumerate(self._arguments):
            name, equals, value = word.partition("=")
            if name == option and equals:
                found.append(value)
            elif name == option and at + 1 < len(self._arguments):
                found.append(self._arguments[at + 1])
        return found

    def _environment(self, variable: str) -> str | None:
        value = self._env.get(variable)
        for path in self._dotenv_files():
            for line in _read(path).splitlines():
                name, equals, given = line.strip().removeprefix("export ").partition("=")
                if equals and name.strip() == variable:
                    value = _scalar(given)
        return value or None

    def _dotenv_files(self) -> Iterator[str]:
        """From the one that counts least to the one that counts most."""
        yield os.path.join(self._home, ".aider", "oauth-keys.env")
        yield os.path.join(self._home, ".env")
        if self.git_root:
            yield os.path.join(self.git_root, ".env")
        yield os.path.join(self._cwd, ".env")
        for given in self._flags("--env-file"):
            yield os.path.join(self._cwd, given)

    def _config_files(self) -> Iterator[str]:
        """From the one that counts most to the one that counts least."""
        given = [*self._flags("-c"), *self._flags("--config")]
        if given:
            yield os.path.join(self._cwd, given[-1])
            return
        for folder in (self._cwd, self.git_root, self._home):
            if folder:
                yield os.path.join(folder, ".aider.conf.yml")


def _git_root(folder: str) -> str | None:
    while not os.path.exists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder


def _read(path: str) -> str:
    """The beginning of a settings file. Raises Unclear for a pipe: it has only one reader."""
    try:
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise Unclear(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(FILE_MAX)
    except OSError:
        return ""


def _from_yaml(text: str, key: str) -> list[str] | None:
    """What ``key`` is set to; None when it is not. Raises Unclear."""
    lines = text.splitlines()
    found: list[str] | None = None
    for at, line in enumerate(lines):
        name, colon, value = line.partition(":")
        if name.strip().strip("'\"") == key and colon:
            if line[:1].isspace():
                raise Unclear(key)
            found = _list(value) if _uncommented(value) else _block(lines[at + 1 :])
    if found is None and key in "\n".join(map(_uncommented, lines)):
        raise Unclear(key)
    return found


def _block(lines: list[str]) -> list[str]:
    """The items of a list that is written one below the other."""
    items = []
    for line in lines:
        text = _uncommented(line)
        if text.startswith("- "):
            items.append(_scalar(text[2:]))
        elif text:
            break
    return items


def _list(value: str) -> list[str]:
    text = _uncommented(value)
    if text.startswith("["):
        if not text.endswith("]"):
            raise Unclear(value)
        return [_scalar(item) for item in text[1:-1].split(",") if item.strip()]
    if text[:1] in "{|>&*!":
        raise Unclear(value)
    return [_scalar(value)]


def _uncommented(text: str) -> str:
    return "" if text.lstrip().startswith("#") else text.partition(" #")[0].strip()


def _scalar(text: str) -> str:
    text = text.strip()
    quote = text[:1]
    if quote in ("'", '"') and quote in text[1:]:
        return text[1 : text.index(quote, 1)]
    return _uncommented(text)
