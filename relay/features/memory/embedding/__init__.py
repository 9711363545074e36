"""What turns texts into vectors: the protocol of an embedder, and why one may not answer.

Nobody imports ``numpy`` before an embedder is made: it takes a tenth of a second.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from relay.core.errors import RelayError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class EmbedderUnavailable(RelayError):
    """The embedder cannot answer now (a server is away, weights are missing); later it may."""

    code = "embedder_unavailable"


class Embedder(Protocol):
    """Texts in, vectors out. It is called by one thread at a time."""

    @property
    def name(self) -> str:
        """Which model this is. Vectors of another name or other ``dims`` are made anew."""

    @property
    def dims(self) -> int:
        """How long its vectors are; 0 before the first answer, for one that learns it from that."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each text: C-contiguous float32 of shape (len(texts), dims), of length 1.

        Raises EmbedderUnavailable when it cannot answer now.
        """

    def close(self) -> None:
        """Give back what it holds; calling it again does nothing."""


def embed_texts(embedder: Embedder, texts: list[str]) -> NDArray[np.float32]:
    """The vectors of ``texts``; whatever goes wrong is EmbedderUnavailable: it costs the vectors
    and nothing else, also where the embedder is somebody else's."""
    try:
        made = embedder.embed(texts)
        shape, kind = made.shape, made.dtype
    except EmbedderUnavailable:
        raise
    except Exception as error:
        raise EmbedderUnavailable(
            f"the embedder {embedder.name} failed: {type(error).__name__}: {error}",
            hint="what has no vector yet gets one when it works again",
        ) from error
    if shape != (len(texts), embedder.dims) or kind != "float32":
        raise EmbedderUnavailable(
            f"the embedder {embedder.name} gave {kind} of the shape {shape}, not float32 of"
            f" {(len(texts), embedder.dims)}",
            hint="mend the embedder, or choose another",
        )
    return made


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
    from relay.core.extras import adding

    return EmbedderUnavailable(
        f"embeddings need numpy, and it cannot be imported: {reason}",
        hint=adding("vectors"),
        code="numpy_missing",
    )
