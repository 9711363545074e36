"""What a change was: which lines, and whether it is the same program in another form."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.features.governance.mutation import MutationClass, compare, opaque, overall

PYTHON = '''"""Text."""
import os

LIMIT = 3

class Box:
    """A box."""

    def __init__(self, size):
        self.size = size  # kept

    def grow(self, by=1):
        total = self.size + by
        return [total for total in range(min(total, LIMIT))]

def use(box):
    return os.path.join("a", str(box.grow(by=2)))
'''
SCRIPT = """import {max} from "math"
// a comment
export function grow(box, by) {
  const total = box.size + by
  return [max(total, 3), `${by}`, 'x']
}
class Box { size = 1; close() { return this.size } }
function use(box) { return grow(box, 2) }
"""
GO = """package a
import "fmt"
func grow(by int) int { total := by + 1; return total }
func use() { fmt.Println(grow(2), "x") }
"""
RUST = """use std::cmp::max;
fn grow(by: i32) -> i32 { let total = by + 1; max(total, 3) }
fn user() -> String { format!("{}", grow(2)).to_string() }
"""
JAVA = """import java.util.List;
class Box { int size = 1; int grow(int by) { int total = size + by; return Math.max(total, 3); } }
"""
C = """#include <stdio.h>
static int grow(int by) { int total = by + 1; return total; }
int main(void) { printf("%d", grow(2)); return 0; }
"""

SAME = [
    ("a.py", PYTHON, PYTHON.replace("# kept", "").replace("a box", "the box"), "a comment"),
    ("a.py", PYTHON, PYTHON.replace('"""A box."""', '"""Another."""'), "a docstring"),
    ("a.py", PYTHON, PYTHON.replace('    """A box."""\n\n', ""), "a docstring gone"),
    ("a.py", PYTHON, PYTHON.replace('"a"', "'a'").replace("min(", "min( "), "form"),
    ("a.py", PYTHON, PYTHON.replace("box", "crate"), "a parameter renamed"),
    ("a.py", PYTHON, PYTHON.replace("LIMIT", "MOST"), "a constant renamed"),
    ("a.py", PYTHON, PYTHON.replace("grow", "widen"), "a method renamed"),
    ("a.py", PYTHON, PYTHON.replace("size", "width"), "a field renamed"),
    (
        "a.py",
        PYTHON,
        PYTHON.replace("def use(box):", "def use2(box):").replace("use2", "put"),
        "a function renamed",
    ),
    (
        "a.py",
        "def a(): return b()\ndef b(): return 1\n",
        "def b(): return 1\n\ndef a(): return b()\n",
        "definitions moved",
    ),
    ("a.js", SCRIPT, SCRIPT.replace("// a comment\n", "").replace("'x'", '"x"'), "js form"),
    ("a.js", SCRIPT, SCRIPT.replace("total", "sum"), "js renamed"),
    (
        "a.tsx",
        "function f(a: number) { return <b>{a}</b> }",
        "function f(n: number) {\n return <b>{n}</b>; }",
        "tsx renamed",
    ),
    (
        "a.ts",
        "function a(): void {}\nfunction b() {}",
        "function b() {}\nfunction a(): void {}",
        "ts moved",
    ),
    ("a.go", GO, GO.replace("total", "sum").replace("grow", "widen"), "go renamed"),
    ("a.rs", RUST, RUST.replace("total", "sum").replace("; max", ";\n// c\nmax"), "rust renamed"),
    ("A.java", JAVA, JAVA.replace("total", "sum").replace("grow", "widen"), "java renamed"),
    ("a.c", C, C.replace("total", "sum").replace("grow", "widen"), "c renamed"),
    ("a.lua", "one\ntwo\n", "one\r\n\ntwo  \n", "line ends of no language"),
]
OTHER = [
    ("a.py", PYTHON, PYTHON.replace("by=1", "by=2"), "a default"),
    ("a.py", PYTHON, PYTHON.replace("min(", "max("), "another builtin"),
    ("a.py", PYTHON, PYTHON.replace("os.path", "os.sep"), "somebody else's member"),
    ("a.py", PYTHON, PYTHON.replace("import os", "import io as os"), "another module"),
    ("a.py", PYTHON, PYTHON.replace("total = self", "size = self"), "one of two renamed"),
    ("a.py", PYTHON, PYTHON.replace("LIMIT))", "by))"), "another variable"),
    ("a.py", "def f(a, b): return a - b\n", "def f(a, b): return b - a\n", "swapped variables"),
    ("a.py", "def f(a, b): return a - b\n", "def f(b, a): return a - b\n", "swapped parameters"),
    (
        "a.py",
        "def f(): return 1\ndef g(): return 2\n",
        "def g(): return 1\ndef f(): return 2\n",
        "swapped functions",
    ),
    (
        "a.py",
        "import os, sys\nos.a(), sys.b()\n",
        "import os, sys\nsys.a(), os.b()\n",
        "swapped modules",
    ),
    ("a.py", "def f(a): return a + g\n", "def f(g): return g + g\n", "captured"),
    ("a.py", "x = 1\n", "x = True\n", "True for 1"),
    ("a.py", "x = 'a'\n", "x = b'a'\n", "bytes for text"),
    ("a.py", "a()\nb()\n", "b()\na()\n", "statements moved"),
    ("a.py", "x = 1\n", "x = (\n", "broken now"),
    ("a.js", SCRIPT, SCRIPT.replace("max", "min"), "js import"),
    ("a.js", SCRIPT, SCRIPT.replace("'x'", "'y'"), "js text"),
    ("a.js", SCRIPT, SCRIPT.replace("${by}", "${box}"), "js template"),
    ("a.js", "let [, a] = b", "let [a] = b", "js hole"),
    ("a.js", "const a = 1; f({a})", "const b = 1; f({b})", "js shorthand"),
    ("a.js", "for (;a();) {}", "for (;;a()) {}", "js place in for"),
    ("a.ts", "function f(a: number) { return a }", "function f(a: string) { return a }", "ts type"),
    ("a.go", GO, GO.replace('"x"', '"y"'), "go text"),
    ("a.go", GO, GO.replace("Println", "Print"), "go member"),
    ("a.rs", RUST, RUST.replace("max", "min"), "rust use"),
    ("a.rs", RUST, RUST.replace('"{}"', '"{}!"'), "rust text"),
    ("A.java", JAVA, JAVA.replace("max", "min"), "java member"),
    ("a.c", C, C.replace('"%d"', '"%i"'), "c text"),
    ("a.c", "char a = 'a';", "char a = 'b';", "c character"),
    ("a.txt", "one\n", " one\n", "text moved in"),
]


@pytest.mark.parametrize(
    ("path", "before", "after"), [pytest.param(*case[:3], id=case[3]) for case in SAME]
)
def test_another_form_of_the_same_program_is_a_refactoring(
    path: str, before: str, after: str
) -> None:
    assert before != after
    change = compare(path, before.encode(), after.encode())
    assert change.mutation_class == MutationClass.AST_REFACTOR


@pytest.mark.parametrize(
    ("path", "before", "after"), [pytest.param(*case[:3], id=case[3]) for case in OTHER]
)
def test_what_may_do_something_else_is_an_evolution(path: str, before: str, after: str) -> None:
    assert before != after
    change = compare(path, before.encode(), after.encode())
    assert change.mutation_class == MutationClass.INTENT_EVOLUTION


@pytest.mark.parametrize(
    ("path", "before", "after", "expected"),
    [
        pytest.param("pyproject.toml", b"a\n", b"b\n", "CONFIG_CHANGE", id="toml"),
        pytest.param("deploy/Dockerfile", None, b"b\n", "CONFIG_CHANGE", id="new dockerfile"),
        pytest.param(".github/x/a.py", b"a\n", b"b\n", "CONFIG_CHANGE", id="workflow"),
        pytest.param("a.py", b"a\n", b"a\n", "SAFE_READ", id="as it was"),
        pytest.param("a.py", None, b"a\n", "INTENT_EVOLUTION", id="new"),
        pytest.param("a.py", b"a\n", None, "INTENT_EVOLUTION", id="gone"),
        pytest.param("a.py", b"\xff\0", b"\xfe\0", "INTENT_EVOLUTION", id="binary"),
        pytest.param("a.py", b"(" * 9999, b"(" * 9998, "INTENT_EVOLUTION", id="deep"),
    ],
)
def test_the_class_of_other_changes(
    path: str, before: bytes | None, after: bytes | None, expected: str
) -> None:
    assert compare(path, before, after).mutation_class == expected


def test_the_gravest_class_is_that_of_the_call() -> None:
    assert overall([]) == "SAFE_READ"
    assert overall([MutationClass.AST_REFACTOR, MutationClass.CONFIG_CHANGE]) == "CONFIG_CHANGE"
    assert opaque("a.bin", "sha256:1", "sha256:2").mutation_class == "INTENT_EVOLUTION"


@given(*[st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"\r\n", b"c"]), max_size=12)] * 2)
def test_the_ranges_turn_the_one_text_into_the_other(old: list[bytes], new: list[bytes]) -> None:
    before, after = b"".join(old), b"".join(new)
    change = compare("a.txt", before, after)
    left = [before.splitlines(keepends=True), after.splitlines(keepends=True)]
    for lines, ranges in zip(left, (change.replaced, change.ranges), strict=True):
        for one in reversed(ranges):
            text = b"".join(lines[one.start_line - 1 : one.end_line])
            assert one.content_hash == f"sha256:{hashlib.sha256(text).hexdigest()}"
            del lines[one.start_line - 1 : one.end_line]
    assert left[0] == left[1]


def test_large_files_that_have_nothing_in_common_take_no_time() -> None:
    lines = [b"%d\n" % number for number in range(20_000)]
    change = compare("a.txt", b"".join(lines), b"".join(reversed(lines)))
    assert [(one.start_line, one.end_line) for one in change.ranges] == [(1, 20_000)]
