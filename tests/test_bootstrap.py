"""The set-up from a fresh clone: what it decides, without installing anything."""

from __future__ import annotations

import hashlib
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay import bootstrap
from relay.bootstrap import SetupError

WHEEL = b"the bytes of a wheel"


class Index(http.server.BaseHTTPRequestHandler):
    """A package index with some versions of pip."""

    digest = hashlib.sha256(WHEEL).hexdigest()

    def do_GET(self) -> None:
        body = WHEEL
        if self.path == "/simple/pip/":
            names = ["pip-9.0.3", "pip-25.1", "pip-25.3", "pip-26.0b1", "pip-26.1"]
            files = [
                {
                    "filename": f"{name}-py3-none-any.whl",
                    "url": f"/files/{name}-py3-none-any.whl",
                    "hashes": {"sha256": self.digest},
                    "yanked": name == "pip-26.1",
                }
                for name in names
            ]
            body = json.dumps({"files": [*files, {"filename": "pip-27.tar.gz"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    handler = type("FreshIndex", (Index,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_newest_release_of_pip_is_fetched(index: type[Index], tmp_path: Path) -> None:
    wheel = bootstrap.fetch_pip(tmp_path)
    assert wheel.name == "pip-25.3-py3-none-any.whl"
    assert wheel.read_bytes() == WHEEL


def test_a_wheel_with_another_hash_is_refused(index: type[Index], tmp_path: Path) -> None:
    index.digest = "0" * 64
    with pytest.raises(SetupError, match="hash"):
        bootstrap.fetch_pip(tmp_path)


def test_an_index_that_cannot_be_reached_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(SetupError, match="python3-venv"):
        bootstrap.fetch_pip(tmp_path)


def test_the_index_comes_from_pips_own_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://index.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    assert bootstrap.index_url() == "https://index.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://other.example/simple")
    assert bootstrap.index_url() == "https://other.example/simple"


def test_an_old_python_and_a_missing_clone_are_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    with pytest.raises(SetupError, match=r"Python 3\.11 or newer"):
        bootstrap.check_python()
    monkeypatch.undo()
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    with pytest.raises(SetupError, match="not a clone"):
        bootstrap.check_python()


def test_unknown_words_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["fly"]) == 2
    assert "relay.bootstrap demo" in capsys.readouterr().err


def test_a_failing_step_shows_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SetupError, match="this step failed"):
        bootstrap.run(["sh", "-c", "echo what happened; exit 3"])
    assert "what happened" in capsys.readouterr().err
