"""The building and loading of the compiled kernels.

A wheel for a platform brings them for some minor versions of PyTorch, in ``torch-2.13/`` beside
their sources: they use what LibTorch's stable ABI does not have (autocast's state, dispatch keys,
redispatching), so that a library serves one minor version alone, on one version of Python. Other
versions find none that is meant for them; a library that cannot be loaded is left alone, and
`in_wheel` says why.

``python -m unamp_torch`` builds them for the PyTorch that is installed, which takes half a minute,
a C++ compiler and ninja (``pip install "unamp[torch-compiled]"``). From then on every process uses
them, before the wheel's: they are kept in the user's cache, and an import compiles nothing.
The environment can say that none must be used (``UNAMP_TORCH_COMPILED=0``), or that they must
(``1``: an error where they are not built).
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from unamp.adapter import Realisation
from unamp.errors import FrameworkNotSupported

_COMMAND = "python -m unamp_torch"
_VARIABLE = "UNAMP_TORCH_COMPILED"
_MODULE = "unamp_torch_kernels"
_SOURCES = Path(__file__).parent
_FILE = f"{_MODULE}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
_WHAT = f"the compiled kernels for torch {torch.__version__}"

# why the wheel's library could not be loaded; None where it was not tried, or is loaded
_refusal: str | None = None


class Library(Protocol):
    """The built module; `module.cpp` has its functions, in the same order."""

    Activation: Callable[..., Realisation]
    #: as `unamp_torch.master_casts.Casts`
    Casts: Callable[[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]], Any]

    def configure(self, *used_of_python: object) -> None:
        """Hand over the Python objects that kernels and regions use; once, before anything else."""

    def add(
        self,
        composite: bool,
        positions: tuple[int, ...],
        parameters: tuple[int, ...],
        statistics: tuple[int, ...],
        dtype_position: int,
        sparse_position: int,
        missing: tuple[tuple[int, torch.dtype], ...],
        /,
    ) -> int:
        """Make an operator known; return its number."""

    def install(self, name: str, operator: int, key: int, /) -> None:
        """Register the kernel for an operator on a key, for good."""

    def install_on_meta(self, name: str, composite: bool, /) -> None:
        """Register the kernels that meta tensors alone reach, for good."""

    def install_writing(self, name: str, key: int, positions: tuple[int, ...], /) -> None:
        """Register the kernel for an operator that writes to a tensor, for good.

        See `unamp_torch.writes`.
        """

    def plan(
        self,
        on_cpu: bytes,
        on_cuda: bytes,
        low_on_cpu: torch.dtype,
        low_on_cuda: torch.dtype,
        advice: dict[int, str],
        meta: bool,
        /,
    ) -> object:
        """Return a plan's table of actions."""

    def set_plan(self, table: object, /) -> None:
        """Put a table in force in this thread, for kernels."""

    def drop_casts(self) -> None:
        """Drop the casts of parameters that this thread has kept."""

    def set_traced(self, traced: bool, /) -> None:
        """Say whether this thread's operations are reported."""

    def acquire(self) -> None:
        """See `unamp_torch.patches.acquire`."""

    def release(self) -> None:
        """See `unamp_torch.patches.release`."""

    def start_sharing(self, dtype: torch.dtype, /) -> bool:
        """See `unamp_torch.native_cache.start_sharing`."""

    def stop_sharing(self, dtype: torch.dtype, /) -> None:
        """See `unamp_torch.native_cache.stop_sharing`."""

    def forget_other_threads(self) -> None:
        """Forget, in a forked process, the regions of other threads."""


def place() -> Path:
    """Return the path of the module, built or not.

    It is in the user's cache, in a folder named after everything that it depends on.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    source = hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(_SOURCES.glob("*.[ch]*")))
    ).hexdigest()
    return (
        Path(cache)
        / "unamp"
        / f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{source[:16]}"
        / _FILE
    )


def place_in_wheel() -> Path | None:
    """Return the path of the wheel's library for this PyTorch.

    None for a PyTorch that was built from a state between releases.
    """
    release = re.match(r"(\d+\.\d+)\.\d+(\+|$)", torch.__version__)
    if release is None or not torch.compiled_with_cxx11_abi():
        return None
    return _SOURCES / f"torch-{release[1]}" / _FILE


def build(*, verbose: bool = False, target: Path | None = None) -> Path:
    """Build the module by PyTorch's means, put it at `target` or in its place, and return the path.

    Raises:
        RuntimeError, OSError: what PyTorch's build says where there is no compiler, or no ninja.
    """
    from torch.utils import cpp_extension  # slow to import

    target = target or place()
    target.parent.mkdir(parents=True, exist_ok=True)
    # Assertions name their files, and must not name the folders of the machine that built them.
    named = (
        f"-ffile-prefix-map={_SOURCES}=unamp_torch",
        f"-ffile-prefix-map={Path(torch.__file__).parent}=torch",
    )
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # As a plain library, so that it is not initialised in this process, whose adapter may be in
        # use without it.
        cpp_extension.load(
            _MODULE,
            [str(_SOURCES / "module.cpp")],
            extra_cflags=["-O2", *named],
            extra_ldflags=["-Wl,-s"] if sys.platform == "linux" else [],
            build_directory=folder,
            verbose=verbose,
            is_python_module=False,
        )
        os.replace(next(Path(folder).glob(f"{_MODULE}*{target.suffix}")), target)
    return target


def in_wheel() -> str | None:
    """Return the versions of PyTorch that the wheel has kernels for, or why none is used.

    None where the wheel brings none.
    """
    if _refusal is not None:
        return f"refused: {_refusal}"
    brought = sorted(
        path.parent.name.replace("-", " ") for path in _SOURCES.glob(f"torch-*/{_FILE}")
    )
    if not brought and any(_SOURCES.glob("torch-*")):
        return "none for this Python"
    return f"for {', '.join(brought)}" if brought else None


def build_hint(*, on_gpu: bool) -> str | None:
    """Return a hint on building the module; None where it is built, cannot be, or is not wanted."""
    tools = (os.environ.get("CXX", "c++"), "ninja")
    unwanted = os.environ.get(_VARIABLE) == "0"
    if library is not None or unwanted or _built() is not None or not all(map(shutil.which, tools)):
        return None
    waiting = ", and this machine's GPU waits for it" if on_gpu else ""
    return (
        "unamp's part of PyTorch's regions and operations is in Python here, several times slower "
        f"than in C++{waiting}: {_COMMAND} builds it, once, in half a minute"
    )


def _built() -> Path | None:
    """Return the path of the user's module, else of the wheel's unless refused, else None."""
    brought = place_in_wheel()
    if place().exists():
        return place()
    return brought if brought is not None and brought.exists() and _refusal is None else None


def load() -> Library | None:
    """Return the module, the user's or the wheel's.

    None where there is none, it must not be used, or the wheel's is refused.

    Raises:
        FrameworkNotSupported: nothing is built, and it must be used.
        ImportError: the library that the user has built cannot be loaded, or the wheel's cannot be
            and must be used.
    """
    global _refusal
    wanted, path = os.environ.get(_VARIABLE), _built()
    if wanted == "1" and path is None:
        raise FrameworkNotSupported(
            f"{_VARIABLE}=1, but {_WHAT} are not built ({place()} does not exist); run: {_COMMAND}"
        )
    if wanted == "0" or path is None:
        return None
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        if path == place_in_wheel() and wanted != "1":
            _refusal = str(error)
            return None
        raise ImportError(
            f"{_WHAT} cannot be loaded: {error}; run {_COMMAND} again, or delete {path}"
        ) from error
    return cast("Library", module)


#: The module; None where it is not built.
library = load()
