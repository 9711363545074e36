"""One conversation that holds all that an agent may say, and what of it is a message.

What is addressed goes to the person, who is always known; ``no:`` begins what must never be sent.
"""

from __future__ import annotations

from relay.core.agent_names import owner_name

PERSON = owner_name()
AT = f"@relay:{PERSON}"
WIDE = "please check the tests in the source folder and report back, " * 5 + "for sure"
BLOCK = f"""\
first **paragraph**, with `code` and under_scores

    indented, and kept as it is
- a list
```
fenced {AT} inside
```

last: \\{AT} and <tags> & "quotes\""""

#: Before the tool …
FIRST = f"""\
I'll coordinate with the others now.

{AT} {WIDE}

Here is an example in a code block:

```
{AT} no: in a fence
```

And indented:

    {AT} no: in indented code

An escaped one: \\{AT} no: escaped, and in a sentence.

\\{AT} no: escaped at the start

Two on consecutive lines:

{AT} the first of two
{AT} the second of two

Not in `{AT} no: inline code`, nor {AT} no: in a sentence.

Now I run a command."""
#: … its command, whose arguments and output hold what looks like messages …
COMMAND = f"printf '{AT} no: tool output\\n\\n{AT} no: more of it\\n'"
#: … and after it.
SECOND = f"""\
The command is done.

- {AT} from a list item

- second item

1. {AT} from a numbered item

> {AT} no: in a quote

**{AT}** no: in bold

{AT} **bold** and `code` stay

{AT} <<<
{BLOCK}
>>>

{AT} the same twice

{AT} the same twice

{AT} at the end"""
THOUGHT = f"Perhaps I should write\n\n{AT} no: only thought\n\nto them."
HEARD = [
    WIDE,
    "the first of two",
    "the second of two",
    "from a list item",
    "from a numbered item",
    "**bold** and `code` stay",
    BLOCK,
    "the same twice",
    "the same twice",
    "at the end",
]

_LINES = [f"Line {n:03} of the long answer, so long that it takes some room." for n in range(200)]
#: 200 lines with a message in the middle and one at the very end; ``HALF`` characters are its half.
LONG = "\n".join(
    [*_LINES[:100], "", f"{AT} in the middle", "", *_LINES[100:], "", f"{AT} very last"]
)
HALF = LONG.index("Line 150")
LONG_HEARD = ["in the middle", "very last"]

#: Broken off within a message.
CUT = f"I begin.\n\n{AT} no: cut off in the mid"

#: 200 lines to nobody, a message to Bob in their middle and one at their end.
MANY = "\n".join(
    [*(f"Line {n} of many." for n in range(100)), "", "@relay:Bob in the middle", ""]
    + [*(f"Line {n} of more." for n in range(100)), "", "@relay:Bob after many lines"]
)
