"""How a program is asked one question and ends: its command line, and what it writes, as data.

``claude -p``, ``codex exec``, ``gemini -p`` … each stands in the program's profile (``headless``);
a persona's configuration may say it for a program without one. What comes out is read by a reader
of relay.agents.headless_output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from relay.core.errors import UsageError

#: What the program writes.
FORMATS = ("text", "claude", "codex", "gemini", "opencode")
#: Before a word of its own, in brackets or quotes or not.
_MENTION = re.compile(r"(?<![\w@\\])@(?=\S)")
_COMMAND = re.compile(r"\s*[/!#?\\@]")
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class HeadlessForm:
    """The form of one program. Without anything: it reads the prompt and prints the answer.

    ``args`` follow the command; ``{resume}``, ``{model}`` and ``{system}`` as words of their own
    stand for those lists below, where there is something for them. A first word that stands in the
    command already is left out. The prompt comes on standard input, unless
    ``{prompt}`` stands in ``args``.
    """

    args: tuple[str, ...] = ()
    #: Goes on with the conversation ``{id}``.
    resume: tuple[str, ...] = ()
    #: ``{model}``.
    model: tuple[str, ...] = ()
    #: ``{file}`` or ``{text}``: what is added to the system prompt. Without it that is said first
    #: in the prompt.
    system: tuple[str, ...] = ()
    output: str = "text"
    #: The program looks for commands and names of files in its prompt: what makes text of an ``@``
    #: that begins a word, and a first line before what begins like a command.
    escape: str = ""
    #: The program converses in a terminal: what its prompt looks like (a regular expression), and
    #: what is typed to end it.
    prompt: str = ""
    leave: str = ""

    @property
    def driven(self) -> bool:
        """Whether its prompt has to be driven, in a terminal."""
        return bool(self.prompt)

    def command(self, command: tuple[str, ...], **said: str) -> list[str]:
        """The command line: ``said`` has what is known of id, model, file, text and prompt."""
        given = {
            "resume": self.resume if said.get("resumed") else (),
            "model": self.model if said.get("model") else (),
            "system": self.system if said.get("text") else (),
        }
        args = list(self.args)
        if args and not args[0].startswith(("-", "{")) and args[0] in command[1:]:
            del args[0]
        words: list[str] = []
        for word in args:
            part = word[1:-1] if word.startswith("{") and word.endswith("}") else ""
            words += given.get(part, (word,))
        return [*command, *(_PLACE.sub(lambda m: said.get(m[1], m[0]), word) for word in words)]

    def inert(self, prompt: str) -> str:
        """The prompt so that the program finds no option, command or file's name in it."""
        if self.takes_argument:
            prompt = prompt.replace("\0", "")
            prompt = f"Message:\n\n{prompt}" if prompt.startswith("-") else prompt
        if not self.escape:
            return prompt
        plain = _MENTION.sub(lambda found: self.escape + found[0], prompt)
        return f"Message:\n\n{plain}" if _COMMAND.match(plain) else plain

    @property
    def takes_argument(self) -> bool:
        """Whether the prompt is an argument."""
        return any("{prompt}" in word for word in self.args)

    @classmethod
    def from_json(cls, value: object) -> HeadlessForm:
        """Read the table of a persona's configuration. Raises UsageError."""
        if not isinstance(value, Mapping):
            raise UsageError(f"headless must be a dictionary, not {value!r}")
        known = {one.name: str(one.type) for one in fields(cls)}
        found: dict[str, Any] = {}
        for key, given in value.items():
            if key not in known:
                raise UsageError(f"headless has no {key!r}", hint=f"it has {', '.join(known)}")
            if known[key] == "str":
                if not isinstance(given, str):
                    raise UsageError(f"headless.{key} must be a text, not {given!r}")
                found[key] = given
                continue
            if not isinstance(given, list | tuple) or not all(isinstance(w, str) for w in given):
                raise UsageError(f"headless.{key} must be a list of texts, not {given!r}")
            found[key] = tuple(given)
        return cls(**found).checked()

    def checked(self) -> HeadlessForm:
        """This form. Raises UsageError where it cannot be used."""
        if self.output not in FORMATS:
            raise UsageError(
                f"headless.output cannot be {self.output!r}", hint=f"one of {', '.join(FORMATS)}"
            )
        try:
            re.compile(self.prompt)
        except re.error as error:
            raise UsageError(f"headless.prompt is no regular expression: {error}") from error
        return self

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        made = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: list(one) if isinstance(one, tuple) else one for name, one in made.items() if one
        }
