"""The text of ``active_intents.yaml``: what it says, what is wrong in it, changing a status."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.errors import NotFound
from relay.core.yaml_tree import MISTAKES_MAX
from relay.features.governance.intents import (
    GovernanceSettings,
    Intent,
    IntentsError,
    Status,
    Unknown,
    parse,
    with_status,
)

WHOLE = """\
# What we do this week.
active_intents:
  - id: INT-001            # the first
    name: "Weather: API"
    status: IN_PROGRESS    # since Monday
    owned_scope:
      - src/weather/**
      - "!src/weather/keys.py"
    constraints: [no new dependency]
    acceptance_criteria:
      - |
        tests pass
        on both systems
  - {name: Docs, id: docs, owned_scope: [docs], status: 'PENDING'}

governance:
  unknown: refuse
  run_commands: ["make *"]
  approve_seconds: 20.5
  select_every_turn: true
"""


def test_reads_a_whole_file() -> None:
    document = parse(WHOLE)
    assert list(document.intents.values()) == [
        Intent(
            "INT-001",
            "Weather: API",
            Status.IN_PROGRESS,
            ("src/weather/**", "!src/weather/keys.py"),
            ("no new dependency",),
            ("tests pass\non both systems\n",),
            3,
        ),
        Intent("docs", "Docs", Status.PENDING, ("docs",), line=14),
    ]
    assert document.settings == GovernanceSettings(
        unknown=Unknown.REFUSE,
        run_commands=("make *",),
        approve_seconds=20.5,
        select_every_turn=True,
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "active_intents:\n", "\ufeff---\n"])
def test_a_file_may_be_empty(text: str) -> None:
    assert parse(text).intents == {}


def _intent(line: str) -> str:
    """A file with one intent, of which the fourth line is replaced or followed by ``line``."""
    rows = ["active_intents:", "- id: A", "  name: a", "  owned_scope: []", "  status: PENDING"]
    field = line.split(":")[0] if line.startswith(" ") else "-- "
    return "\n".join([row for row in rows if not row.startswith(field)] + [line])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        pytest.param("- a", 1, "names with values", id="no-names"),
        pytest.param("active_intents: 3", 1, "a list is meant", id="no-list"),
        pytest.param("active_intents: [3]", 1, "names with values", id="no-intent"),
        pytest.param("active_intent: []", 1, "did you mean 'active_intents'?", id="misspelled"),
        pytest.param(
            "active_intents:\n- id: A\n  status: PENDING", 2, "name, owned_scope miss", id="missing"
        ),
        pytest.param(_intent("  name:"), 5, "text is missing", id="empty"),
        pytest.param(_intent("  name: [a]"), 5, "stands in quotes", id="list-for-text"),
        pytest.param(_intent("  name: |\n    a\n    b"), 5, "one line", id="two-lines"),
        pytest.param(_intent('  name: "\\e[31mred"'), 5, "control", id="escape-sequence"),
        pytest.param(_intent("  name: " + "a" * 201), 5, "200 characters", id="long"),
        pytest.param(_intent("  name: Fix: it"), 5, "put it in quotes", id="colon"),
        pytest.param(_intent("  status: COMPLETED"), 5, "did you mean COMPLETE?", id="status"),
        pytest.param(_intent("  status: >-\n    PENDING"), 5, "none of", id="status-block"),
        pytest.param(_intent("  owned_scope: src"), 5, "a list is meant", id="scope-no-list"),
        pytest.param(_intent("  owned_scope:\n  - !src/**"), 6, "put it in quotes", id="tag"),
        pytest.param(_intent("  owned_scope:\n  - ! src"), 6, "put it in quotes", id="bare-tag"),
        pytest.param(_intent("  owned_scope:\n  - *.py"), 6, "put it in quotes", id="no-alias"),
        pytest.param(_intent("  owned_scope:\n  - *all"), 6, "put it in quotes", id="alias"),
        pytest.param(_intent("  owned_scope: &all [a]"), 5, "put it in quotes", id="anchor"),
        pytest.param(_intent("  owned_scope: ['../x']"), 5, "cannot leave", id="glob"),
        pytest.param(_intent("  constraints:\n  - a: b"), 7, "in quotes", id="colon-in-text"),
        pytest.param(_intent("  owner: me"), 6, "there is no 'owner'", id="unknown"),
        pytest.param(_intent("  id: B"), 6, "'id' is here twice", id="duplicate-key"),
        pytest.param(_intent("- id: A\n  name: b"), 6, "already, in line 2", id="duplicate-id"),
        pytest.param(_intent("- id: a b"), 6, "is not a valid id", id="id"),
        pytest.param(_intent("--- # 2\na: b"), 6, "second document", id="two-documents"),
        pytest.param("governance: {unknown: yes}", 1, "approve, refuse, allow", id="unknown-what"),
        pytest.param("governance: {approve_seconds: 600}", 1, "from 1 to 580", id="too-long"),
        pytest.param("governance: {lease_seconds: .inf}", 1, "seconds are meant", id="endless"),
        pytest.param("governance: {select_every_turn: 1}", 1, "true or false", id="no-truth"),
        pytest.param("governance: {read_commands: ['*']}", 1, "the name of what", id="all"),
        pytest.param("governance: {safe: 1}", 1, "there is no 'safe'", id="unknown-setting"),
        pytest.param("\n\tid: 1", 2, "cannot start", id="tab"),
        pytest.param("\n# a\u2028active_intents: 3", 2, "no editor", id="hidden-line"),
        pytest.param("a: \0", 0, "control characters", id="nul"),
        pytest.param("a: \ud800", 0, "UTF-8", id="surrogate"),
        pytest.param("[" * 900, 1, "too deep", id="deep"),
        pytest.param("[" + "a," * 40_000, 1, "too long", id="much"),
        pytest.param("a: " * 5_000, 1, "mapping values", id="names-of-names"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(IntentsError) as caught:
        parse(text)
    assert any(one.line == line and said in one.text for one in caught.value.mistakes), (
        caught.value.message
    )
    assert len(caught.value.message) < 3000


def test_all_mistakes_are_told_at_once_up_to_a_bound() -> None:
    rows = "".join(f"- id: A{n}\n  status: DONE\n  owned_scope: [!a, /b]\n" for n in range(20))
    with pytest.raises(IntentsError) as caught:
        parse(f"active_intents:\n{rows}")
    assert [str(one) for one in caught.value.mistakes][:5] == [
        "line 2: name missing",
        "line 3: status: 'DONE' is none of PENDING, IN_PROGRESS, COMPLETE, BLOCKED",
        "line 4: '!a' begins with a character that YAML uses: put it in quotes",
        "line 4: owned_scope: '/b': a glob is relative to the project's folder, as in 'src/**'",
        "line 5: name missing",
    ]
    assert len(caught.value.mistakes) == MISTAKES_MAX
    assert caught.value.message.endswith("and 60 more")


def test_changing_a_status_changes_nothing_else() -> None:
    assert with_status(WHOLE, "docs", Status.COMPLETE) == WHOLE.replace("'PENDING'", "'COMPLETE'")
    assert with_status(WHOLE, "INT-001", Status.BLOCKED) == WHOLE.replace("IN_PROGRESS", "BLOCKED")
    with pytest.raises(NotFound, match="valid ids: INT-001, docs") as caught:
        with_status(WHOLE, "INT-01", Status.BLOCKED)
    assert caught.value.hint == "did you mean 'INT-001'?"


_TEXT = st.text(st.sampled_from("ab é😀#:'\"-!*&[]{}%@`,|>?\\"), min_size=1, max_size=12)
_SPACE = st.sampled_from(["", "# status: DONE", "# é: 'x'", "    # 😀"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Files as people write them: any order, quotes, comments, line ends."""
    rows = ["active_intents:"]
    for number in range(draw(st.integers(1, 4))):
        status = draw(st.sampled_from(["{}", "'{}'", '"{}"'])).format(draw(st.sampled_from(Status)))
        name = "'" + draw(_TEXT.filter(str.strip)).replace("'", "''") + "'"
        fields = [f"id: I{number}", f"name: {name}", f"status: {status}", "owned_scope: ['a']"]
        fields = draw(st.permutations(fields))
        if draw(st.booleans()):
            rows.append("- {" + ", ".join(fields) + "}")
        else:
            rows += [("  - " if not n else "    ") + field for n, field in enumerate(fields)]
            # A block list is indented alike throughout.
        rows.append(draw(_SPACE))
    if any(row.startswith("  - ") for row in rows):
        rows = [f"  {row}" if row.startswith("- {") else row for row in rows]
    rows = [row + draw(st.sampled_from(["", " # status: BLOCKED", "  #é"])) for row in rows]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    bom = draw(st.sampled_from(["", "\ufeff"]))
    return bom + end.join(rows) + draw(st.sampled_from(["", end]))


@given(documents(), st.sampled_from(Status), st.data())
def test_a_status_of_any_file_can_be_changed(
    text: str, status: Status, data: st.DataObject
) -> None:
    before = parse(text)
    intent_id = data.draw(st.sampled_from(sorted(before.intents)))
    changed = with_status(text, intent_id, status)
    meant = {**before.intents, intent_id: replace(before.intents[intent_id], status=status)}
    assert parse(changed).intents == meant
    old = before.intents[intent_id].status
    assert len(changed) - len(text) == len(status) - len(old)
    # One word differs, and what surrounds it is what it was.
    places = [at for at in range(len(text)) if text.startswith(str(old), at)]
    assert changed in [text[:at] + status + text[at + len(old) :] for at in places]
