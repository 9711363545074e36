"""The prices of models: relay's own list, and what the person's ``prices.yaml`` says instead.

Data, not code: a list of prices runs nothing, so it needs no trust. It says what tokens cost; what
is capped stands in the configuration.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from relay.config.trust import user_config
from relay.config.yaml_tree import Mistake, YamlError, YamlForm, YamlNode, read_tree
from relay.core.files import read_file

PRICES_FILE = "prices.yaml"
#: Bytes of such a file: the broker reads it, and an agent may have written it.
_FILE_MAX = 256 * 1024
#: The kinds of tokens that are counted and priced: sent to the model, written by it, read from its
#: cache, and stored in its cache.
COUNTS = ("input", "output", "cached", "written")
_MILLION = 1_000_000


class PricesError(YamlError):
    """The file of prices cannot be used."""

    code = "prices_invalid"
    exit_status = 2
    file = PRICES_FILE


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens of a model cost, in US dollars, by globs of models' names."""

    by_glob: dict[str, tuple[float, ...]] = field(default_factory=dict)
    #: Why the person's own file is left out, and which state of it this was.
    problem: str = ""
    state: tuple[int, int] | None = None

    def of(self, model: str) -> tuple[float, ...] | None:
        """The prices of a model, by the longest glob that it fits; None where there is none."""
        name = model.lower().rpartition("/")[2]  # opencode and others put the provider before it
        fits = [one for one in self.by_glob if fnmatchcase(name, one.lower())]
        return self.by_glob[max(fits, key=len)] if fits else None

    def dollars(self, model: str, counts: Sequence[int]) -> float | None:
        """What these tokens cost; None where nobody knows."""
        prices = self.of(model)
        if prices is None:
            return None
        return sum(one * price for one, price in zip(counts, prices, strict=True)) / _MILLION


def user_prices(known: Prices | None = None) -> Prices:
    """The prices that count now: ``known``, if the person's file is as it was then. Never raises.

    A file that cannot be used counts as none, and ``problem`` says why.
    """
    path = os.path.join(os.path.dirname(user_config()), PRICES_FILE)
    try:
        status = os.stat(path)
        state = (status.st_mtime_ns, status.st_size)
    except OSError:
        state = None
    if known is not None and known.state == state:
        return known
    ours = _read(os.path.join(os.path.dirname(__file__), PRICES_FILE))
    if state is None:
        return Prices(ours)
    try:
        return Prices({**ours, **_read(path)}, state=state)
    except PricesError as error:
        return Prices(ours, f"{path} is left out: {error.message}", state)
    except (OSError, UnicodeDecodeError):
        return Prices(ours, f"{path} cannot be read, so it is left out", state)


def _read(path: str) -> dict[str, tuple[float, ...]]:
    return parse_prices(read_file(path, _FILE_MAX)[:_FILE_MAX].decode())


def parse_prices(text: str) -> dict[str, tuple[float, ...]]:
    """Read a file of prices. Raises PricesError with all mistakes."""
    root, mistakes = read_tree(text, PricesError)
    form = YamlForm(mistakes)
    found: dict[str, tuple[float, ...]] = {}
    top = {} if root is None else form.mapping(root, ("prices",), ("prices",))
    node = top.get("prices")
    if node is not None and node.kind != "map":
        form.wrong(node, "prices: a model's name and what it costs are meant here")
    for key, value in node.pairs if node is not None else ():
        given = form.mapping(value, COUNTS, ("input", "output"))
        prices = {name: _price(form, given[name], name) for name in given}
        if not prices.keys() >= {"input", "output"}:
            continue
        if key.kind != "text" or not key.value:
            form.wrong(key, "the name of a model, or a glob, is meant here")
        found[key.value] = tuple(prices.get(name, prices["input"]) for name in COUNTS)
    if form.mistakes:
        raise PricesError(form.mistakes)
    return found


def _price(form: YamlForm, node: YamlNode, name: str) -> float:
    try:
        price = float(node.value) if node.kind == "text" else -1.0
    except ValueError:
        price = -1.0
    if not (price >= 0 and math.isfinite(price)):
        form.mistakes.append(Mistake(node.line, f"{name}: dollars for a million tokens are meant"))
        return 0.0
    return price
