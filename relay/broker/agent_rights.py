"""What an agent may do beyond messages: as the setting ``may`` of trusted configurations says.

The person may do everything. An agent may always look at itself. Anything else needs a right that a
configuration gives to its name: the person's own file gives it for all agents, a project's file for
the agents of that project. Only the person's own file can give ``watch``, which concerns everybody.
An agent that was started inside another one never has more rights than that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from relay.broker.batch import AnyRequest, Client
from relay.broker.directory import Directory, Member
from relay.broker.trusted_configs import USER, TrustedConfigs
from relay.core.errors import RelayError

#: What each right allows, in the words of a refusal.
_WHAT = {
    "peek": "see the screen of another agent",
    "transcript": "read the turns of another agent",
    "spawn": "start agents",
    "watch": "follow what happens to others",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose words a client may read. Every op that returns the words of others checks it."""

    #: The agent that may read only its own, in lower case; "" for a client that may read all.
    own: str
    #: Other agents whose turns it may read, in lower case.
    turns: frozenset[str] = frozenset()

    def reads(self, *names: str | None) -> bool:
        """Whether it may read messages from or to one of ``names``."""
        return not self.own or self.own in [(one or "").lower() for one in names]

    def reads_turns(self, persona: str) -> bool:
        return self.reads(persona) or persona.lower() in self.turns

    def check(self, allowed: bool) -> None:
        """Raise RelayError unless ``allowed``."""
        if not allowed:
            raise RelayError(
                f"the agent {self.own} may only read messages from or to itself, and its own turns",
                hint="relay history lists them; the person can give it the rights watch and"
                " transcript",
                code="forbidden",
            )


class Rights:
    """Says who may do what."""

    def __init__(self, directory: Directory, configs: TrustedConfigs) -> None:
        self._directory = directory
        self._configs = configs

    def check(self, request: AnyRequest, right: str, about: Member | None = None) -> str:
        """The name of the agent that asks, "" for the person. Raises RelayError for a refusal.

        ``about``: the agent that the request concerns; None for nobody, or everybody.
        """
        member = self._directory.speaker(request)
        if member is None:
            self._directory.check_person(request, _WHAT[right])
            return ""
        if member is not about and not self.has(member, request.client, right, about):
            raise RelayError(
                f"the agent {member.name} may not {_WHAT[right]}",
                hint=f'the person can allow it in a configuration: may = {{"{member.name}": '
                f'["{right}"]}}',
                code="forbidden",
            )
        return member.name

    def reader(self, request: AnyRequest) -> Reader:
        """What the client may read. Raises RelayError for a client that cannot be identified."""
        member = self._directory.speaker(request)
        if member is None:
            self._directory.check_person(request, "read what others say")
            return Reader("")
        client = request.client
        if self.has(member, client, "watch"):
            return Reader("")
        turns = frozenset[str]()
        if self.has(member, client, "transcript"):
            others = self._directory.agents()
            may = (one for one in others if self.has(member, client, "transcript", one))
            turns = frozenset(one.name.lower() for one in may)
        return Reader(member.name.lower(), turns)

    def has(self, member: Member, client: Client, right: str, about: Member | None = None) -> bool:
        around = self._directory.around(member, client)
        return all(right in self.of(one, about) for one in around)

    def of(self, member: Member, about: Member | None = None) -> frozenset[str]:
        """What configurations give the agent ``member`` by its name."""
        configs = self._configs.applying(member.record.cwd)
        if about is not None and not about.person and about.record.cwd != member.record.cwd:
            theirs = {one.key for one in self._configs.applying(about.record.cwd)}
            configs = tuple(one for one in configs if one.key == USER or one.key in theirs)
        return frozenset(
            right
            for one in configs
            if one.manifest is not None
            for glob, rights in one.manifest.settings["may"].items()
            if fnmatchcase(member.name.lower(), glob.lower())
            for right in rights
            if right != "watch" or one.key == USER
        )
