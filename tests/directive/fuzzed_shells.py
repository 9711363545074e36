"""Real shells that read random bodies, spelled as messages are, in random states.

At its prompt, or inside something that is open, nothing of a body may run: no output, no file, no
variable, no other folder, and the shell goes on to the end.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from relay.core.message import Message
from relay.directive.envelope import envelope

#: Bodies between two looks at what they did.
LOOK = 400
#: Functions with names from the bodies, and what is called when a command is not known.
_CANARIES = "run", "touch", "Relay", "message", "from", "agent", "Ann"

NASTY = [
    *("'", '"', "\\", "`", "$", "(", ")", "{", "}", "[", "]", "<", ">", "|", "&", ";", "!", "*"),
    *("?", "~", "#", "^", "=", "%", "\n", "\n\n", "\r", "\t", " ", "  ", "\\\n", "\x1b", "\x03"),
    *("\x04", "\x16", "\x1b[201~", "\x1b[200~", "\x15", "\x0b", "\x7f", "\x00", "\x80", "\x9b"),
    *(
        "''",
        "'\\''",
        '"\'"',
        "$'",
        '$"',
        "$(run)",
        "`run`",
        "${V:=1}",
        "$((V=1))",
        ">file",
        ";run;",
    ),
    *(
        "|run",
        "&run",
        "\nrun\n",
        "'\nrun\n'",
        '"\nrun\n"',
        ")\nrun\n(",
        "}\nrun\n{",
        "\nEOT\nrun\n",
    ),
    *(
        "\nfi\nrun\n",
        "\ndone\nrun\n",
        "\nend\nrun\n",
        "esac;run",
        "V=1",
        "export V=1",
        "cd /",
        "exit",
    ),
    *("!!", "!run", "!$", "^a^run", "!\\?run", "=run", "~root", "%1", "{run,run}", "*(e:run:)"),
    *("a[$(run)]", "<(run)", ">(run)", "((V++))", "[[ run", "#run", "# ", "//", "--", "*/", "/*"),
    *("L", " L ", "G", " run ", "run", "eval run", ". ./run", "trap run EXIT", "echo heard"),
    *("a", "word", "é", "😀", "日本", "\xa0", "\u2003", "\u3000", "\u2028", "\u202e", "\ufeff"),
    *(
        "＇",
        "＄（run）",
        "\ufdd0",
        "\uf600",
        "\U0010ffff",
        "\ud800",
        "x" * 300,
        "word " * 60,
        "' " * 30,
    ),
]

#: Name: what is typed before the message, and after it.
POSIX = {
    "prompt": ("", ""),
    "quote": ("v='p\n", "\nq'"),
    "double quote": ('v="p\n', '\nq"'),
    "heredoc": (": <<EOT\n", "\nEOT"),
    "quoted heredoc": (": <<'EOT'\n", "\nEOT"),
    "if": ("if :; then\n", "\nfi"),
    "else": ("if ! :; then :; else\n", "\nfi"),
    "group": ("{\n", "\n}"),
    "subshell": ("(\n", "\n)"),
    "loop": ("for w in p q; do\n", "\ndone"),
    "case": ("case x in x)\n", "\n;; esac"),
    "function": ("f() {\n", "\n}\nf"),
    "substitution": ("v=$(\n", "\n)"),
    "quoted substitution": ('v="$(\n', '\n)"'),
    "backticks": ("v=`\n", "\n`"),
    "parameter": ("v=${u-\n", "\n}"),
    "and": (": &&\n", ""),
    "pipe": (": |\n", ""),
    "continuation": (": \\\n", ""),
    "eval": ("eval \\\n", ""),
    "words": ("for w in \\\n", "\ndo :; done"),
    "read": ("read v\n", ""),
    "comment": ("# it's\n", ""),
}
FISH = {
    "prompt": ("", ""),
    "quote": ("set v 'a\n", "\nq'"),
    "double quote": ('set v "a\n', '\nq"'),
    "if": ("if true\n", "\nend"),
    "group": ("begin\n", "\nend"),
    "loop": ("for w in a b\n", "\nend"),
    "case": ("switch x\ncase x\n", "\nend"),
    "function": ("function f\n", "\nend\nf"),
    "substitution": ("set v (\n", "\n)"),
    "and": (": &&\n", ""),
    "pipe": (": |\n", ""),
    "continuation": (": \\\n", ""),
    "read": ("read v\n", ""),
}
#: States that end in a mistake of the shell's grammar, which an interactive one survives.
MISTAKES = {
    "arithmetic": ("v=$((1 +\n", "\n))"),
    "arithmetic command": ("(( 1 +\n", "\n))"),
    "condition": ("[[ p ==\n", "\n]]"),
    "array": ("w=(\n", "\n)"),
    "quoted parameter": ('v="${u-\n', '\n}"'),
}
OPTIONS = {
    "bash": ["set -H", "set +H", "shopt -s extglob", "shopt -s nullglob globstar", "set -o noglob",
             "set -o posix", "shopt -s failglob", "shopt -s expand_aliases", "set -k"],
    "zsh": ["setopt " + name for name in (
        "extendedglob", "banghist", "nobanghist", "interactivecomments", "nointeractivecomments",
        "rcquotes", "kshglob", "magicequalsubst", "correctall", "promptsubst", "cshjunkiehistory",
        "nullglob", "braceccl", "shwordsplit", "globsubst", "rcexpandparam", "nonomatch",
        "cshjunkiequotes", "autocd", "ignorebraces", "bareglobqual", "histverify")],
    "dash": ["set -f", "set +f", "set -a"],
    "fish": ["set -g fish_trace 0"],
}  # fmt: skip


def setting(shell: str, rng: random.Random) -> str:
    """What a process of ``shell`` is told first: canaries, aliases, a random choice of options."""
    if shell == "fish":
        lines = [f"function {name}; echo canary; end" for name in _CANARIES]
        lines.append("function fish_command_not_found; echo canary; end")
    else:
        lines = [f"{name}() {{ echo canary; }}" for name in _CANARIES]
        lines.append("command_not_found_handle() { echo canary; }")
        lines.append("command_not_found_handler() { echo canary; }")
    if shell == "zsh":
        lines += ["alias -g L='; echo canary;' G='| echo canary' a='$(run)'", "alias word=run"]
    elif shell == "bash":
        lines.append("alias L=run word='run '")
    return "\n".join([*lines, *rng.sample(OPTIONS[shell], rng.randint(0, len(OPTIONS[shell])))])


def a_body(rng: random.Random) -> str:
    """A body of some nasty pieces."""
    return "".join(rng.choices(NASTY, k=rng.randint(1, 10)))


def typed(body: str, number: int, ascii_only: bool) -> str:
    """What is typed for a message."""
    said = Message(f"01K{number:023d}", "Ann", "Ben", body, created_at=0)
    return envelope(said, style="shell", ascii_only=ascii_only).text


def look(shell: str, number: int) -> str:
    """A command that tells that the shell has come so far, and what a body may have changed."""
    if shell == "fish":
        return f'echo "DONE {number} $V" (count *) $PWD'
    return f'echo "DONE {number} ${{V-}}" *; echo "$PWD"'


def told(shell: str, number: int, folder: str) -> str:
    """What ``look`` prints where nothing has happened."""
    return f"DONE {number}  0 {folder}\n" if shell == "fish" else f"DONE {number}  *\n{folder}\n"


def script(shell: str, seed: str, count: int, plain: bool) -> str:
    """``count`` bodies in random states, as one process of ``shell`` reads them."""
    rng = random.Random(seed)
    states = list((FISH if shell == "fish" else POSIX).values())
    if shell in ("bash", "zsh"):
        states += list(MISTAKES.values())
    elif shell == "dash":
        # It has read ahead in a pipe, and at a mistake it throws that away.
        states = [state for name, state in POSIX.items() if name not in ("read", "words")]
    if shell == "zsh":
        states.remove(POSIX["comment"])  # without interactivecomments "#" is itself looked for
    ascii_only = rng.random() < 0.2
    parts = [setting(shell, rng)]
    for number in range(1, count + 1):
        before, after = rng.choice(states)
        if rng.random() < 0.8 and ("(\n" in before or "`" in before or "|" in before):
            before, after = rng.choice(states[:4])  # a process each: they take most of the time
        body = a_body(rng)
        parts.append(before + (body if plain else typed(body, number, ascii_only)) + after)
        if number % LOOK == 0 or number == count:
            # noglob and failglob change what * is, which is the options' doing.
            if shell == "bash":
                parts.append("set +o noglob; shopt -u nullglob failglob")
            elif shell == "zsh":
                parts.append("setopt nonomatch nonullglob")
            elif shell == "dash":
                parts.append("set +f")
            parts.append(look(shell, number))
    return "\n".join(parts) + "\n"


def run(shell: str, seed: str, count: int, *, plain: bool = False) -> str:
    """Have ``shell`` read ``count`` bodies; what happened that should not, or ''."""
    flags = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "dash": ["-i"]}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "cwd").resolve()
        folder.mkdir()
        Path(home, "path").mkdir()
        env = {"HOME": home, "PATH": f"{home}/path", "LC_ALL": "C.UTF-8", "TERM": "dumb",
               "HISTFILE": "", "PS1": "", "PS2": ""}  # fmt: skip
        program = shutil.which(shell)
        assert program is not None, f"{shell} is not installed here"
        done = subprocess.run(
            [program, *flags.get(shell, ["--no-config"])],
            input=script(shell, seed, count, plain).encode("utf-8", "replace"),
            cwd=folder,
            env=env,
            capture_output=True,
            start_new_session=True,
            timeout=600,
        )
        out = done.stdout.decode("utf-8", "replace")
        numbers = [*range(LOOK, count + 1, LOOK), *([count] if count % LOOK else [])]
        wanted = "".join(told(shell, number, str(folder)) for number in numbers)
        if out != wanted:
            kept = len(os.path.commonprefix([out, wanted]))
            return f"at {kept} of {len(wanted)}: {out[kept : kept + 300]!r}"
        if shell == "dash" and b"not found" in done.stderr:
            at = done.stderr.index(b"not found")
            return f"a command was looked for: {done.stderr[max(0, at - 100) : at]!r}"
        return ""
