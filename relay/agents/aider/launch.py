"""Starting aider so that relay can hear it: an LLM history and a file to read, for this one run.

aider logs the conversation with its model, roles and all, when it is told a file for it. By
default it has none, so ours stands in the run's folder; where the user has one, theirs is read and
nothing is changed. The chat history and the input history stay what and where they are.
"""

from __future__ import annotations

import os

from relay.agents.arguments import ArgvReader, split
from relay.agents.installed import why_unknown
from relay.agents.launch import Launch, Primer, Run, private_file, run_folder

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PACKAGE = "aider-chat"
#: The file that tells the model how to talk to others, in the run's folder.
PRIMER = "relay-primer.md"
#: aider's own history of its chats, in the repository's folder, or else where it works.
CHAT_HISTORY = ".aider.chat.history.md"
#: The oldest version whose LLM history has been seen.
OLDEST = (0, 86, 2)
#: Bytes of a settings file that are looked at.
FILE_MAX = 256 * 1024
READER = ArgvReader(
    once="-h --help --version --message --msg -m --message-file -f --commit --lint --test --apply"
    " --apply-clipboard-edits --show-repo-map --show-prompts --exit --list-models --models"
    " --just-check-update --upgrade --update --install-main-branch --gui --browser"
    " --shell-completions",
    options="--llm-history-file --chat-history-file --read --env-file -c --config",
)


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """The argv with our files in it, or as it was, with the reason in ``data["degraded"]``."""
    if not READER.converses(argv) or not run.terms.terminal:
        return Launch(list(argv), {}, "command", {})
    data: dict[str, Any] = {}
    before, arguments = split(argv)
    flags: list[str] = []
    problems: list[str] = []
    settings = AiderSettings(arguments, env, os.getcwd())
    try:
        theirs = settings.path("--chat-history-file")
        data["chats"] = theirs or os.path.join(settings.git_root or os.getcwd(), CHAT_HISTORY)
    except Unclear:
        pass  # relay transcript does without
    try:
        data["lines"] = _takes_lines(settings, env)
        flags += _history(argv, env, run, settings, data)
    except (OSError, Unclear, _Problem) as error:
        problems.append(f"relay reads only the screen of aider: {_words(error)}")
    if run.primer:
        try:
            flags += _told(run, run.primer, settings)
            data["primed"] = True
            # aider reads it with each request.
            data["context"] = {"file": os.path.join(run.folders.run, PRIMER), "event": ""}
            if data.get("own") is False:
                # Other aiders may write into the person's own history; ours shows what it reads.
                data["mark"] = os.path.join(os.path.basename(run.folders.run), PRIMER)
        except (OSError, Unclear) as error:
            problems.append(f"aider was not told how to talk to others: {_words(error)}")
    if problems:
        data["degraded"] = "; ".join(problems)
    return Launch([*before, *flags, *arguments], {}, "aider", data)


class _Problem(Exception):
    """Why aider's own words cannot be had."""


def _words(error: Exception) -> str:
    if isinstance(error, Unclear):
        return f"the settings for {error} cannot be read"
    return str(error)


def _takes_lines(settings: AiderSettings, env: dict[str, str]) -> bool:
    """Whether aider reads plain lines instead of having an input line of its own."""
    dumb = env.get("TERM", "dumb") in ("dumb", "unknown", "")
    return dumb or settings.flags.given("--no-fancy-input")


def _history(
    argv: list[str], env: dict[str, str], run: Run, settings: AiderSettings, data: dict[str, Any]
) -> list[str]:
    """The flags that make aider log what its model says; ``data`` learns where."""
    if unknown := why_unknown("aider", argv[0], env, PACKAGE, OLDEST):
        raise _Problem(unknown)
    theirs = settings.path("--llm-history-file")
    if theirs is not None:
        data["history"], data["own"] = theirs, False
        try:
            facts = os.stat(theirs)
            data["from"] = [facts.st_ino, facts.st_size]
        except FileNotFoundError:
            data["from"] = [0, 0]
        return []
    path = os.path.join(run_folder(run), "aider-llm-history")
    data["history"], data["own"], data["from"] = path, True, [0, 0]
    return ["--llm-history-file", path]


def _told(run: Run, primer: Primer, settings: AiderSettings) -> list[str]:
    """The flags that make aider read the primer, with what the user has it read anyway.

    A ``--read`` on the command line takes the place of those in the settings, so these go along.
    """
    where, theirs = settings.values("--read")
    path = private_file(run, PRIMER, primer.text())
    again = [] if where == "flag" else theirs
    return [word for name in [*again, path] for word in ("--read", name)]


# -- aider's settings
#
# aider takes an option from its command line, else from the environment (which the ``.env`` files
# overrule), else from ``.aider.conf.yml``: of the working folder, of the repository, of the home.
# Of YAML only what people write there is read; where more stands, the answer is that it is unclear.


class Unclear(Exception):
    """The option is set, but to what cannot be told without aider itself."""


class AiderSettings:
    """Tells which value an option will have in one start of aider.

    ``arguments`` are those after the program's name.
    """

    def __init__(self, arguments: list[str], env: dict[str, str], cwd: str) -> None:
        self.flags = READER.read(arguments)
        self._env = env
        self._cwd = cwd
        self._home = env.get("HOME") or os.path.expanduser("~")
        self.git_root = git_root(cwd)

    def values(self, option: str) -> tuple[str, list[str]]:
        """Where ``option`` (such as ``--read``) is set, and to what.

        Where: ``flag``, ``environment``, ``file`` or, for no setting at all, "". Raises Unclear.
        """
        if flags := self._flags(option):
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

    def _flags(self, *names: str) -> list[str]:
        """The values that the command line has for the option of these names."""
        options = self.flags.all(*names)
        return [option.value for option in options if option.value is not None]

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
        if given := self._flags("-c", "--config"):
            yield os.path.join(self._cwd, given[-1])
            return
        for folder in (self._cwd, self.git_root, self._home):
            if folder:
                yield os.path.join(folder, ".aider.conf.yml")


def git_root(folder: str) -> str | None:
    """The folder of the repository that ``folder`` is in; None where there is none."""
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
