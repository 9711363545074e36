"""Secrets are masked wherever a stream is cut, and nothing else is touched."""

from __future__ import annotations

import base64
import hashlib
import string
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.directive.redact import HELD_MAX, Redactor, find, redact

ALNUM = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6a7B8c9D0e1F2"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM_LINES = ["MIIEpAIBAAKCAQEA" * 4, "q7R8s9T0u1V2w3X4" * 4, "y5Z6a7B8c9D0e1F2" * 2]
PEM = "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *PEM_LINES, "-----END RSA PRIVATE KEY-----"])
#: (what stays readable, what is secret, kind). Made up: none of them opens anything.
TOKENS = [
    ("sk-ant-", f"api03-{ALNUM}-{ALNUM[:30]}_AA", "anthropic-key"),
    ("sk-proj-", f"{ALNUM[:40]}_{ALNUM[:40]}-x", "openai-key"),
    ("sk-", ALNUM[:48], "openai-key"),
    ("sk-or-v1-", "0123456789abcdef" * 4, "openrouter-key"),
    ("ghp_", ALNUM[:36], "github-token"),
    ("gho_", ALNUM[:36], "github-token"),
    ("ghs_", ALNUM[:36], "github-token"),
    ("ghu_", ALNUM[:36], "github-token"),
    ("github_pat_", f"{ALNUM[:22]}_{ALNUM[:59]}", "github-token"),
    ("glpat-", ALNUM[:20], "gitlab-token"),
    ("xoxb-", "123456789012-1234567890123-" + ALNUM[:24], "slack-token"),
    ("AKIA", "ABCDEFGH23456701", "aws-key-id"),
    ("ASIA", "ABCDEFGH23456701", "aws-key-id"),
    ("AIza", ALNUM[:35], "google-key"),
    ("sk_live_", ALNUM[:24], "stripe-key"),
    ("rk_live_", ALNUM[:24], "stripe-key"),
    ("npm_", ALNUM[:36], "npm-token"),
    ("pypi-Ag", "EIcHlwaS5vcmc" + ALNUM, "pypi-token"),
    ("relay_run_", "0123456789abcdef" * 2, "relay-token"),
    ("hf_", string.ascii_letters[:34], "huggingface-token"),
    ("eyJ", JWT[3:], "jwt"),
    ("Bearer ", ALNUM[:30], "bearer-token"),
    ("Authorization: Basic ", "dXNlcjpwYXNzd29yZA==", "authorization"),
    ('"x-api-key": "', ALNUM[:20], "authorization"),
    ("aws_secret_access_key = ", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws-secret"),
]
IDS = [f"{prefix.strip()}" for prefix, _, _ in TOKENS]


def masked(prefix: str, secret: str) -> str:
    return prefix + "*" * len(secret)


@pytest.mark.parametrize(("prefix", "secret", "kind"), TOKENS, ids=IDS)
def test_the_prefix_stays_and_the_secret_does_not(prefix: str, secret: str, kind: str) -> None:
    for before, after in (("", ""), ("key=", "\n"), ('"', '"'), ("x\\n", "\\n"), ("%3D", "&y")):
        text = before + prefix + secret + after
        assert redact(text) == before + masked(prefix, secret) + after
        assert [found[2] for found in find(text)] == [kind]


def test_find_says_where() -> None:
    text = f"a ghp_{ALNUM[:36]}, b AKIAABCDEFGH23456701."
    places = [(text[start:end], kind) for start, end, kind in find(text)]
    assert places == [(f"ghp_{ALNUM[:36]}", "github-token"), (text[-21:-1], "aws-key-id")]


def test_a_private_key_is_one_find_and_keeps_its_form() -> None:
    text = f"before\n{PEM}\nafter, which is quite ordinary: {ALNUM}\n{PEM}\n"
    hidden = text
    for line in PEM_LINES:
        hidden = hidden.replace(line, "*" * len(line))
    assert redact(text) == hidden
    assert [kind for _, _, kind in find(text)] == ["private-key", "private-key"]
    assert redact(text.replace("RSA PRIVATE", "PUBLIC")) == text.replace("RSA PRIVATE", "PUBLIC")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("https://me:hunter2@example.com/x", "https://me:*******@example.com/x"),
        ("postgres://app:p%40ss:w@db:5432/x", "postgres://app:********@db:5432/x"),
        ("https://:secret@host", "https://:******@host"),
    ],
)
def test_passwords_in_urls(text: str, hidden: str) -> None:
    assert redact(text) == hidden


ORDINARY = [
    "commit 3f786850e387550fdab836ed7e6dc881de23001b (HEAD -> main)",
    str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)),
    hashlib.sha256(b"x").hexdigest(),
    "task-ant-hill-with-a-very-long-name-1234567890 risk-proj-abcdefghijklmnopqrstuvwxyz0123",
    "sk-learn sk-toggleable__label-arrow-and-more-of-the-same-css-class-name",
    "sk-learn\nsrc\ntests\ndocs\nREADME\nconfiguration\nsomething\nelse\nentirely\n",
    "hf_hub_download_to_a_very_long_name_of_a_function_indeed npm_config_registry_and_so_on",
    "git@github.com:owner/repository.git http://localhost:8080/x?y=a@b mailto:a@b.c",
    "ssh://git@host:22/path  https://example.com:443/@scope/package",
    "the bearer of misunderstandings; Bearer <token>; Authorization: Bearer $TOKEN",
    "Authorization: required. authorization: none  x-api-key: undefined",
    "AKIA is how they begin; AKIAABCDEFGH234567012 is too long, AIzaShort too short",
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQswCQYD\n",
    "eyJust a word. eyJhbGciOiJIUzI1NiJ9 without dots is no token",
    "\x1b_Gf=100,a=T;" + base64.b64encode(bytes(range(256)) * 12).decode() + "\x1b\\",
    "\x1bPq#0;2;0;0;0" + "#1~~@@vv@@~~@@~~$#2??}}GG}}??}}??-" * 40 + "\x1b\\",
    "\x1b]1337;File=inline=1:" + base64.b64encode(b"\x89PNG\r\n\x1a\n" * 99).decode() + "\x07",
    "@relay:Bob please look at docs/patterns.md — it's “fine” 日本語 🎉",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_not_touched(text: str) -> None:
    assert redact(text) == text
    assert find(text) == []


@pytest.mark.parametrize(
    "cut", ["\x1b[1m", "\x1b[38;2;1;2;3m", "\r\n", " \r", "\r\n  ", "\x1b[7;1H", "\x1b[K\r\n"]
)
@pytest.mark.parametrize(
    ("prefix", "secret"), [TOKENS[0][:2], TOKENS[4][:2], TOKENS[11][:2]], ids=["sk", "ghp", "AKIA"]
)
def test_colours_and_a_break_inside_a_token(prefix: str, secret: str, cut: str) -> None:
    half = len(secret) // 2
    shown = f"see {prefix}{secret[:half]}{cut}{secret[half:]} there"
    hidden = f"see {prefix}{'*' * half}{cut}{'*' * (len(secret) - half)} there"
    assert redact(shown) == hidden


def test_a_colour_inside_the_prefix() -> None:
    assert redact(f"g\x1b[1mhp\x1b[m_{ALNUM[:36]}") == f"g\x1b[1mhp\x1b[m_{'*' * 36}"


def test_what_follows_a_whole_token_on_the_next_line_is_text() -> None:
    text = f"ghp_{ALNUM[:36]}\r\nhello there\r\nghp_{ALNUM[:36]}\r\n"
    assert redact(text) == f"ghp_{'*' * 36}\r\nhello there\r\nghp_{'*' * 36}\r\n"


def test_a_token_longer_than_what_is_kept_back_is_masked_to_its_end() -> None:
    secret = ALNUM * (3 * HELD_MAX // len(ALNUM))
    redactor = Redactor()
    text = f"sk-ant-{secret} and more"
    pieces = [redactor.feed(text[at : at + 1000]) for at in range(0, len(text), 1000)]
    assert "".join([*pieces, redactor.finish()]) == f"sk-ant-{'*' * len(secret)} and more"


def test_little_is_kept_back() -> None:
    redactor = Redactor()
    assert redactor.feed("a plain line\r\n$ ") == "a plain line\r\n$ "
    fed, out = 0, 0
    for piece in ["ghp_", *["A" * 999] * 40]:
        fed += len(piece)
        out += len(redactor.feed(piece))
        assert fed - out <= HELD_MAX + 1000


_ATOMS = [
    *(prefix + secret for prefix, secret, _ in TOKENS),
    *(prefix for prefix, _, _ in TOKENS),
    PEM,
    "https://me:hunter2@example.com",
    "sk-or-",
    "github_",
    "xoxe.xoxp-",
    *(
        "\x1b[1m",
        "\x1b[3;4H",
        "\x1b[",
        "\x1b",
        "\r\n",
        " \r",
        "  ",
        "\\n",
        "%3",
        "=",
        '"',
        ".",
        "-",
    ),
    "日本語",
]


@st.composite
def _texts(draw: st.DrawFn) -> str:
    pieces = []
    for atom in draw(st.lists(st.sampled_from(_ATOMS), max_size=8)):
        pieces.append(atom[: draw(st.integers(1, len(atom)))] if draw(st.booleans()) else atom)
    return "".join(pieces)


@settings(max_examples=300, deadline=None)
@given(_texts(), st.lists(st.integers(1, 60), min_size=1, max_size=10))
def test_where_the_stream_is_cut_does_not_matter(text: str, sizes: list[int]) -> None:
    redactor = Redactor()
    said, at, turn = "", 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        said += redactor.feed(text[at : at + size])
        at, turn = at + size, turn + 1
    said += redactor.finish()
    assert said == redact(text)


@settings(max_examples=300, deadline=None)
@given(_texts())
def test_only_secret_characters_change_and_twice_is_once(text: str) -> None:
    hidden = redact(text)
    assert len(hidden) == len(text)
    assert all(now in (was, "*") for was, now in zip(text, hidden, strict=True))
    places = find(text)
    assert all(start < end for start, end, _ in places)
    changed = {at for at, (was, now) in enumerate(zip(text, hidden, strict=True)) if was != now}
    assert changed <= {at for start, end, _ in places for at in range(start, end)}


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_any_text_keeps_its_length(text: str) -> None:
    assert len(redact(text)) == len(text)
