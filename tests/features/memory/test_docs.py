"""The examples of docs/memory*.md run, and do what the pages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from relay.config import trust
from relay.config.llm import PROVIDERS, resolved
from relay.config.load import load
from relay.config.trust import read_config
from relay.core.paths import Home
from relay.features.memory.records import Place, Scope
from relay.features.memory.settings import MEMORY, config_warnings, memory_settings
from relay.features.memory.spec import StoreSpec
from relay.features.memory.store_access import StoreAccess

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs" / f"memory{which}.md" for which in ("", "-internals")]


def text() -> str:
    """All pages, one after the other."""
    return "\n".join(page.read_text() for page in PAGES)


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", text(), re.DOTALL)


def block(words: str) -> str:
    (found,) = [one for one in blocks() if words in one]
    return found


def configured(folder: Path, text: str) -> StoreSpec:
    """The store that this file names; it is trusted in ``folder``/home."""
    folder.mkdir(exist_ok=True)
    path = folder / "relay.config.py"
    path.write_text(text)
    trust.trust(Home(str(folder / "home")), str(path))
    return load(read_config(str(path))).settings.of(MEMORY).store


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = block("store = LocalStore(")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs", "exec"), {})
    printed = capsys.readouterr().out
    assert re.fullmatch(r"0\.\d+ words \w{8} The tests need Redis on port 6379\n", printed), printed


def test_every_configuration_is_accepted(tmp_path: Path) -> None:
    found = [one for one in blocks() if re.search("^config = ", one, re.MULTILINE)]
    titles = {configured(tmp_path, one).title for one in found}
    assert titles == {
        "local",
        "mem0 on qdrant within RELAY_HOME",
        "mem0 on qdrant at http://localhost:6333",
        "qdrant at http://localhost:6333",
        f"the searcher of {tmp_path / 'relay.config.py'}",
    }


def test_every_embedder_of_the_table_is_accepted(tmp_path: Path) -> None:
    section = text().split("## By meaning")[1].split("\n## ")[0]
    examples = re.findall(r"`(\{\"provider\".*?\})`", section)
    assert len(examples) == 5
    for example in examples:
        backend = "local" if "none" in example else "qdrant"
        written = (
            f"config = {{'memory': {{'backend': {backend!r}, 'config': {{'embedder': {example}"
        )
        assert configured(tmp_path, written + "}}}").config["embedder"]


def test_variables_that_are_missing_are_told(tmp_path: Path) -> None:
    configured(tmp_path, block("QDRANT_API_KEY"))
    settings = load(read_config(str(tmp_path / "relay.config.py"))).settings.of(MEMORY)
    told = ["memory: the environment variable QDRANT_API_KEY is not set here"]
    assert config_warnings(settings, {}) == told


def test_the_searcher_of_ones_own_finds(tmp_path: Path) -> None:
    spec = configured(tmp_path, block("def search(query"))
    access = StoreAccess(spec, Home(str(tmp_path / "home")))
    store = access.opened([])
    user = Place(Scope.USER)
    text = "the tests need Redis on port 6379"
    store.save(text, user, agent=None, session=None, now_ms=0)
    [hit] = store.search("where is the cache?", [user], 5)
    assert hit.memory.text == text
    access.close()


def test_the_example_of_auto_save_is_a_configuration() -> None:
    blocks = re.findall(r"```python\n(.*?)```", text(), re.DOTALL)
    (example,) = [block for block in blocks if '"auto_save": True' in block]
    names: dict[str, Any] = {}
    exec(compile(example, "docs", "exec"), names)
    settings = memory_settings(names["config"]["memory"])
    assert settings.auto_save and settings.llm is not None
    assert resolved(settings.llm, {"OPENAI_API_KEY": "sesame"}).key == "sesame"


def test_every_provider_of_a_model_is_named() -> None:
    section = text().partition("## Saved without being asked")[2].partition("\n## ")[0]
    assert [name for name in PROVIDERS if f"`{name}`" not in section] == []
