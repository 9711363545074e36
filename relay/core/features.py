"""Which features are installed, and the doors that they come in by.

A feature is a package: a folder of ``relay/features``, or somebody else's, which its own
``pyproject.toml`` names in the entry point group ``relay.features``. What it gives to one part of
relay stands in its module of that part's name: ``broker``, ``session``, ``settings`` and so on.
Only that part imports it, so a feature costs the others nothing. docs/extending.md has them all.
"""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

GROUP = "relay.features"
#: The modules by which parts of relay meet a feature; "": its package.
PARTS = ("", "settings", "cli", "status_lines", "broker", "session", "start", "tables", "view")
#: What ``named`` has found.
_named: dict[tuple[str, str], Any] = {}
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "features")


class Feature:
    """One that is installed: the dotted name of its ``package``. ``is_own``: relay's own; else it
    is of a package of this ``version`` that the person installed."""

    __slots__ = ("name", "package", "is_own", "version")

    def __init__(self, name: str, package: str, is_own: bool = True, version: str = "") -> None:
        self.name = name
        self.package = package
        self.is_own = is_own
        self.version = version


class FeatureModule:
    """A feature's module for one part of relay; or None, with the ``problem`` why it could not be
    loaded, a line for people, and the ``trace`` of that for a log."""

    __slots__ = ("feature", "module", "problem", "trace")

    def __init__(
        self, feature: Feature, module: ModuleType | None, problem: str = "", trace: str = ""
    ) -> None:
        self.feature = feature
        self.module = module
        self.problem = problem
        self.trace = trace


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
    if not any(map(_may_have_features, sys.path)):
        return
    from importlib.metadata import entry_points  # which imports much

    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        version = point.dist.version if point.dist is not None else ""
        yield Feature(point.name, point.value, is_own=False, version=version)


def _may_have_features(folder: str) -> bool:
    """Whether packages in this folder of ``sys.path`` have features, as far as can be seen."""
    try:
        names = [name for name in os.listdir(folder or ".") if name.endswith(("-info", ".egg"))]
    except NotADirectoryError:
        return True  # an archive, into which this does not look
    except OSError:
        return False
    for name in names:
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                if GROUP.encode() in file.read():
                    return True
        except OSError:
            if name.endswith(".egg"):
                return True
    return False


def modules(part: str) -> Iterator[FeatureModule]:
    """The module ``part`` of each feature that has one; "": the package itself. One that fails
    harms no other."""
    for feature in installed():
        module = module_of(feature, part)
        if module is not None:
            yield module


def named(table: str, name: str) -> Any:
    """What a feature gives by the name ``name``: a row (module, name in it) of the dictionary
    ``table`` of its package. None: no feature gives it. Raises what its module raises."""
    if (table, name) in _named:
        return _named[table, name]
    given = None
    for package in modules(""):
        if row := getattr(package.module, table, {}).get(name):
            module, attribute = row
            loaded = importlib.import_module(f"{package.feature.package}.{module}")
            given = getattr(loaded, attribute)
            break
    # Noted once it is known: another thread may ask meanwhile, and what raised raises again.
    _named[table, name] = given
    return given


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
        return FeatureModule(feature, importlib.import_module(name))
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        import traceback

        problem = f"the feature {feature.name} could not be loaded: {type(error).__name__}: {error}"
        return FeatureModule(feature, None, problem, traceback.format_exc())
