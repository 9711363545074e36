"""What the console's screen looks like: its state and a size in, rows of styled text out. Pure.

What is shown says itself in words or signs, never by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from relay.core.visible import (
    NEEDY,
    age,
    cells,
    columns_of,
    cut,
    tone,
    visible,
    visible_lines,
    without_gaps,
)
from relay.features.console.console_state import ConsoleState, TrafficLine
from relay.features.console.console_words import OWN
from relay.protocol.item_ops import waiting_words
from relay.screen.dialogs import ABOVE
from relay.ui.row_view import choices_of, who_asks

Json = dict[str, Any]

#: From this many columns on, agents and traffic stand side by side; and the screen beside both.
WIDE, WIDEST = 70, 130
#: In fewer rows than these an item or a screen is shown alone.
LOW = 12
#: Rows of a message to the person, or from them, that are shown without ``whole``.
OWN_ROWS = 6
#: Characters of one item that are shown.
ITEM_SHOWN = 50_000
#: Rows and columns of a screen beyond these are left out.
ROWS_MAX = COLUMNS_MAX = 1000
#: Pieces of one row of the screen: (style, text).
Row = list[tuple[str, str]]

#: In the style of a piece: a click on it chooses something. Its number follows.
_LINK = "class:link-"
#: The style of the choice that is typed, or that has the focus.
_MARKED = "class:chosen"
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "gray")
_BRIGHT = ("brightblack", *(f"bright{name}" for name in _COLOURS[1:7]), "white")

KEYS = (
    ("?", "help"),
    ("↑↓", "agent"),
    ("Enter", "open"),
    ("^R", "answer"),
    ("/", "command"),
    ("^G", "filter"),
    ("^F", "find"),
    ("^T", "screen"),
    ("^X", "full text"),
    ("^O", "this agent"),
    ("PgUp", "older"),
    ("^C", "leave"),
)
#: While an item is answered, which says itself how; and in the help.
_KEYS_ITEM = (
    ("^R", "next"),
    ("^T", "its screen"),
    ("/", "command"),
    ("?", "help"),
    ("^C", "leave"),
)
_KEYS_IN_HELP = (("↑↓", "scroll"), ("q", "back"))
_KEYS_HELP = (
    ("↑ ↓", "choose an agent: what you type goes to it; or an answer"),
    ("Enter", "send what is typed; or else open what the agent asks, or its screen"),
    ("^R", "answer what waits for you; again: the next"),
    ("^T", "the screen of the chosen agent"),
    ("← →", "at an empty line: move a screen that is wider than its pane"),
    ("^G", "filter: only the agents that have what you type"),
    ("^O", "only the messages of the chosen agent"),
    ("^F", "search all messages"),
    ("^X", "messages in full, or a line of each"),
    ("PgUp PgDn", "older and newer messages; rows of a screen; the wheel, too"),
    ("/ or :", "a command; Tab completes it, and names and channels"),
    ("^P ^N", "what you typed before"),
    ("Esc", "back, step by step, to the newest messages"),
    ("q Enter", "leave; agents keep running (^C ^D: empty the line, then leave)"),
    ("^Z", "to the shell; fg comes back"),
    ("? F1", "this help (? at an empty line); q, Esc and ? close it"),
)


@dataclass(frozen=True)
class Signs:
    """The signs of a terminal's encoding."""

    seen: str = "✓"
    submitted: str = "»"
    delivering: str = "›"
    queued: str = "·"
    held: str = "‖"
    failed: str = "✗"
    to: str = "→"
    chosen: str = "▸"
    across: str = "─"
    down: str = "│"
    more: str = "…"
    between: str = "·"

    def of(self, state: str) -> str:
        if state == "cancelled":
            return self.failed
        return str(getattr(self, "queued" if state == "waiting" else state, self.queued))


UNICODE = Signs()
ASCII = Signs("+", ">", "~", ".", "=", "x", "->", ">", "-", "|", "~", "|")


@dataclass(frozen=True)
class Painted:
    """The screen above the prompt. ``seen``: the ids of messages to the person that stand on it;
    ``at_end``: whether there is nothing more to scroll to, down and up; ``links``: what a click
    chooses, see ``link_at``; ``read``: whether an item's words stand there to their end, or were
    scrolled away; ``marked``: whether its choice that has the focus is in sight; ``pan_max`` and
    ``lift_max``: columns and rows of the agent's screen that the pane has no room for;
    ``page_rows``: rows of a page of the help or of an item, 0 where there are no pages;
    ``above`` and ``below``: the state's ``page`` and ``scrolled``, no farther than there is
    something."""

    rows: list[Row]
    seen: tuple[str, ...]
    at_end: tuple[bool, bool]
    links: tuple[tuple[str, str], ...]
    read: bool = True
    marked: bool = True
    pan_max: int = 0
    lift_max: int = 0
    page_rows: int = 0
    above: int = 0
    below: int = 0

    def link_at(self, x: int, y: int) -> tuple[str, str]:
        """What a click chooses there: "agent" and its name, "item" and its id, "choice" and its
        key; or two "". A link begins with a piece and goes on to its pane's end."""
        link = "", ""
        for style, text in self.rows[y] if 0 <= y < len(self.rows) else ():
            if style == "class:rule":
                link = "", ""
            elif _LINK in style:
                link = self.links[int(style.rpartition(_LINK)[2])]
            x -= columns_of(text)
            if x < 0:
                break
        return link


def paint(
    state: ConsoleState,
    width: int,
    height: int,
    now_ms: int,
    signs: Signs = UNICODE,
    zone: int = 0,
) -> Painted:
    """``height`` rows of at most ``width`` columns; times are ``zone`` seconds east of UTC."""
    return _View(state, width, height, now_ms, signs, zone).painted()


class _View:
    def __init__(
        self,
        state: ConsoleState,
        width: int,
        height: int,
        now_ms: int,
        signs: Signs,
        zone: int,
    ) -> None:
        self.state = state
        self.width = width
        self.height = height
        self.now_ms = now_ms
        self.signs = signs
        self.zone = zone
        self.seen: list[str] = []
        self.at_end = (False, True)
        self.read = self.marked = True
        self.pan_max = self.lift_max = self.page_rows = 0
        self.above, self.below = state.page, state.scrolled
        self.links: list[tuple[str, str]] = []
        #: Stands for the older of many messages in a row between the same two that do not go on.
        text = f"  {signs.more} and others before it (^X shows each)"
        self.earlier: Row = [("class:dim", cut(text, width, ""))]

    def painted(self) -> Painted:
        state = self.state
        items = [] if state.answering in state.items or state.beside == "help" else self._items()
        bottom = self._bottom()
        tiny = state.answering in state.items and self.height <= LOW // 2
        head = [] if tiny else [self._header()]
        room = max(1, self.height - len(head) - len(items) - len(bottom))
        if self.state.beside == "help":
            middle = self._help(room)
        elif room < LOW and (beside := self._beside(self.width)) is not None:
            middle = [self._ruled(beside[0])] if room >= LOW // 2 else []
            middle += self._filled(self._page(beside, room - len(middle)), room - len(middle))
        elif self.width >= WIDE:
            middle = self._wide(room)
        else:
            middle = self._narrow(room)
        rows = [*head, *middle[:room], *items, *bottom]
        seen, links = tuple(self.seen), tuple(self.links)
        item = self.read, self.marked
        hidden = self.pan_max, self.lift_max, self.page_rows, self.above, self.below
        return Painted(rows[: self.height], seen, self.at_end, links, *item, *hidden)

    def _linked(self, rows: list[Row], kind: str, name: str) -> list[Row]:
        """The rows, on which a click chooses this."""
        self.links.append((kind, name))
        mark = f" {_LINK}{len(self.links) - 1}"
        return [[(row[0][0] + mark, row[0][1]), *row[1:]] for row in rows if row]

    def _clock(self, ms: int) -> str:
        at = ms // 1000 + self.zone
        return f"{at // 3600 % 24:02}:{at // 60 % 60:02}"

    # -- the parts

    def _header(self) -> Row:
        state = self.state
        live = [row for row in state.agents.values() if row["state"] != "gone"]
        parts = [f"{len(live)} agent{'' if len(live) == 1 else 's'}"]
        if state.wanted:
            listed = [row for row in state.listed() if row["state"] != "gone"]
            parts = [f"{len(listed)} of {parts[0]}: {state.wanted}"]
        parts += [waiting_words(state.items.values())] if state.items else []
        parts += [f"{len(state.unread)} unread"] if state.unread else []
        for name in (*NEEDY, "busy"):
            many = sum(row["state"] == name for row in live)
            parts += [f"{many} {name}"] if many else []
        right = f"{state.host} {self._clock(self.now_ms)}"
        if not state.connected:
            right = "no broker: trying again"
        left = " relay  " + "  ".join(parts)
        if columns_of(left) + len(right) + 3 > self.width:
            left = " " + ", ".join(parts)
            right = right if not state.connected else self._clock(self.now_ms)
        return [("class:header", self._sides(left, right + " ", self.width))]

    def _bottom(self) -> list[Row]:
        state = self.state
        keys: Row = []
        room = self.width
        if self.height < LOW and state.answering in state.items and not state.notice:
            return []  # the rows are for the item
        shown_keys = _KEYS_ITEM if state.answering in state.items else KEYS
        for key, meaning in _KEYS_IN_HELP if state.beside == "help" else shown_keys:
            shown = "Up/Dn" if key == "↑↓" and self.signs is ASCII else key
            need = len(shown) + len(meaning) + 3
            if need > room:
                break
            room -= need
            keys += [("class:key", f" {shown}"), ("class:hint", f" {meaning} ")]
        if not state.notice:
            return [keys]
        style = "class:failed" if state.failed else "class:notice"
        mark = "! " if state.failed else ""
        notice_rows: list[Row] = [
            [(style, row)] for row in wrapped(mark + state.notice, self.width)[:3]
        ]
        return [*notice_rows, keys] if self.height >= 18 else notice_rows

    def _items(self) -> list[Row]:
        """What waits for the person, a row of each: at most a sixth of the screen."""
        items = list(self.state.items.values())
        most = max(1, self.height // 6)
        rows: list[Row] = []
        for item in items[: most if len(items) <= most else max(1, most - 1)]:
            tail = f" [{self._signed(choices_of(item))}]"
            head = f"? {self._signed(who_asks(item))}: "
            room = self.width - columns_of(head) - columns_of(tail)
            if room < 12:
                tail, room = "", self.width - columns_of(head)
            text = head + self._gist(item["what"], max(1, room)) + tail
            style = "class:item.now" if item["id"] == self.state.answering else "class:item"
            rows += self._linked([[(style, self._cut(text, self.width))]], "item", item["id"])
        left = len(items) - len(rows)
        if left > 0 and most > 1:
            more = f"? and {left} more: ^R, or /items"
            rows += self._linked([[("class:item", more)]], "item", items[len(rows)]["id"])
        return rows

    def _gist(self, what: str, room: int) -> str:
        """The beginning of what an item asks; its end where the beginning may be missing."""
        if not what.startswith(ABOVE):
            return self._cut(visible(" ".join(what[: self.width * 4].split())), room)
        text = visible(" ".join(what.removeprefix(ABOVE)[-self.width * 4 :].split()))
        short = text[-room:]
        while short and columns_of(short) > room - (short != text):
            short = short[1:]
        return short if short == text else self.signs.more + short

    def _signed(self, text: str) -> str:
        """A text of relay's own in the signs of the terminal."""
        return text.replace("→", self.signs.to).replace("·", self.signs.between)

    def _wide(self, room: int) -> list[Row]:
        left = max(26, min(44, self.width // 4))
        right = self.width - left - 1
        wide = self.width >= WIDEST
        far = max(right // 2, min(right - 60, 120)) if wide else right
        beside = self._beside(far if wide or self.state.answering else self.width)
        title = [("class:rule", self._rule("agents", left) + self.signs.across)]
        if beside is not None and wide:
            near = right - far - 1
            names, lines = self._agents(left, room - 1), self._traffic(near, room - 1)
            shown = self._page(beside, room - 1)
            title.append(("class:rule", self._rule(self._title(), near) + self.signs.across))
            title.append(("class:rule", self._rule(beside[0], far)))
            return [
                title,
                *self._side_by_side(room - 1, (names, left), (lines, near), (shown, far)),
            ]
        title.append(("class:rule", self._rule(self._title(), right)))
        if beside is not None and not beside[2]:
            # A screen is as wide as its agent's terminal: it gets all columns, below both.
            above, below = self._halves(beside, room - 2)
            panes = (self._agents(left, above), left), (self._traffic(right, above), right)
            lower = self._filled(self._page(beside, below), below)
            return [title, *self._side_by_side(above, *panes), self._ruled(beside[0]), *lower]
        names = self._agents(left, room - 1)
        if beside is None:
            lines = self._traffic(right, room - 1)
        else:
            above, below = self._halves(beside, room - 2)
            lines = self._filled(self._traffic(right, above), above)
            lines.append([("class:rule", self._rule(beside[0], right))])
            lines += self._page(beside, below)
        return [title, *self._side_by_side(room - 1, (names, left), (lines, right))]

    def _narrow(self, room: int) -> list[Row]:
        beside = self._beside(self.width)
        if beside is not None:
            above, below = self._halves(beside, room - 2)
            lines = self._filled(self._traffic(self.width, above), above)
            shown = self._filled(self._page(beside, below), below)
            return [self._ruled(self._title()), *lines, self._ruled(beside[0]), *shown]
        names = self._agents(self.width, max(2, room * 2 // 5))
        left = room - len(names) - 1
        lines = self._filled(self._traffic(self.width, left), left)
        return [*names, self._ruled(self._title()), *lines]

    def _halves(self, beside: tuple[str, list[Row], int], room: int) -> tuple[int, int]:
        """Rows of the traffic and of what stands below it: an item gets what it needs."""
        below = max(1, room * 3 // 5)
        if beside[2]:
            below = max(1, min(len(beside[1]), room - 2))
        return max(0, room - below), below

    def _title(self) -> str:
        state = self.state
        if state.found is not None:
            return f"{len(state.found)} found: {state.searched} (Esc: back)"
        of = f" of {state.chosen}" if state.only_chosen and state.chosen else ""
        if state.until is not None:
            newer = f", {state.newer()} newer" if state.newer() else ""
            return f"older traffic{of}{newer} (Esc: newest)"
        return f"traffic{of}"

    def _agents(self, width: int, height: int) -> list[Row]:
        """The agents, with the chosen one in sight; below, where there is room, those elsewhere."""
        rows = self._agents_here(width, height)
        far = [self._elsewhere(*one, width) for one in self.state.elsewhere]
        room = height - len(rows) - 1
        if not far or room < 1:
            return rows
        if len(far) > room:
            hidden = len(far) - room + 1
            far = [*far[: room - 1], [("class:dim", f"  {hidden} more: relay agents")]]
        return [*rows, [("class:rule", self._rule("elsewhere", width))], *far]

    def _elsewhere(self, name: str, away_ms: int | None, width: int) -> Row:
        away = "" if away_ms is None else "away"
        if away_ms:
            away += f" {age(self.now_ms - away_ms)}"
        return [("class:dim", self._sides(f" {name}", away, width))]

    def _agents_here(self, width: int, height: int) -> list[Row]:
        blocks = [
            (row["name"], self._agent(row, width, height)) for row in self.state.listed(self.now_ms)
        ]
        if not blocks:
            text = (
                f" none has {self.state.wanted}; Esc: all" if self.state.wanted else " nobody yet"
            )
            return [[("class:dim", self._cut(text, width))]]
        sizes = [len(rows) for _, rows in blocks]
        first, last = 0, len(blocks)
        if sum(sizes) > height:
            first = next((n for n, (name, _) in enumerate(blocks) if name == self.state.chosen), 0)
            last = first + 1
            while first > 0 and sum(sizes[first - 1 : last]) < height * 2 // 3:
                first -= 1
            while last < len(blocks) and sum(sizes[first : last + 1]) < height:
                last += 1
            while first > 0 and sum(sizes[first - 1 : last]) < height:
                first -= 1
        shown = [
            row for name, rows in blocks[first:last] for row in self._linked(rows, "agent", name)
        ]
        hidden = len(blocks) - (last - first)
        if hidden:
            shown = [*shown[: height - 1], [("class:dim", f"  {hidden} more")]]
        return shown

    def _agent(self, row: Json, width: int, height: int) -> list[Row]:
        state = visible(str(row["state"]))
        chosen = row["name"] == self.state.chosen
        since = age(self.now_ms - (row.get("since_ms") or self.now_ms))
        right = f"{state} {since:>3}"
        unread = f" ({row['unread']})" if row["unread"] else ""
        name = self._cut(row["name"], max(3, width - len(right) - len(unread) - 2))
        mark = self.signs.chosen if chosen else " "
        left = f"{mark}{name}{unread}"
        room = max(1, width - columns_of(left) - len(right))
        style = f"class:agent.{tone(state)}"
        tight = len(self.state.agents) * 2 > height
        beside = self._cut(f" {row['reason']}", room - 1) if tight and room > 12 else ""
        pad = beside + " " * (room - columns_of(beside))
        rows: list[Row] = [
            [("class:chosen" if chosen else "", left), ("class:dim", pad), (style, right)]
        ]
        if row["reason"] and not beside and (state in NEEDY or chosen or not tight):
            rows.append([(style, self._cut(f"   {row['reason']}", width))])
        if chosen and height > 8:
            home = str(row.get("cwd") or "").rsplit("/", 1)[-1]
            machine = visible(str(row.get("machine") or self.state.host))
            joined = [*(row.get("roles") or ()), *(row.get("channels") or ())]
            about = " ".join(filter(None, (row.get("kind"), home, f"@{machine}", *joined)))
            rows.append([("class:dim", self._cut(f"   {visible(about)}", width))])
        return rows

    def _traffic(self, width: int, height: int) -> list[Row]:
        """The newest rows that fit, the oldest first."""
        need = self.state.scrolled + height
        rows: list[Row] = []  # the newest first
        newer: TrafficLine | None = None
        why = ""
        each = self.state.whole or self.state.found is not None
        for line in self.state.traffic():
            before, why = why, line.why()
            same = newer is not None and bool(why) and why == before
            if newer and same and not each and (line.sender, line.to) == (newer.sender, newer.to):
                if rows[-1] is not self.earlier:
                    rows.append(self.earlier)
                continue
            newer = line
            if len(rows) >= need:
                self.at_end = (False, False)
                break
            if line.id in self.state.unread and len(rows) >= self.state.scrolled:
                self.seen.append(line.id)
            # One reason for many messages in a row stands below the newest of them.
            if why and not same:
                rows.append([("class:warn", self._cut(f"  ! {why}", width))])
            rows += reversed(self._line(line, width))
        if not rows:
            text = " nothing found" if self.state.found is not None else " nothing said yet"
            if not self.state.agents:
                text += ".\nStart an agent in another terminal: relay wrap --name Bob -- claude"
                text += "\nOr without one, from here: /spawn Bob -- claude"
            return [[("class:dim", row)] for row in wrapped(text, width, indent=" ")][:height]
        first = self.below = min(self.state.scrolled, max(0, len(rows) - height))
        return rows[first : first + height][::-1]

    def _line(self, line: TrafficLine, width: int) -> list[Row]:
        state = self.state
        time = f"{self._clock(line.at_ms)} " if width >= 34 else ""
        if line.kind != "message":
            style = "class:warn" if line.kind in ("gap", "owed") else "class:dim"
            text = f"{time}{line.text}".replace("→", self.signs.to)
            if state.whole:
                return [[(style, row)] for row in wrapped(text, width, indent="  ")]
            return [[(style, self._cut(" ".join(text.split()), width))]]
        mine = state.me in line.states or line.sender == state.me
        names, many = line.to, len(line.states)
        to = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
        done = sum(one == "seen" for one, _ in line.states.values())
        mark = self.signs.of(line.state()) + (f"{done}/{many}" if many > 1 else "")
        head = f"{time}{mark} {line.sender or '?'} {self.signs.to} {to or 'nobody'}: "
        if columns_of(head) > width * 2 // 3:
            head = self._cut(head, width * 2 // 3 - 1) + " "
        style = "class:mine" if mine else ""
        if state.whole or mine:
            most = None if state.whole else OWN_ROWS
            parts = wrapped(head + line.text, width, indent="  ", most=most)
        else:
            room = width - columns_of(head)
            parts = [head + self._cut(" ".join(line.text[: width * 4].split()), room)]
        end = len(head)
        rows: list[Row] = [[(f"{style} bold", parts[0][:end]), (style, parts[0][end:])]]
        rows += [[(style, part)] for part in parts[1:]]
        return rows

    def _beside(self, width: int) -> tuple[str, list[Row], int] | None:
        """What stands beside the traffic: its title, its rows, and how many of them, at the end,
        stay in sight when the others are scrolled (0: the last ones are shown)."""
        state = self.state
        item = state.items.get(state.answering)
        if item is not None:
            asked, choices, how = item_texts(item, self.now_ms, width, state.typed, self.signs)
            rows: list[Row] = [[("", text)] for text in asked]
            for key, texts in choices:
                style = _MARKED if texts[0].startswith(">") else ""
                rows += self._linked([[(style, text)] for text in texts], "choice", key)
            rows += [[("class:hint", text)] for text in how]
            return who_asks(item), rows, len(rows) - len(asked)
        if state.beside == "screen" and state.chosen:
            wide = max(
                (sum(columns_of(text) for _, text in row) for row in state.screen), default=0
            )
            self.pan_max = max(0, wide - width)
            first = min(state.pan, self.pan_max)
            shown = [row_part(row, first, width) for row in state.screen]
            if state.screen_of != state.chosen:
                shown = [[("class:dim", self.signs.more)]]
            elif state.screen_why:
                shown = [[("class:warn", text)] for text in wrapped(state.screen_why, width)]
            title = f"screen of {state.chosen}"
            ways = []
            if self.pan_max:
                keys = "Lt Rt" if self.signs is ASCII else "← →"
                ways.append(f"{keys} columns {first + 1} to {first + width} of {wide}")
            if state.can_attach:
                ways.append("/attach, Ctrl-\\ d back")
            if ways:
                title += f" ({', '.join(ways)})"
            return title, shown, 0
        return None

    def _page(self, beside: tuple[str, list[Row], int], height: int) -> list[Row]:
        """As much of it as fits."""
        _, rows, kept = beside
        if len(rows) <= height:
            self.at_end = (True, True) if kept else self.at_end
            return rows
        if not kept:
            # The gap above an input line at the screen's bottom must not be all that is seen.
            texts = ["".join(text for _, text in row) for row in rows]
            rows = [rows[n] for n in without_gaps(texts)]
            self.lift_max = max(0, len(rows) - height)
            last = len(rows) - min(self.state.lift, self.lift_max)
            return rows[max(0, last - height) : last]
        words, end = rows[:-kept], rows[-kept:]
        if kept >= height - 1:
            # The choices are paged, too. The one that arrows have chosen is in sight.
            pages, end = [row for row in rows if "".join(text for _, text in row).strip()], []
            words = [row for row in pages if not any(row is one for one in rows[-kept:])]
        else:
            pages = words
        room = self.page_rows = max(1, height - len(end) - 1)
        first = self.above = max(0, min(self.state.page, len(pages) - room))
        self.read = first + room >= len(words)
        mark = next((n for n, row in enumerate(pages) if _MARKED in row[0][0]), 0)
        if self.state.follows and mark and not first <= mark < first + room:
            first = min(mark, len(pages) - room)
        self.marked = not mark or first <= mark < first + room
        left = max(0, len(pages) - room - first)
        self.at_end = (left == 0, first == 0)
        return [*pages[first : first + room], self._more(left), *end][:height]

    def _more(self, left: int) -> Row:
        """Below a page: how many rows come after it."""
        down = "Dn" if self.signs is ASCII else "↓"
        text = f"  {down} {left} more row{'s' * (left > 1)}" if left else "  PgUp: back up"
        return [("class:dim", self._cut(text, self.width))]

    def _help(self, room: int) -> list[Row]:
        texts = help_texts(self.signs)
        rows = [part for text in texts for part in wrapped(text, self.width - 1, indent="    ")]
        most = room if len(rows) <= room else max(1, room - 1)
        self.page_rows = most
        first = self.above = max(0, min(self.state.page, len(rows) - most))
        left = len(rows) - first - most
        self.at_end = (left <= 0, first == 0)
        shown: list[Row] = [[("", f" {row}")] for row in rows[first : first + most]]
        if most < room:
            shown.append(self._more(left))
        return self._filled(shown, room)

    # -- small things

    def _cut(self, text: str, room: int) -> str:
        return cut(text, room, self.signs.more)

    def _sides(self, left: str, right: str, width: int) -> str:
        left = self._cut(left, max(0, width - len(right) - 1))
        return left + " " * max(1, width - columns_of(left) - columns_of(right)) + right

    def _rule(self, title: str, width: int) -> str:
        text = self._cut(f"{self.signs.across * 2} {title} ", width)
        return text + self.signs.across * (width - columns_of(text))

    def _ruled(self, title: str) -> Row:
        return [("class:rule", self._rule(title, self.width))]

    def _filled(self, rows: list[Row], height: int) -> list[Row]:
        return rows[:height] + [[] for _ in range(height - len(rows))]

    def _side_by_side(self, height: int, *panes: tuple[list[Row], int]) -> Iterator[Row]:
        for n in range(height):
            row: Row = []
            for at, (rows, width) in enumerate(panes):
                row += [("class:rule", self.signs.down)] if at else []
                part = rows[n] if n < len(rows) else []
                row += part
                if at < len(panes) - 1:
                    used = sum(columns_of(text) for _, text in part)
                    row.append(("", " " * (width - used)))
            yield row


# -- texts


def help_texts(signs: Signs) -> list[str]:
    legend = [
        f"{signs.of(one)} {one}"
        for one in ("queued", "delivering", "submitted", "seen", "held", "failed")
    ]
    arrows = "Up Dn" if signs is ASCII else "↑ ↓"
    named = {"↑ ↓": arrows, "← →": "Lt Rt" if signs is ASCII else "← →"}
    texts = [f"{named.get(key, key):<10} {meaning}" for key, meaning in _KEYS_HELP]
    texts += ["", "@Bob text, @Bob,Alice text, @* text and #build text go to them"]
    texts += [f"/{name} {after}".ljust(26) + meaning for name, (after, meaning) in OWN.items()]
    return [
        *texts,
        "and every other command of relay: /spawn, /attach, /status",
        "",
        "  ".join(legend),
    ]


def item_texts(
    item: Json, now_ms: int, width: int, typed: str, signs: Signs
) -> tuple[list[str], list[tuple[str, list[str]]], list[str]]:
    """What an item asks, whole; its choices, each with its key; and how it is answered; in rows of
    ``width``. The choice that is ``typed`` is marked, or else the one that has the focus."""
    choices = item.get("choices") or []
    arrows = "Up Dn" if signs is ASCII else "↑↓"
    keys = [str(one["key"]) for one in choices]
    typing = "a number" if all(key.isdecimal() for key in keys) else "type one"
    how = f"{arrows} or {typing}" if choices else "type yes or no"
    key = typed.partition(" ")[0]
    focus = keys.index(key) if key in keys else item.get("chosen")
    until = item.get("until_ms")
    left = f", {age(until - now_ms)} left" if until else ""
    texts: list[tuple[str, list[str]]] = []
    for n, one in enumerate(choices):
        mark = ">" if n == focus else " "
        text = f"{mark} {visible(one['key'])}  {visible(one['label'])}"
        texts.append((keys[n], wrapped(text, width, indent="     ")))
    what = "\n".join([*(item.get("about") or ()), item["what"]])
    if len(what) > ITEM_SHOWN:
        what = f"{what[:ITEM_SHOWN]}\n… it is longer: look at it with relay items"
    ways = wrapped(f"{how}, Enter answers, Esc later{left}", width)
    return wrapped(visible_lines(what), width), texts, ways


def styled_rows_shown(spans: object) -> list[Row]:
    """An agent's screen (relay.screen.styled_rows) in the styles of prompt-toolkit, without what is
    blank at its end. Raises ValueError for anything else: who answers for an agent may be one."""
    if not isinstance(spans, list):
        raise ValueError("no rows")
    rows = [[_piece(*one) for one in row[:COLUMNS_MAX]] for row in spans[:ROWS_MAX]]
    while rows and not any(text.strip() for _, text in rows[-1]):
        rows.pop()
    return rows


def _piece(text: str, style: Json) -> tuple[str, str]:
    marks = ("bold", "italic", "underline", "reverse", "strike")
    words = [mark for mark in marks if style.get(mark)] + (["dim"] if style.get("faint") else [])
    for place in ("fg", "bg"):
        if (colour := style.get(place)) is not None:
            words.append(f"{place}:{_colour(colour)}")
    return " ".join(words), cells(text[:COLUMNS_MAX])


def _colour(colour: int | str) -> str:
    """One of the terminal's own sixteen, or #rrggbb; of 256 also the cube and the greys."""
    if isinstance(colour, str):
        return f"#{int(colour.removeprefix('#'), 16) & 0xFFFFFF:06x}"
    if not 0 <= colour < 256:
        raise ValueError("no colour")
    if colour < 16:
        return f"ansi{(_COLOURS + _BRIGHT)[colour]}"
    if colour >= 232:
        return "#" + f"{8 + 10 * (colour - 232):02x}" * 3
    parts = (colour - 16) // 36, (colour - 16) // 6 % 6, (colour - 16) % 6
    return "#" + "".join(f"{part and 55 + 40 * part:02x}" for part in parts)


def row_part(row: Row, first: int, width: int) -> Row:
    """``width`` columns of a row from its column ``first`` on. A wide character of which only half
    is there is blank."""
    kept: Row = []
    for style, text in row:
        if first:
            left = cut(text, first, "")
            first -= columns_of(left)
            text = text[len(left) :]
            if text and first:
                text, first = " " + text[1:], 0
        kept.append((style, cut(text, width, "")))
        width -= columns_of(text)
        if width <= 0:
            break
    return kept


def wrapped(text: str, width: int, *, indent: str = "", most: int | None = None) -> list[str]:
    """``text`` in rows of at most ``width`` columns, broken between words where there are some;
    ``indent`` stands before each but the first, and at most ``most`` rows are made."""
    rows: list[str] = []
    indent = indent if width > 2 * len(indent) else ""
    for line in text.expandtabs(4).split("\n"):
        rest = line if not rows else indent + line
        # A row never has more characters than this, so that the work grows with the text alone.
        while len(head := cut(rest[: width * 4], width, "")) < len(rest):
            at = head.rfind(" ", len(indent) + 1) if rest[len(head)] != " " else len(head)
            end = at if at > len(head) // 2 else max(1, len(head))
            rows.append(rest[:end].rstrip())
            rest = indent + rest[end:].lstrip()
            if most is not None and len(rows) > most:
                break
        rows.append(rest)
        if most is not None and len(rows) > most:
            return [*rows[: most - 1], f"{indent}… (^X: all of it)"]
    return rows
