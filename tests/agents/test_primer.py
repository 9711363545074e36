"""The primer stays short whatever is registered."""

from __future__ import annotations

from relay.agents.launch import KNOWN_AS_MAX, PRIMER_MAX, Primer
from relay.core.agent_names import owner_name


def test_it_names_the_agent_and_fits() -> None:
    text = Primer("A" * 64).text()
    assert "A" * 64 in text
    assert "@relay:" in text
    assert len(text) <= PRIMER_MAX


def test_it_says_what_the_agent_is_for_and_where_it_belongs() -> None:
    text = Primer("Bob", roles=["reviewer"], join=["build", "#docs"]).text()
    assert "name here is Bob, your role reviewer, and you are in #build, #docs.\n" in text
    for roles in ((), ("r" * 64, "s" * 64)):
        assert Primer("Bob", roles=roles).known_as == "Bob"


def test_it_tells_the_persons_name_and_how_to_see_who_is_there() -> None:
    text = Primer("Bob").text()
    assert f"The person here goes by @relay:{owner_name()};" in text and "`relay agents`" in text


def test_one_who_is_heard_on_the_screen_is_told_what_survives_there() -> None:
    text = Primer("A" * 64, ("relay", "memory")).text(on_screen=True)
    assert "\\>>>" in text
    assert "backslash before the @" not in text
    assert len(text) <= PRIMER_MAX


def test_namespaces_are_added_while_they_fit() -> None:
    assert "@memory:save" in Primer("Al", ("relay", "memory")).text()
    text = Primer("Al", ("relay", "deploy:staging", "ci")).text()
    assert "@deploy:staging TEXT; @ci:TARGET TEXT" in text
    many = tuple(f"namespace{number}" for number in range(200))
    assert len(Primer("Al", many).text()) <= PRIMER_MAX
    assert "@namespace0:TARGET" in Primer("Al", many).text()


def test_the_rule_of_a_governed_project_stays_where_others_have_no_room() -> None:
    for name in ("Al", "A" * KNOWN_AS_MAX):
        text = Primer(name, ("relay", "intent", "memory", *(f"space{n}" for n in range(9)))).text()
        assert "@intent:select ID" in text and len(text) <= PRIMER_MAX
