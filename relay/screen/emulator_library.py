"""libghostty-vt as ``pyghostty`` brings it, without parsing its C declarations in every process.

``pyghostty`` has cffi parse 80 KB of declarations when it is imported, and every name of a type
parses them again in part: 350 ms before the first byte is heard. The declarations compiled by cffi
load in 15 ms, so they are kept in a file. Where anything about that fails, the import does it.
"""

from __future__ import annotations

import contextlib
import os
import sys

from relay.core.errors import RelayError
from relay.core.files import make_private_folder, write_atomically

# ``check`` runs before the agent starts: what only ``load`` needs is imported there.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A union passed by value is beyond cffi; a structure of the same layout goes the same way.
_TWINS = """
typedef struct { uint16_t x; uint32_t y; uint64_t _pad; } GhosttyPointValueS;
typedef struct { GhosttyPointTag tag; GhosttyPointValueS value; } GhosttyPointS;
"""
_SUFFIXES = (".dylib", ".so")
#: How the file with the compiled declarations begins.
_KEPT = "ghostty-"


def check(cache: str) -> None:
    """Raises RelayError where the library cannot be loaded.

    What was kept in ``cache`` shows that it was loaded before: then it is not loaded to try it.
    """
    try:
        path = _shared_object(_folder())
        if not _was_loaded(cache):
            _try(path)
    except (ImportError, OSError) as error:
        raise RelayError(
            f"the terminal emulator (pyghostty) cannot be loaded: {error}",
            hint="there is one for Linux (glibc) and macOS, x86-64 and arm64; relay doctor says"
            " more",
            code="no_emulator",
        ) from error


def _was_loaded(cache: str) -> bool:
    try:
        return any(name.startswith(_KEPT) for name in os.listdir(cache))
    except OSError:
        return False


def _try(path: str) -> None:
    from _ctypes import dlclose, dlopen  # not ctypes: that takes a third of the start of a run

    dlclose(dlopen(path, os.RTLD_NOW))


class Library:
    """cffi's ``ffi`` and ``lib``."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi = ffi
        self.lib = lib

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


def import_pyghostty(cache: str) -> Any:
    """The module ``pyghostty``, which parses nothing where the library could be loaded without.

    Raises ImportError or OSError where there is no library.
    """
    import types

    library = load(cache)
    if "pyghostty._ffi" not in sys.modules:

        def check(result: int, what: str) -> None:
            if result:
                raise error(f"{what} failed: {result}")

        error = type("GhosttyError", (RuntimeError,), {})
        parts = {"ffi": library.ffi, "lib": library.lib, "check": check, "GhosttyError": error}
        module = types.ModuleType("pyghostty._ffi")
        vars(module).update(parts, union_fn=lambda name, form: library.function(name, form))
        sys.modules[module.__name__] = module
    import pyghostty

    return pyghostty


def _from_cache(cache: str) -> Library:
    import marshal  # bytecode: compiling the source again would cost 2 MB in every process

    folder = _folder()
    with open(os.path.join(folder, "_cdef.py"), "rb") as file:
        declarations = file.read()
    path = os.path.join(cache, f"{_KEPT}{_key(declarations)}")
    kept = _kept(path)
    code = kept or marshal.dumps(compile(_compiled(declarations), path, "exec"))
    try:
        module: dict[str, Any] = {"__name__": "relay_ghostty"}
        exec(marshal.loads(code), module)
        ffi = module["ffi"]
    except Exception:
        if kept is not None:
            os.unlink(path)  # cut short by a crash: the next process writes it anew
        raise
    library = Library(ffi, ffi.dlopen(_shared_object(folder)))
    if not kept:  # or empty, as after a crash
        _keep(path, code)
    return library


def _folder() -> str:
    """Where pyghostty is installed; it is not imported."""
    for finder in sys.meta_path:
        found = finder.find_spec("pyghostty", None)
        if found is not None and found.origin is not None:
            return os.path.dirname(found.origin)
    raise ImportError("it is not installed")


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
    import importlib.util

    backend: Any = importlib.import_module("_cffi_backend")
    parts = (backend.__version__, sys.version, os.uname().machine, _TWINS)
    return importlib.util.source_hash(declarations + "\0".join(parts).encode()).hex()


def _compiled(declarations: bytes) -> bytes:
    """Python source that defines ``ffi``."""
    import importlib
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
