"""libghostty-vt as ``pyghostty`` brings it, without parsing its C declarations in every process.

``pyghostty`` has cffi parse 80 KB of declarations when it is imported, and every name of a type
parses them again in part: 350 ms before the first byte is heard. The declarations compiled by cffi
load in 15 ms, so they are kept in a file. Where anything about that fails, the import does it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
from typing import Any, NamedTuple

from relay.core.files import make_private_folder, write_atomically

# A union passed by value is beyond cffi; a structure of the same layout goes the same way.
_TWINS = """
typedef struct { uint16_t x; uint32_t y; uint64_t _pad; } GhosttyPointValueS;
typedef struct { GhosttyPointTag tag; GhosttyPointValueS value; } GhosttyPointS;
"""
_SUFFIXES = (".dylib", ".so")


class Library(NamedTuple):
    """cffi's ``ffi`` and ``lib``."""

    ffi: Any
    lib: Any

    def sized(self, ctype: str) -> Any:
        """A new structure with its ``size`` fields set, nested ones too."""
        new = self.ffi.new(f"{ctype}*")
        self._set_sizes(new)
        return new

    def function(self, name: str, signature: str) -> Any:
        """The function ``name`` with a signature that names twins instead of unions."""
        return self.ffi.cast(signature, self.ffi.addressof(self.lib, name))

    def _set_sizes(self, pointer: Any) -> None:
        ctype = self.ffi.typeof(pointer).item
        for name, field in ctype.fields:
            if name == "size":
                pointer.size = self.ffi.sizeof(ctype)
            elif field.type.kind == "struct":
                self._set_sizes(self.ffi.addressof(pointer[0], name))


_loaded: Library | None = None


def load(cache: str | None = None) -> Library:
    """The library, loaded once per process; ``cache`` is a directory of the user's own.

    Raises ImportError or OSError where there is no library.
    """
    global _loaded
    if _loaded is None:
        # Whatever a later pyghostty has elsewhere, or another cffi refuses, its import copes with.
        with contextlib.suppress(Exception):
            _loaded = _from_cache(cache) if cache else None
    if _loaded is None:
        import pyghostty.core as core

        _loaded = Library(core.ffi, core.lib)
    return _loaded


def _from_cache(cache: str) -> Library:
    found = importlib.util.find_spec("pyghostty")
    if found is None or found.origin is None:
        raise ImportError("there is no pyghostty")
    folder = os.path.dirname(found.origin)
    with open(os.path.join(folder, "_cdef.py"), "rb") as file:
        declarations = file.read()
    path = os.path.join(cache, f"ghostty-{_key(declarations)}.py")
    code = _kept(path)
    if code is None:
        code = _compile(declarations)
        _keep(path, code)
    try:
        module: dict[str, Any] = {"__name__": "relay_ghostty"}
        exec(compile(code, path, "exec"), module)
        ffi = module["ffi"]
    except Exception:
        os.unlink(path)  # cut short by a crash: the next process writes it anew
        raise
    return Library(ffi, ffi.dlopen(_shared_object(folder)))


def _kept(path: str) -> bytes | None:
    """What was kept, if nobody else can have written it: it is run."""
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.getuid() or about.st_mode & 0o022:
                raise OSError(f"{path} is not the user's own")
            return file.read()
    except FileNotFoundError:
        return None


def _key(declarations: bytes) -> str:
    """A name that changes with everything that the compiled declarations depend on."""
    backend: Any = importlib.import_module("_cffi_backend")
    parts = (backend.__version__, sys.version, os.uname().machine, _TWINS)
    return hashlib.sha256(declarations + "\0".join(parts).encode()).hexdigest()[:16]


def _compile(declarations: bytes) -> bytes:
    """Python source that defines ``ffi``."""
    import tempfile

    cffi: Any = importlib.import_module("cffi")
    recompiler: Any = importlib.import_module("cffi.recompiler")
    module: dict[str, Any] = {}
    exec(declarations, module)
    ffi = cffi.FFI()
    ffi.cdef(module["CDEF"])
    ffi.cdef(_TWINS)
    for measure in (ffi.sizeof, ffi.alignof):
        if measure("GhosttyPointS") != measure("GhosttyPoint"):
            raise ImportError("the twin of GhosttyPoint has another layout")
    ffi.set_source("relay_ghostty", None)
    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        path = os.path.join(folder, "relay_ghostty.py")
        recompiler.make_py_source(ffi, "relay_ghostty", path)
        with open(path, "rb") as file:
            return file.read()


def _keep(path: str, code: bytes) -> None:
    with contextlib.suppress(OSError):
        make_private_folder(os.path.dirname(path))
        write_atomically(path, code, durable=False)


def _shared_object(folder: str) -> str:
    given = os.environ.get("PYGHOSTTY_LIB")
    if given:
        return given
    for suffix in _SUFFIXES:
        path = os.path.join(folder, "_lib", f"libghostty-vt{suffix}")
        if os.path.exists(path):
            return path
    raise OSError(f"there is no libghostty-vt in {folder}")
