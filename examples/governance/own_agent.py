"""An agent of one's own: its tools stand under governance, and its model acts on refusals.

Run it in a folder where `relay init --governed` was run, and where the example in its file of
intents was made an intent (INT-001, for src/**). The model here is a list of calls; a real one gets
the same answers, and finds the way itself.
"""

from pathlib import Path

from relay import HookBlocked, govern, governed, intent_rules, select_intent
from relay.core.errors import RelayError


@governed(reads="path")
def read_file(path):
    return Path(path).read_text()


@governed(paths="path")
def write_file(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return f"{path} is written"


@govern
class MoveFile:
    """A tool as many frameworks have them: an object with a name and a method."""

    name = "move_file"
    paths = ("source", "target")

    def run(self, source, target):
        Path(source).rename(target)
        return f"{source} is {target} now"


TOOLS = {
    "select_active_intent": select_intent,
    "read_file": read_file,
    "write_file": write_file,
    "move_file": MoveFile().run,
}


def answer(tool, **arguments):
    """What the model gets to read of its call."""
    try:
        return TOOLS[tool](**arguments)
    except HookBlocked as refused:
        return str(refused)  # one JSON object: the error, the reason, how to go on
    except RelayError as error:
        return f"ERROR: {error.line}"
    except OSError as error:
        return f"ERROR: {error}"


CALLS = [
    ("write_file", {"path": "src/notes.md", "text": "# Notes\n"}),
    ("select_active_intent", {"intent_id": "INT-001"}),
    ("write_file", {"path": "src/notes.md", "text": "# Notes\n"}),
    ("move_file", {"source": "src/notes.md", "target": "notes.md"}),
]

if __name__ == "__main__":
    print(intent_rules())  # belongs into the model's system prompt
    for tool, arguments in CALLS:
        print(f"> {tool} {arguments}")
        print(answer(tool, **arguments))
