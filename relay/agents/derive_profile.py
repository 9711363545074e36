"""Derives a profile from recorded pictures of a program that a person has used for a minute. Pure.

A file of its own: it is tested by itself, on recordings. What is known of them is the draft that
the person typed; everything else is read off what changed around it: where the draft stood is the
input line, what came and went before the answer was complete says that a turn runs. What does not
read the pictures themselves right is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from relay.agents.profile import Profile, ProfileError, parse_profile

#: Seconds that a picture must stand to be one of a program at rest.
STANDS = 0.4
#: Rows beside the input line in which its box is looked for.
_BESIDE = 3
_LINES = "─━═╌╍┄┅▔▁▀▄▂_╭╰┌└╔╚╹┃-"
_RULE = re.compile(rf"(\s*)([{_LINES}][{_LINES[:-5]}-]{{7,}})")
_SIDE = re.compile(r"\s*[│┃║|▌▎▏]")
_MARK = re.compile(r"(\s*)([^\w\s\"'(\[`#<@]{1,2})(\s+)(?=\S)")
_SPINNER = re.compile(r"[⠁-⣿]")
#: A row that draws how the time goes by.
_MOVES = re.compile(r"[⠁-⣿✻✽✶✳✢◐◓◑◒]|\.\.\.|…|\d s\b|\ds\b")
#: What says that a turn runs, in most programs; else the longest words of such a row.
_STOPS = re.compile(
    r"(?i)(?:press )?\b(?:esc|ctrl\W?c|\^c)\b[^.,|()·•]{0,12}(?:interrupt|cancel|stop|abort)"
)
#: What says that a question stands.
_ASKS = re.compile(
    r"(?i)\[y/n\S*|\(y/n\)|\b(?:esc|enter|return)\b (?:to )?\w+|↑|↓ |\bdo you want\b|\ballow\b"
)
#: Marks and signs around an answer of one word.
_ALONE = re.compile(r"^\W+|\W+$")
_WORD = re.compile(r"[^\W\d_][\w' ]{3,}[^\W\d_]")


@dataclass(frozen=True, slots=True)
class Picture:
    """A screen as it stood for ``lasted`` seconds."""

    rows: tuple[str, ...]
    title: str = ""
    lasted: float = 0.0
    #: The program takes pastes then.
    pastes: bool = False
    #: The person has typed since the last Enter.
    typed: bool = False


def derive(name: str, pictures: Sequence[Picture], draft: str, answer: str = "") -> str:
    """The text of a profile of the program ``name``, with what was seen as its comments.

    ``draft`` is what was typed, and then submitted; ``answer`` the one word that was the answer,
    where it is known.
    """
    pictures = [replace(one, rows=tuple(map(_one_line, one.rows))) for one in pictures]
    lines = [f"# {name}, as relay agent learn saw it. docs/profiles.md tells the form."]
    at = next((n for n, one in enumerate(pictures) if _place(one.rows, draft)), None)
    if at is None:
        return "\n".join([*lines, "# What you typed was not seen on its screen.", ""])
    place = _place(pictures[at].rows, draft)
    end = at
    while end < len(pictures) and _place(pictures[end].rows, draft) == place:
        end += 1  # where a program prints, it stands there after it was submitted, too
    series = list(takewhile(lambda one: one.typed, pictures[at:end])) or pictures[at:end]
    written = max(series, key=lambda one: one.lasted)
    before = [one for one in pictures[:at] if not _place(one.rows, draft[:4])]
    empty = next((one for one in reversed(before) if one.lasted >= STANDS), None)
    later = pictures[pictures.index(written) + 1 :]
    found = _input_line(name, [empty, *later], written, draft) if empty else None
    if empty is None or found is None:
        lines.append("# Its input line could not be told from the rest of the screen.")
        return "\n".join([*lines, *_takes(written), ""])
    text, profile = found
    rests = [n for n, one in enumerate(later) if _is_at_rest(profile, one)]
    lines.append("# Seen empty: " + _input_row(empty, profile))
    lines += ["# Seen with a draft: " + _input_row(written, profile), *text]
    if not rests:
        lines.append("# After the answer the input line was not seen again.")
        return "\n".join([*lines, *_takes(written), ""])
    answered = [n for n in rests if answer and _told(later[n], written, answer)]
    at = (answered or rests[-1:])[0]
    still = [empty, written, later[at]]
    lines += _busy(later[:at], still)
    lines += _dialog(later[at + 1 :], profile, still)
    lines += _screen(later[at], written, draft, answer)
    return "\n".join([*lines, *_takes(written), ""])


# -- the input line


def _input_line(
    name: str, others: Sequence[Picture], written: Picture, draft: str
) -> tuple[list[str], Profile] | None:
    """The lines of the first form that reads the pictures right, and its profile.

    The first of ``others`` is one with nothing in it.
    """
    empty = others[0]
    for fields in _forms(written.rows, empty.rows, draft):
        lines = ["input:", *(f"  {key}: {_quoted(value)}" for key, value in fields.items())]
        profile = _read(name, lines)
        if profile is None or profile.composer(written.rows) != "draft":
            continue
        shown = [_shown(profile, one) for one in others if one.lasted >= STANDS and not one.typed]
        if shown[0] is None:
            continue
        # What a program suggests between quotation marks is another thing each time.
        literal = [re.sub('"[^"]*"', '"[^"]*"', _literal(one)) for one in shown if one]
        if literal:
            lines.append(f"  placeholder: [{', '.join(map(_quoted, dict.fromkeys(literal)))}]")
            profile = _read(name, lines)
        states = [profile.composer(one.rows) for one in (empty, written)] if profile else []
        if profile is not None and states == ["empty", "draft"]:
            return lines, profile
    return None


def _forms(rows: Sequence[str], empty: Sequence[str], draft: str) -> Iterator[dict[str, str]]:
    """What may be said of the input line where ``draft`` stands, the most telling first."""
    place = _place(rows, draft)
    assert place is not None  # the caller has found it
    at, column = place
    prefix = rows[at][:column]
    side = _SIDE.match(prefix)
    mark = prefix.rstrip()
    above = _nearest_rule(rows, at, -1)
    below = _nearest_rule(rows, at, 1)
    # A box may stand elsewhere at the start than in a conversation; a mark alone must be exact.
    words = mark.lstrip() if above is not None or below is not None else mark
    indent = r"\s*" if words != mark else ""
    prompt = {"prompt": indent + _literal(words) + r"(?:\s|$)"}
    if not mark or _is_side(mark):
        prompt = {}
    edges: dict[str, str] = {}
    if above is not None:
        edges["above"] = _rule(rows[above])
        if at - above > 1:
            edges["above_within"] = str(at - above)
    if side is not None and (mark or above is None):
        edges["side"] = r"\s*" + re.escape(side[0].strip())
    if below is not None:
        edges["below"] = _rule(rows[below])
        last = rows[below - 1]
        if below - at > 1 and last.strip(" │┃║|") and last in empty:
            yield {**prompt, **edges, "status": r"\s*\S"}
    elif at + 1 < len(rows) and rows[at + 1].strip() and rows[at + 1] in empty:
        edges["below"] = _literal(rows[at + 1][:16].rstrip())
    if prompt or edges:
        yield {**prompt, **edges}
    if prompt:
        yield {**prompt, **{key: edges[key] for key in ("below",) if key in edges}}
        yield prompt


def _is_side(mark: str) -> bool:
    return _SIDE.fullmatch(mark) is not None


def _nearest_rule(rows: Sequence[str], at: int, step: int) -> int | None:
    for n in range(at + step, at + step * (_BESIDE + 1), step):
        if 0 <= n < len(rows) and _RULE.match(rows[n]):
            return n
    return None


def _rule(row: str) -> str:
    found = _RULE.match(row)
    assert found is not None  # the caller has found it
    indent = r"\s*" if found[1] else ""
    drawn = "".join(dict.fromkeys(found[2][:8]))
    return f"{indent}{drawn if len(drawn) == 1 else f'[{re.escape(drawn)}]'}{{8,}}"


def _shown(profile: Profile, picture: Picture) -> str | None:
    """What stands in the input line; None where there is none."""
    line = profile.input
    found = line.find(picture.rows) if line is not None else None
    if line is None or found is None:
        return None
    first, end = found
    rows = picture.rows[first : end - (line.status is not None)]
    return "\n".join(map(line.text, rows)).strip("\n").rstrip()


def _is_at_rest(profile: Profile, picture: Picture) -> bool:
    return picture.lasted >= STANDS and profile.composer(picture.rows) == "empty"


# -- what else was seen


def _busy(passing: Sequence[Picture], still: Sequence[Picture]) -> list[str]:
    """What came and went while the answer was made."""
    kept = {row for one in still for row in one.rows}
    gone = [row for one in passing for row in one.rows if row.strip() and row not in kept]
    text = "\n".join(kept)
    lines = []
    stops = next((found[0] for row in gone if (found := _STOPS.search(row))), "")
    moving = [row for row in gone if _MOVES.search(row)]
    words = [found[0].strip() for row in moving for found in _WORD.finditer(row)]
    word = max([stops] if stops else [one for one in words if one not in text], key=len, default="")
    if word:
        row = next(row for row in gone if word in row)
        pattern = _literal(word)
        if not stops and (mark := _SPINNER.search(row[: row.find(word)])):
            pattern = rf"[⠁-⣿]{' ' * (row.find(word) - mark.end())}{pattern}"
        lines += [f"# While it worked: {row.strip()[:80]}", f"busy: [{_quoted(pattern)}]"]
    titles = {one.title[:1] for one in passing if one.title} - {one.title[:1] for one in still}
    if titles and all(map(_SPINNER.match, titles)):
        lines.append("busy_title: '[⠁-⣿]'")
    return lines


def _dialog(later: Sequence[Picture], profile: Profile, still: Sequence[Picture]) -> list[str]:
    """What stood where the input line had been."""
    kept = {row for one in still for row in one.rows}
    for one in later:
        if one.lasted < STANDS or profile.composer(one.rows) == "empty":
            continue
        for row in reversed([row for row in one.rows if row not in kept]):
            if (found := _ASKS.search(row)) and not _STOPS.search(row):
                seen = f"# A question, as it seems: {row.strip()[:80]}"
                return [seen, f"dialog: [{_quoted(_literal(found[0]))}]"]
    return []


def _screen(rest: Picture, written: Picture, draft: str, answer: str) -> list[str]:
    """The marks before the person's words and before the agent's."""
    place = _place(rest.rows, draft)
    if place is None:
        return []
    lines = []
    if mark := rest.rows[place[0]][: place[1]].rstrip():
        lines.append("  person: " + _quoted(_literal(mark) + r"(\s|$)"))
    below = [row for row in rest.rows[place[0] + 1 :] if row.strip() and row not in written.rows]
    told = _told(rest, written, answer) if answer else below
    bullet = _MARK.match(told[0]) if told else None
    if bullet and not _is_side(bullet[0].rstrip()):
        pattern = rf"({bullet[1]}){re.escape(bullet[2])}(\s+)(?=\S)"
        lines.append("  bullet: " + _quoted(pattern))
    seen = [f"# Its words: {told[0].strip()[:80]}"] if told else []
    return [*seen, "screen:", *lines] if lines else []


def _told(picture: Picture, written: Picture, answer: str) -> list[str]:
    """The rows that hold the answer, and are none of the person's."""
    new = [row for row in picture.rows if row not in written.rows]
    return [row for row in new if _ALONE.sub("", row).lower() == answer.lower()]


def _takes(written: Picture) -> list[str]:
    if written.pastes:
        return ["# It takes pastes."]
    return ["# It turned on no bracketed paste: one line is typed at a time."]


# -- writing


def _one_line(row: str) -> str:
    """A row without what ends a line in YAML: none of it must become a part of the profile."""
    return " ".join(row.splitlines())


def _read(name: str, lines: Sequence[str]) -> Profile | None:
    try:
        return parse_profile("\n".join(lines), f"{name}.yaml")
    except ProfileError:
        return None


def _place(rows: Sequence[str], text: str) -> tuple[int, int] | None:
    """The lowest row in which ``text`` stands, and its column."""
    found = [(n, row.find(text)) for n, row in enumerate(rows) if text in row]
    return found[-1] if found else None


def _input_row(picture: Picture, profile: Profile) -> str:
    found = profile.input.find(picture.rows) if profile.input else None
    return picture.rows[found[0]].strip()[:80] if found else ""


def _literal(text: str) -> str:
    """A pattern of just this text; the width of its indent is kept."""
    return re.escape(text).replace(r"\ ", " ").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return text if text.isdecimal() else "'" + text.replace("'", "''") + "'"
