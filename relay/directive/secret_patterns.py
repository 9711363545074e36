"""Secret patterns: the token shapes that services publish, for :mod:`relay.directive.redact`.

Prefixes, alphabets and lengths are those that the services document or that secret scanners agree
on. A shape is only here if ordinary text is unlikely to have it: no "32 hex digits", no "password".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from relay.core.ids import RUN_TOKEN

_WORD = "A-Za-z0-9_-"
_ALNUM = "A-Za-z0-9"
_DOTTED = "A-Za-z0-9_.-"


@dataclass(frozen=True, slots=True)
class SecretShape:
    """A prefix and a run of characters behind it: at least ``least`` of them.

    ``exact``: just so many and no further one. ``whole``: what prefix and run together must match.
    """

    kind: str
    prefixes: tuple[str, ...]
    chars: re.Pattern[str]
    least: int
    exact: bool = False
    whole: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class SecretContext:
    """A secret that is known by what stands before it: the group ``s`` of ``full``.

    ``opening`` matches, up to the end of the text, whatever may still become ``full`` or a longer
    one. ``starts`` are the words at which one begins, in lower case.
    """

    kind: str
    starts: tuple[str, ...]
    full: re.Pattern[str]
    opening: re.Pattern[str]


def _run(kind: str, prefixes: str, chars: str, least: int, exact: bool = False) -> SecretShape:
    return SecretShape(kind, tuple(prefixes.split()), re.compile(f"[{chars}]+"), least, exact)


RUNS = (
    _run("anthropic-key", "sk-ant-", _WORD, 20),
    _run("openai-key", "sk-proj- sk-svcacct- sk-admin- sk-None-", _WORD, 20),
    _run("openrouter-key", "sk-or-v1-", _ALNUM, 32),
    _run("openai-key", "sk-", _ALNUM, 32),
    _run("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", _DOTTED, 36),
    _run("github-token", "github_pat_", "A-Za-z0-9_", 22),
    _run(
        "gitlab-token",
        "glpat- gldt- glrt- glptt- glcbt- glsoat- gloas- glimt- glagent- glft-",
        _DOTTED,
        20,
    ),
    _run("slack-token", "xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", _WORD, 10),
    _run("slack-token", "xoxe.xoxp- xoxe.xoxb-", _WORD, 10),
    _run("slack-webhook", "hooks.slack.com/services/", "A-Za-z0-9_/", 20),
    _run("aws-key-id", "AKIA ASIA ABIA ACCA", "A-Z0-9", 16, exact=True),
    _run("google-key", "AIza", _WORD, 35, exact=True),
    _run("google-key", "GOCSPX- ya29.", _DOTTED, 20),
    _run("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_", _ALNUM, 10),
    _run("stripe-key", "whsec_", "A-Za-z0-9+/=", 24),
    _run("npm-token", "npm_", _ALNUM, 36),
    _run("pypi-token", "pypi-Ag", _WORD, 50),
    _run("huggingface-token", "hf_", _ALNUM, 30),
    _run("groq-key", "gsk_", _ALNUM, 40),
    _run("xai-key", "xai-", _ALNUM, 40),
    _run("perplexity-key", "pplx-", _ALNUM, 40),
    _run("relay-token", RUN_TOKEN, "a-f0-9", 32),
    _run("replicate-token", "r8_", _ALNUM, 30),
    _run("vault-token", "hvs. hvb.", _WORD, 24),
    _run("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", "a-f0-9", 64),
    _run("age-key", "AGE-SECRET-KEY-1", "A-Z0-9", 50),
    SecretShape(
        "jwt",
        ("eyJ",),
        re.compile(f"[{_DOTTED}]+"),
        30,
        whole=re.compile(r"eyJ[\w-]{8,2000}\.[\w-]{0,8000}\.[\w-]{4}", re.ASCII),
    ),
)

_VALUE = "[A-Za-z0-9._~+/=-]"
VALUE_RUN = re.compile(f"{_VALUE}+")
_WITH_DIGIT = "(?=[A-Za-z._~+/=-]*[0-9])"
_GAP = "[ \t]{0,4}"
_HEADERS = "(?i:authorization|x-api-key)"
_SCHEMES = "(?i:basic|bearer|token|digest|apikey)"
_AWS = "(?i:aws_secret_access_key|aws_session_token|secretaccesskey)"
_AWS_VALUE = "[A-Za-z0-9/+=]"
_IS = f"[\"']?{_GAP}[:=]{_GAP}[\"']?"
_USER = r"[^\s/@:\"'<>\x00-\x20\x7f-\U0010ffff]{0,256}"
_PASSWORD = r"[^\s/@\"'<>\x00-\x20\x7f-\U0010ffff]"

CONTEXTS = (
    SecretContext(
        "bearer-token",
        ("bearer",),
        re.compile(rf"(?i:bearer)[ \t]{{1,4}}{_WITH_DIGIT}(?P<s>{_VALUE}{{16,}})"),
        re.compile(rf"(?i:bearer)(?:{_GAP}|[ \t]{{1,4}}{_VALUE}+)\Z"),
    ),
    SecretContext(
        "authorization",
        ("authorization", "x-api-key"),
        re.compile(
            rf"{_HEADERS}{_IS}"
            rf"(?:{_SCHEMES}[ \t]{{1,4}}(?P<s>{_VALUE}{{8,}})|{_WITH_DIGIT}(?P<t>{_VALUE}{{8,}}))"
        ),
        re.compile(
            rf"{_HEADERS}[\"']?{_GAP}(?:[:=]{_GAP}[\"']?{_VALUE}*(?:[ \t]{{1,4}}{_VALUE}*)?)?\Z"
        ),
    ),
    SecretContext(
        "aws-secret",
        ("aws_secret_access_key", "aws_session_token", "secretaccesskey"),
        re.compile(rf"{_AWS}{_IS}(?P<s>{_AWS_VALUE}{{40,}})"),
        re.compile(rf"{_AWS}[\"']?{_GAP}(?:[:=]{_GAP}[\"']?{_AWS_VALUE}*)?\Z"),
    ),
    SecretContext(
        "url-password",
        ("://",),
        re.compile(rf"://{_USER}:(?P<s>{_PASSWORD}{{1,512}})@"),
        re.compile(rf"://{_USER}(?::{_PASSWORD}{{0,512}})?\Z"),
    ),
)

#: A private key is masked from its header on: every run of so many of its characters.
PEM_START = "-----BEGIN "
PEM_HEADER = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
PEM_OPENING = re.compile(r"-----BEGIN [A-Z0-9 ]{0,100}-{0,4}\Z")
PEM_STEP = re.compile(r"-----END|[A-Za-z0-9+/=]{16,}")
PEM_LINE = re.compile(r"[A-Za-z0-9+/=]+")
PEM_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-"
#: ... until its end, or for so many characters where that does not come.
PEM_MAX = 16 * 1024


@cache  # compiled on use: most sessions start without a secret
def whole_text() -> re.Pattern[str]:
    """Every token of RUNS, and private keys, in a text that no screen has broken.

    A token is taken as far as it goes, and what may be none is looked at for some hundred
    characters: no text takes longer than its length allows.
    """
    found = []
    for shape in RUNS:
        prefixes = "|".join(map(re.escape, sorted(shape.prefixes, key=len, reverse=True)))
        run = f"{shape.chars.pattern[:-1]}{{{shape.least}}}"
        run += f"(?!{shape.chars.pattern[:-1]})" if shape.exact else shape.chars.pattern[:-1] + "*"
        found.append(f"(?:{prefixes})(?:{run})" if shape.whole is None else _JWT)
    tokens = "|".join(sorted(found, key=len, reverse=True))
    return re.compile(
        f"(?<![A-Za-z0-9_])(?:{tokens})|{PEM_HEADER.pattern}[A-Za-z0-9+/=\\s]*", re.ASCII
    )


_JWT = r"eyJ[\w-]{8,256}+\.[\w-]{2,}+\.[\w-]{4,}"
#: How a find of ``whole_text`` begins; the shortest of these stand in each text that may have one.
LITERALS = (*(prefix for shape in RUNS for prefix in shape.prefixes), PEM_START)
_SHORTEST = [one for one in LITERALS if not any(o in one for o in LITERALS if o != one)]


def _by_sign(needles: Iterable[str]) -> dict[str, list[str]]:
    """By a character that each of them has: to look for one character is many times as fast."""
    groups: dict[str, list[str]] = {}
    for needle in needles:
        groups.setdefault(next((sign for sign in "-_JA." if sign in needle), ""), []).append(needle)
    return groups


NEEDLES = _by_sign(_SHORTEST)


def beginnings(words: Iterable[str]) -> frozenset[str]:
    """Every proper beginning of every word."""
    return frozenset(word[:end] for word in words for end in range(1, len(word)))


#: Literal starts, the longest first, so that ``sk-ant-`` is not taken for ``sk-``.
BY_PREFIX = {prefix: shape for shape in RUNS for prefix in shape.prefixes}
BY_START = {start: shape for shape in CONTEXTS for start in shape.starts}
#: No token begins in the middle of a word; what looks like one may be an escape (``\n``, ``%3D``).
_BOUNDARY = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
#: So many characters before a place decide whether a token may begin there.
BEHIND = 3
_PREFIXES = "|".join(map(re.escape, sorted(BY_PREFIX, key=len, reverse=True)))
_WORDS = "|".join(map(re.escape, sorted(set(BY_START) - {"://"}, key=len, reverse=True)))
TRIGGER = re.compile(rf"://|{PEM_START}|{_BOUNDARY}(?:{_PREFIXES}|(?i:{_WORDS}))")
TRIGGER_MAX = max(map(len, [*BY_PREFIX, *BY_START, PEM_START]))


#: The characters of triggers, the rarest in the output of programs first.
_RARE = "_QZJXK/-VWY.BGHPMF:CUDLAINSRTOE1839 "


def _rarest(word: str) -> int:
    return min(range(len(word)), key=lambda at: _RARE.find(word[at].upper()))


def _anchors(words: Iterable[str], any_case: Iterable[str]) -> re.Pattern[str]:
    """What every one of the words holds: its rarest character, with the others around it.

    Every alternative begins with another character, which the regular expression engine is fast at;
    what stands around it is grouped so that few of them are tried.
    """
    ahead: dict[tuple[str, str, str], list[str]] = {}
    for word, flag in [*((word, "") for word in words), *((word, "i") for word in any_case)]:
        at = _rarest(word)
        for char in {word[at].lower(), word[at].upper()} if flag else {word[at]}:
            ahead.setdefault((char, flag, word[: at + 1]), []).append(re.escape(word[at + 1 :]))
    behind: dict[tuple[str, str, int, str], list[str]] = {}
    for (char, flag, before), after in ahead.items():
        key = (char, flag, len(before), "|".join(after))
        behind.setdefault(key, []).append(re.escape(before))
    looks: dict[str, list[str]] = {}
    for (char, flag, length, after_it), before_it in behind.items():
        back = f"(?<=(?{flag}:{'|'.join(before_it)}))" if length > 1 else ""
        looks.setdefault(char, []).append(back + f"(?=(?{flag}:{after_it}))")
    return re.compile("|".join(f"{re.escape(c)}(?:{'|'.join(them)})" for c, them in looks.items()))


#: A quick search: near every trigger there is one of these, within TRIGGER_MAX characters.
ANCHOR = _anchors([*BY_PREFIX, PEM_START, "://"], set(BY_START) - {"://"})
AT_BOUNDARY = re.compile(_BOUNDARY)
UNFINISHED = beginnings([*BY_PREFIX, PEM_START])
UNFINISHED_WORDS = beginnings(BY_START)
UNFINISHED_MAX = max(map(len, UNFINISHED | UNFINISHED_WORDS))
