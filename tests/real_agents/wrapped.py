"""A real program under ``relay wrap``, with a name, in a terminal and a home of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.e2e.wrapped import wait_registered
from tests.real_agents.model import ScriptedModel
from tests.real_agents.recipe import Options, Recipe
from tests.real_agents.recipes import AGENTS
from tests.real_agents.running import Running


class Wrapped(Running):
    """``relay wrap --name NAME OPTIONS -- PROGRAM``; it uses the broker of this test's home."""

    def __init__(
        self,
        recipe: Recipe,
        name: str,
        *,
        cols: int = 80,
        rows: int = 24,
        options: list[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", name, *(options or [])]
        more = {"RELAY_HOME": os.environ["RELAY_HOME"], **(env or {})}
        super().__init__(recipe, cols=cols, rows=rows, argv=[*wrap, "--", *recipe.argv], env=more)

    def ready(self) -> None:
        """Until it waits for a prompt and the broker knows it."""
        super().ready()
        wait_registered(self.name)


class Room:
    """Several wrapped agents on one scripted model; each one's requests carry its name (``by``)."""

    def __init__(self, base: Path, model: ScriptedModel, stack: ExitStack) -> None:
        self._base, self._model, self._stack = base, model, stack
        self.agents: dict[str, Wrapped] = {}

    def start(
        self,
        name: str,
        agent: str,
        binary: Path,
        made: Options | None = None,
        *,
        cols: int = 80,
        rows: int = 24,
        options: list[str] | None = None,
        wait: bool = True,
    ) -> Wrapped:
        """Start ``agent`` (a name in AGENTS) as ``name``; returns when it is ready, or at
        once where it is not to ``wait``.

        ``made`` is the recipe's options, ``options`` those of ``relay wrap``.
        """
        url = self._model.url_for(name)
        recipe = AGENTS[agent].recipe(binary, self._base / name, url, made or Options())
        wrapped = Wrapped(recipe, name, cols=cols, rows=rows, options=options)
        self._stack.enter_context(wrapped)
        self.agents[name] = wrapped
        if wait:
            wrapped.ready()
        return wrapped


@contextmanager
def room(base: Path, model: ScriptedModel) -> Iterator[Room]:
    """A room whose agents end with the block."""
    with ExitStack() as stack:
        yield Room(base, model, stack)
