"""The ops ``routes`` and ``hook_switch``: what route functions there are."""

from __future__ import annotations

from functools import partial

from relay.broker.batch import Batch, ClientRequest, Served, serve
from relay.broker.kernel import Kernel
from relay.broker.ops_query import fitting
from relay.broker.trusted_configs import USER, TrustedConfig
from relay.core.errors import NotFound, UsageError
from relay.features.personas import evaluation
from relay.features.personas.evaluation import Evaluations
from relay.features.personas.ops import (
    HOOK_SWITCH,
    ROUTES,
    HookSwitch,
    HookSwitched,
    RouteRow,
    RouteRows,
    RoutesQuery,
)


class RouteOps:
    """Shows route functions, and switches them off and on."""

    def __init__(self, kernel: Kernel, evaluations: Evaluations) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._configs = kernel.configs
        self._evaluations = evaluations

    def ops(self) -> list[Served]:
        """The ops."""
        return [serve(ROUTES, self.routes), serve(HOOK_SWITCH, self.hook_switch)]

    def routes(self, request: ClientRequest[RoutesQuery], batch: Batch) -> RouteRows:
        """Those that evaluate the events of an agent in ``cwd``; without it, events of no agent."""
        self._configs.look_again()
        configs = self._configs.applying(request.fields.get("cwd") or None)
        rows, _ = fitting([row for one in configs for row in self._rows(one)])
        problems = self._evaluations.problems()
        problems |= {
            one.path: one.manifest.problem
            for one in configs
            if one.manifest is not None and one.manifest.problem
        }
        observers = {hook for one in configs for hook in _observers(one)}
        off = {hook: why for hook, why in self._evaluations.disabled.items() if hook in observers}
        return {"rows": rows, "problems": problems, "off": off}

    def _rows(self, config: TrustedConfig) -> list[RouteRow]:
        routes = config.manifest.settings["routes"] if config.manifest is not None else []
        rows: list[RouteRow] = []
        for one in routes:
            hook = f"{config.key}/{one['name']}"
            rows.append(
                {
                    "hook": hook,
                    "kinds": one.get("kinds"),
                    "channels": one.get("channels"),
                    "priority": one.get("priority", 0),
                    "path": config.path,
                    "disabled": self._evaluations.disabled.get(hook),
                }
            )
        return rows

    def hook_switch(self, request: ClientRequest[HookSwitch], batch: Batch) -> HookSwitched:
        """Switch a route function off, or on again. Not for agents: it is the person's own code."""
        who = self._directory.check_person(request, "switch hooks on and off")
        hook, on = self._known(request.fields["hook"]), request.fields["on"]
        self._ledger.begin()
        if on:
            evaluation.enable_hook(self._ledger, hook)
            off = None
        else:
            off = self._evaluations.disabled.get(hook)
        if not on and off is None:
            reason = f"switched off by {who}"
            evaluation.disable_hook(self._ledger, hook, reason, None, batch.now_ms)
            off = {"reason": reason, "event": None, "disabled_ms": batch.now_ms}
        batch.after.append(partial(self._evaluations.switched, hook, off))
        return {"hook": hook, "on": on}

    def _known(self, name: str) -> str:
        """The id that is meant by an id, or by the only hook of that name. Raises NotFound."""
        self._configs.look_again()
        ids = set(self._evaluations.disabled)
        for config in self._configs.all():
            ids |= {row["hook"] for row in self._rows(config)} | _observers(config)
        if name in ids:
            return name
        found = sorted(one for one in ids if one.partition("/")[2] == name)
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"several hooks are called {name}", hint=", ".join(found))
        raise NotFound(
            f"there is no route function {name}, nor a hook of the broker's events",
            hint="relay hooks list shows them",
        )


def _observers(config: TrustedConfig) -> set[str]:
    """The ids of its hooks of the broker's events, which are those of the person's own file."""
    if config.key != USER or config.manifest is None:
        return set()
    return {f"{USER}/{name}" for name in config.manifest.settings["observers"]}
