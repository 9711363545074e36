"""numpy, imported when it is first needed: it takes a tenth of a second."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from relay.features.memory.embedding import EmbedderUnavailable

#: Read by the BLAS when it is loaded. On a busy machine a second thread makes one short text wait
#: ten times as long as it takes; relay embeds one text at a time anyway.
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def have_numpy() -> bool:
    """Whether numpy is installed; nothing is imported."""
    return "numpy" in sys.modules or importlib.util.find_spec("numpy") is not None


def load_numpy() -> Any:
    """The module, with one thread for its matrices unless the environment wants another number.

    Raises EmbedderUnavailable, with how to install it.
    """
    if "numpy" in sys.modules:
        return sys.modules["numpy"]
    # Set for the import only: what relay starts later is not meant.
    unset = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    try:
        return importlib.import_module("numpy")
    except ImportError as error:
        raise no_numpy(str(error)) from error
    finally:
        for name in unset:
            os.environ.pop(name, None)


def no_numpy(reason: str) -> EmbedderUnavailable:
    """What is raised where numpy is missing."""
    return EmbedderUnavailable(
        f"embeddings need numpy, and it cannot be imported: {reason}",
        hint=f"install it for relay's Python: {sys.executable} -m pip install numpy",
        code="numpy_missing",
    )
