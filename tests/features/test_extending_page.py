"""docs/extending.md: what it quotes is in the example, what it shows runs, no method is missing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from relay.broker.door import BrokerFeature

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"^```(?:python|toml)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
EXAMPLE = [
    file.read_text()
    for file in (ROOT / "examples" / "relay-shout").rglob("*.*")
    if file.is_file() and file.suffix in (".py", ".toml")
]
EXAMPLE.append(Path(__file__).with_name("test_relay_shout.py").read_text())
RUNS = [block for block in BLOCKS if "ServiceProcess" in block]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block not in RUNS])
def test_what_it_quotes_stands_in_the_example(block: str) -> None:
    if "check_feature" in block:
        block = block[block.index("    check_feature") :]
    assert any(block in text for text in EXAMPLE)


def test_the_child_process_answers(tmp_path: Path) -> None:
    [block] = RUNS
    names: dict[str, object] = {}
    exec(block, names)
    shouted = names["shouted"]
    assert callable(shouted)
    assert asyncio.run(shouted("hey", str(tmp_path / "log"))) == "HEY"


def test_every_method_of_the_brokers_door_is_in_its_table() -> None:
    table = PAGE.partition("## Broker")[2].partition("\n## ")[0]
    missing = [name for name in vars(BrokerFeature) if not name.startswith("_")]
    assert [name for name in missing if not re.search(rf"`{name}\b", table)] == []


def test_it_stays_short() -> None:
    assert PAGE.count("\n") <= 270
