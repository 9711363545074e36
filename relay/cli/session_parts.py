"""Puts one session together from the packages below: sources, doors, broker client, listeners."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from relay.broker.directory import owner_login, person_name
from relay.broker.protocol import message_from
from relay.cli.session_broker import RegisteredBroker
from relay.config import LoadedConfig
from relay.paths import Home
from relay.session.courier import Courier
from relay.session.doors import Door, TerminalDoor
from relay.session.ears import Ears
from relay.session.guards import Guards
from relay.session.hearing import Hearing
from relay.session.link import PumpLink
from relay.session.session import Facts, Session
from relay.terminal.inner import InnerTerminal, NoTerminal
from relay.terminal.lines import make_source

if TYPE_CHECKING:
    from relay.cli.agent_session import Start


class Parts:
    """Everything that one session is made of, and how it is taken apart again."""

    def __init__(
        self,
        start: Start,
        hello: dict[str, Any],
        checkpoint: dict[str, Any],
        config: LoadedConfig,
        link: PumpLink,
        home: Home,
    ) -> None:
        args = start.args
        self._start = start
        self._hello = hello
        self._checkpoint = checkpoint
        self._config = config
        self._link = link
        self._home = home
        self._guards = Guards()
        self._terminal = _terminal(hello)
        self.facts = Facts(
            run_id=args["run_id"],
            name=args["name"],
            person=person_name(owner_login()),
            started_ms=hello["started_ms"],
            cwd=args["cwd"],
            env=dict(os.environ),
            task=args.get("task") or config.settings.task,
            idle_seconds=config.settings.idle_seconds,
            handler_timeout=config.settings.handler_timeout,
            offset=hello["offset"],
            notes=[str(note) for note in checkpoint.get("notes", [])],
        )
        self._broker: RegisteredBroker | None = None
        self._session: Session | None = None

    async def build(self) -> Session:
        """Connect the parts and start the session."""
        now = time.monotonic()
        args, hello = self._start.args, self._hello
        namespaces = self._config.registry.namespaces()
        broker = RegisteredBroker(self._home, self._push, self._note)
        self._broker = broker
        session = Session(
            self.facts,
            self._config.registry,
            broker,
            self._link,
            self._guards,
            clock=time.monotonic,
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
        self._session = session
        hearing = Hearing(self.facts.run_id, self.facts.started_ms, namespaces)
        cols, rows = hello["cols"] or 80, hello["rows"] or 24
        saved = self._checkpoint.get("screen", "").encode()
        self._screen = make_source(cols, rows, now, saved)
        if self._checkpoint:
            hearing.restore(self._checkpoint["hearing"])
        ears = Ears(
            hearing,
            self._screen,
            None,
            on_heard=session.heard,
            on_text=session.said,
            on_state=session.state_changed,
            on_proof=session.proof,
        )
        courier = Courier(self._choose_door, session.report, time.monotonic)
        self._door = TerminalDoor(
            self._link,
            self._terminal,
            self._screen,
            self._guards,
            time.monotonic,
            shell=False,
            namespaces=lambda: namespaces,
            written=frozenset(hello.get("written", ())),
        )
        session.connect(ears, courier)
        broker.start(
            name=args["name"],
            run=args["run_id"],
            token=args["token"],
            kind=args.get("profile") or "program",
            pid=hello["pid"],
            cwd=args["cwd"],
            command=" ".join(args["argv"]),
            resume=bool(self._checkpoint),
        )
        session.restore(self._checkpoint)
        session.begin(first=not self._checkpoint)
        return session

    def restore_terminal(self) -> None:
        """The pump was killed: undo on the outer terminal what the program had set there."""
        orderly = self._session is not None and self._session.orderly
        if self._start.tty is not None and not orderly:
            with contextlib.suppress(OSError):
                os.write(self._start.tty, self._screen.reset_sequences())

    async def close(self) -> None:
        """Hang up everywhere."""
        if self._broker is not None:
            await self._broker.close()
        self._link.close()
        self._terminal.close()

    def _choose_door(self) -> Door | None:
        return self._door

    def _note(self, text: str) -> None:
        if self._session is not None:
            self._session.note(text)

    def _push(self, fields: dict[str, Any]) -> None:
        session = self._session
        if session is None:
            return
        if fields["push"] == "deliver":
            session.deliver(message_from(fields))
        elif fields["push"] == "receipt":
            session.receipt(fields)


def _terminal(hello: dict[str, Any]) -> InnerTerminal | NoTerminal:
    if hello.get("tty"):
        with contextlib.suppress(OSError):
            return InnerTerminal(hello["tty"])
    return NoTerminal()
