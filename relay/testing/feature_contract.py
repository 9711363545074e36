"""What a feature promises the kernel, checked: for the tests of whoever writes one.

Each check raises AssertionError with what is wrong. They take the feature's package, dotted; it has
to be installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from relay.broker.door import NOT_OF_FEATURES, BrokerFeature
from relay.broker.server import BrokerServer
from relay.cli import verbs
from relay.config import door as settings
from relay.config.door import Setting
from relay.config.settings import Settings
from relay.core.log import Log
from relay.core.paths import Home
from relay.core.visible import tone
from relay.hooks.registry import Registry
from relay.ledger.store import Ledger
from relay.session.door import SessionFacts, SessionFeature

#: Seconds that a feature may take to end, when nothing was asked of it.
ENDS = 10.0
_TONES = {"", "bold", "faint", "name", "choice", "need", "good", "work"}


def check_feature(package: str, rows: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """All checks that fit the modules of the package. ``rows``: one example of each kind of row."""
    check_verbs(package)
    if _module(f"{package}.broker") is not None:
        check_broker_feature(package)
    if _module(f"{package}.settings") is not None:
        check_settings(package)
    if _module(f"{package}.session") is not None:
        check_session(package)
    if _module(f"{package}.view") is not None:
        check_view(package, rows or {})


def check_broker_feature(package: str) -> None:
    """It opens in a broker of its own, takes nothing of the kernel's, and ends in time."""
    asyncio.run(_check_broker_feature(package))


async def _check_broker_feature(package: str) -> None:
    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        home = Home(folder)
        home.create()
        ledger = Ledger(home.ledger)
        try:
            server = BrokerServer(home, ledger, Log(home.broker_log))
            theirs = f"{package}."
            opened = [one for one in server.features if type(one).__module__.startswith(theirs)]
            why = _text(home.broker_log) or "is it installed, in the entry points relay.features?"
            assert opened, f"{package} was not opened in a broker: {why}"
            for feature in opened:
                _check_methods(feature, BrokerFeature)
                taken = {one.op for one in feature.ops()} & {one.op for one in server.kernel_ops()}
                assert not taken, f"ops of the kernel: {', '.join(sorted(taken))}"
                kinds = set(feature.row_kinds()) & NOT_OF_FEATURES
                assert not kinds, f"kinds of rows of the kernel: {', '.join(sorted(kinds))}"
                for name, kind in feature.item_kinds().items():
                    assert name not in ("held", "question"), f"{name} is the kernel's kind of items"
                    assert list(kind.waiting()) == [], "nothing was asked, and an item waits"
                assert isinstance(feature.status(0), dict), "status() returns a dictionary"
                feature.start()
                assert isinstance(feature.busy, bool), "busy is a bool"
                async with asyncio.timeout(ENDS):
                    await feature.stop()
                    await feature.close()
        finally:
            ledger.close()


def _text(path: str) -> str:
    return Path(path).read_text() if os.path.exists(path) else ""


def _check_methods(feature: object, door: type) -> None:
    """Each can be called with what the broker, or the session, gives it today."""
    for name, wanted in vars(door).items():
        if name.startswith("_") or not inspect.isfunction(wanted):
            continue
        own = getattr(feature, name)
        where = f"{getattr(feature, '__name__', type(feature).__name__)}.{name}"
        if inspect.iscoroutinefunction(wanted):
            assert inspect.iscoroutinefunction(own), f"{where} is async"
        else:
            assert not inspect.iscoroutinefunction(own), f"{where} is not async: it may not wait"
        given = list(inspect.signature(wanted).parameters)[0 if isinstance(feature, type) else 1 :]
        try:
            inspect.signature(own).bind(*given)
        except TypeError as error:
            raise AssertionError(f"{where} takes {', '.join(given)}: {error}") from None


def check_settings(package: str) -> None:
    """Each says what it holds, and what counts where nothing is said can be kept as JSON."""
    known = {setting.key for setting in settings.settings()}
    for setting in importlib.import_module(f"{package}.settings").SETTINGS:
        assert isinstance(setting, Setting), f"{setting!r} is not a Setting"
        assert setting.key.isidentifier(), f"{setting.key!r} cannot be a key"
        assert setting.key in known, f"{setting.key}: {'; '.join(settings.problems())}"
        assert setting.doc, f"{setting.key} does not say what it holds"
        json.dumps(setting.kept(setting.default))


def check_session(package: str) -> None:
    """Its functions can be called with what a session gives them; its patterns and hooks load."""
    module = importlib.import_module(f"{package}.session")
    functions = {"register": ("registry", "facts"), "feature": ("parts",)}
    functions["watcher"] = ("fds", "profile")
    assert functions.keys() & vars(module).keys(), f"a session takes {', '.join(functions)}"
    for name, given in functions.items():
        if (function := getattr(module, name, None)) is not None:
            assert not inspect.iscoroutinefunction(function), f"{name} is not async"
            inspect.signature(function).bind(*given)
    if hasattr(module, "register"):
        module.register(Registry(), SessionFacts("", {}, {}, Settings()))
    if hasattr(module, "watcher"):
        assert module.watcher({}, "") is None, "it watches a run for which it was not asked"
    for own in vars(module).values():
        if isinstance(own, type) and issubclass(own, SessionFeature) and own is not SessionFeature:
            _check_methods(own, SessionFeature)


def check_verbs(package: str) -> None:
    """Each verb is declared by the module that ``VERBS`` names, and none is the kernel's."""
    for name, (module, text) in getattr(importlib.import_module(package), "VERBS", {}).items():
        assert name not in verbs.VERBS, f"relay {name} is the kernel's"
        assert text and "\n" not in text, f"what relay {name} does is one line"
        importlib.import_module(f"{package}.{module}")
        assert name in verbs.group_of(name).verbs, f"{module}.add does not declare {name}"


def check_view(package: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Each of its functions makes pieces of the example of its kind."""
    table = importlib.import_module(f"{package}.view").ROWS
    assert table.keys() == rows.keys(), f"examples are needed of {', '.join(sorted(table))}"
    for kind, view in table.items():
        for text, of in view({"seq": 1, "at_ms": 1, "names": [], **rows[kind], "what": kind}):
            assert isinstance(text, str), f"{kind}: a piece is (text, tone)"
            assert of in _TONES or tone(of), f"{kind}: there is no tone {of!r}"


def _module(name: str) -> ModuleType | None:
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
