"""Names: who may have them, and for how long."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config import names
from relay.core.agent_names import RESERVED_NAMES, owner_name, person_name, valid_name
from relay.core.errors import NameTaken, RelayError, UsageError
from relay.core.paths import Home


@pytest.fixture
def home(isolated_home: Path) -> Home:
    home = Home(str(isolated_home))
    home.create()
    return home


@pytest.fixture
def bob(home: Home) -> Iterator[names.Claim]:
    claim = names.claim(home, "Bob", "bash", "RUN")
    yield claim
    claim.release()


def test_a_claim_says_whose_it_is(home: Home, bob: names.Claim) -> None:
    with open(bob.path) as file:
        claimed = json.load(file)
    assert (claimed["name"], claimed["run_id"], claimed["pid"]) == ("Bob", "RUN", os.getpid())
    assert os.path.basename(bob.path) == "bob.lock"
    assert not os.get_inheritable(bob.fd)
    assert names.holder(home, "BOB") == os.getpid()


def test_a_taken_name_is_refused_in_any_case(home: Home, bob: names.Claim) -> None:
    with pytest.raises(NameTaken) as caught:
        names.claim(home, "bOB", "bash")
    assert caught.value.details == {"pid": os.getpid(), "suggestion": "bOB-2"}
    assert str(os.getpid()) in caught.value.message
    assert "bOB-2" in caught.value.hint


def test_a_taken_name_says_who_has_it_where_and_since_when(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = os.openpty()
    monkeypatch.chdir(tmp_path)
    terminal = os.ttyname(slave)
    monkeypatch.setattr(os, "ttyname", lambda fd: terminal)
    bob = names.claim(home, "Bob", "bash")
    with pytest.raises(NameTaken) as caught:
        names.claim(home, "Bob", "bash")
    said = caught.value.message
    assert f"process {os.getpid()} on {terminal} in {tmp_path}, since " in said
    assert time.strftime("%Y-%m-%d") in said
    os.ftruncate(bob.fd, 0)
    os.pwrite(bob.fd, b"\xff not json", 0)  # half written
    with pytest.raises(NameTaken, match="in use by a running agent$"):
        names.claim(home, "Bob", "bash")
    bob.release()
    os.close(master)
    os.close(slave)


def test_a_released_name_is_free_though_a_forked_process_still_has_its_file(
    home: Home, bob: names.Claim
) -> None:
    copy = os.dup(bob.fd)  # as fork makes one
    try:
        bob.release()
        names.claim(home, "Bob", "bash").release()
    finally:
        os.close(copy)


def test_names_from_commands_are_made_valid_and_unique(home: Home) -> None:
    wanted = {
        "/usr/bin/bash": "bash",
        "bash": "bash-2",
        "./bash": "bash-3",
        "my tool": "my-tool",
        "relay": "relay-2",
        "._x.": "x",
        "ünï": "n",
        "--": "agent",
        "x" * 80: "x" * 64,
        "y" * 63 + "-": "y" * 63,
    }
    claims = [names.claim(home, None, command) for command in wanted]
    assert [claim.name for claim in claims] == list(wanted.values())
    second = names.claim(home, None, "x" * 80)
    assert second.name == "x" * 62 + "-2"
    for claim in (*claims, second):
        claim.release()


@pytest.mark.parametrize("name", ["", "a b", "*", "#x", "a,b", "relay", "ALL", "x" * 65, "../x"])
def test_impossible_names(home: Home, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        names.claim(home, name, "bash")
    assert "letters, digits" in caught.value.hint


def test_a_lock_that_cannot_be_made(home: Home) -> None:
    os.mkdir(os.path.join(home.names, "bob.lock"))
    with pytest.raises(RelayError) as caught:
        names.claim(home, "Bob", "bash")
    assert caught.value.code == "state_dir"


_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?")


@given(st.one_of(st.text(max_size=70), st.from_regex(r"[A-Za-z0-9_.-]{0,66}", fullmatch=True)))
def test_what_a_name_may_be(name: str) -> None:
    reserved = name.lower() in RESERVED_NAMES
    assert valid_name(name) == (bool(_NAME.fullmatch(name)) and not reserved)


@given(st.one_of(st.text(max_size=80), st.text("aZ0-._ é", max_size=80)))
def test_every_login_becomes_a_name_of_a_person(login: str) -> None:
    assert valid_name(person_name(login))
    if valid_name(login) and login.strip("-._") == login and len(login) <= 58:
        assert person_name(login) == login


def test_no_agent_takes_the_name_of_the_person(home: Home) -> None:
    own = owner_name()
    for word in (own.upper(), "me", "User", "human"):
        with pytest.raises(NameTaken, match=f"{word} means you") as caught:
            names.claim(home, word, "bash")
    suggestion = caught.value.details["suggestion"]
    names.claim(home, str(suggestion), "bash").release()
    made = names.claim(home, None, f"/bin/{own}")
    assert made.name == f"{own}-2"
    made.release()
