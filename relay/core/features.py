"""Which features are installed, and the doors that they come in by.

A feature is a package: a folder of ``relay/features``, or somebody else's, which its own
``pyproject.toml`` names in the entry point group ``relay.features``. What it gives to one part of
relay stands in its module of that part's name: ``broker``, ``session``, ``settings`` and so on.
Only that part imports it, so a feature costs the others nothing. docs/extending.md has them all.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

GROUP = "relay.features"
#: The modules by which parts of relay meet a feature; "": its package.
PARTS = ("", "settings", "cli", "broker", "session", "start", "tables", "view")
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "features")


@dataclass(frozen=True, slots=True)
class Feature:
    """One that is installed."""

    name: str
    package: str  # dotted
    is_own: bool = True  # relay's; False: from a package that the person installed
    version: str = ""  # of that package


@dataclass(frozen=True, slots=True)
class FeatureModule:
    """A feature's module for one part of relay, or why it could not be loaded."""

    feature: Feature
    module: ModuleType | None
    problem: str = ""  # a line for people
    trace: str = ""  # the traceback, for a log


def installed() -> Iterator[Feature]:
    """Every feature, relay's own first. None is imported. A package whose feature has the name of
    one of relay's own is left out: nobody replaces a guard by installing a package."""
    taken = set()
    for name in sorted(os.listdir(_FOLDER) if os.path.isdir(_FOLDER) else ()):
        if os.path.isfile(os.path.join(_FOLDER, name, "__init__.py")):
            taken.add(name)
            yield Feature(name, f"{GROUP}.{name}")
    for feature in _from_outside():  # looked for last: it takes some milliseconds
        if feature.name not in taken:
            taken.add(feature.name)
            yield feature


def _from_outside() -> Iterator[Feature]:
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        version = point.dist.version if point.dist is not None else ""
        yield Feature(point.name, point.value, is_own=False, version=version)


def modules(part: str) -> Iterator[FeatureModule]:
    """The module ``part`` of each feature that has one; "": the package itself. One that fails
    harms no other."""
    for feature in installed():
        module = module_of(feature, part)
        if module is not None:
            yield module


@cache
def named(table: str, name: str) -> Any:
    """What a feature gives by the name ``name``: a row (module, name in it) of the dictionary
    ``table`` of its package. None: no feature gives it. Raises what its module raises."""
    for package in modules(""):
        if row := getattr(package.module, table, {}).get(name):
            module, attribute = row
            loaded = importlib.import_module(f"{package.feature.package}.{module}")
            return getattr(loaded, attribute)
    return None


def unloadable(feature: Feature) -> Iterator[FeatureModule]:
    """Its modules that cannot be loaded. One of relay's own is only looked at where that is
    cheap."""
    for part in PARTS[:3] if feature.is_own else PARTS:
        module = module_of(feature, part)
        if module is not None and module.problem:
            yield module
            if not part:
                return  # of none of its parts there is more to say


def module_of(feature: Feature, part: str) -> FeatureModule | None:
    """The feature's module of this name; None: it has none."""
    name = f"{feature.package}.{part}" if part else feature.package
    try:
        if importlib.util.find_spec(name) is None:
            return None
        return FeatureModule(feature, importlib.import_module(name))
    except Exception as error:
        problem = f"the feature {feature.name} could not be loaded: {type(error).__name__}: {error}"
        return FeatureModule(feature, None, problem, traceback.format_exc())
