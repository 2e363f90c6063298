"""The kernels, and the opening and closing of regions, in C++: the same in meaning as in Python, in a fraction of the time.

They are optional. ``python -m unamp_torch`` builds them for the PyTorch that is installed, which takes half a minute, a C++
compiler and ninja (``pip install "unamp[torch-compiled]"``). From then on every process uses them. The environment can say that
it must not (``UNAMP_TORCH_COMPILED=0``), or that it must (``1``: an error where they are not built).
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch

from unamp.errors import FrameworkNotSupported

__all__ = ["build", "library", "place"]

_MODULE = "unamp_torch_kernels"
_SOURCES = Path(__file__).parent


def place() -> Path:
    """Where the built module is, or would be: in the user's cache, under what it depends on."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    sources = b"".join(path.read_bytes() for path in sorted(_SOURCES.glob("*.[ch]*")))
    built_for = f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{hashlib.sha256(sources).hexdigest()[:16]}"
    return Path(cache) / "unamp" / built_for / f"{_MODULE}{importlib.machinery.EXTENSION_SUFFIXES[0]}"


def build(*, verbose: bool = False) -> Path:
    """Build the module with PyTorch's own means, and put it in its place.

    Raises:
        RuntimeError, OSError: what PyTorch's build says where there is no compiler, or no ninja.
    """
    from torch.utils import cpp_extension  # slow to import

    target = place()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # As a plain library, so that it is not initialised in this process, whose adapter may be in use without it.
        source = str(_SOURCES / "module.cpp")
        cpp_extension.load(
            _MODULE, [source], extra_cflags=["-O2"], build_directory=folder, verbose=verbose, is_python_module=False
        )
        os.replace(next(Path(folder).glob(f"{_MODULE}*{target.suffix}")), target)
    return target


def _load() -> ModuleType | None:
    wanted = os.environ.get("UNAMP_TORCH_COMPILED")
    path = place()
    if wanted == "1" and not path.exists():
        raise FrameworkNotSupported(
            f"UNAMP_TORCH_COMPILED=1, but the compiled kernels for torch {torch.__version__} are not built ({path} does not "
            "exist); run: python -m unamp_torch"
        )
    if wanted == "0" or not path.exists():
        return None
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ImportError(
            f"the compiled kernels cannot be loaded: {error}; run python -m unamp_torch again, or delete {path}"
        ) from error
    return module


#: The module; None where it is not built.
library = _load()
