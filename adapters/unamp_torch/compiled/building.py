"""The building and loading of the compiled kernels.

A wheel for a platform brings them for some minor versions of PyTorch, in ``torch-2.13/`` beside their
sources: they use what LibTorch's stable ABI does not have (autocast's state, dispatch keys, redispatching), so that a library
serves one minor version alone, on one version of Python. Another finds none that is meant for it.

``python -m unamp_torch`` builds them for the PyTorch that is installed, which takes half a minute, a C++ compiler and ninja
(``pip install "unamp[torch-compiled]"``). From then on every process uses them. The environment can say that it must not
(``UNAMP_TORCH_COMPILED=0``), or that it must (``1``: an error where they are not built).
"""

from __future__ import annotations

import importlib.machinery
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from unamp.adapter import Realisation
from unamp_torch.compiled.part import CompiledPart

_MODULE = "unamp_torch_kernels"
_SOURCES = Path(__file__).parent
_FILE = f"{_MODULE}{importlib.machinery.EXTENSION_SUFFIXES[0]}"


class Library(Protocol):
    """The built module; `module.cpp` has its functions, in the same order."""

    Activation: Callable[..., Realisation]
    Casts: Callable[[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]], Any]  #: as `unamp_torch.master_casts.Casts`

    def configure(self, *used_of_python: Any) -> None:
        """Hand over what the kernels and regions use of Python; before anything else, once."""

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
        """Register the kernel for an operator that writes to a tensor, for good; see `unamp_torch.writes`."""

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
        """Let go, in a forked process, of what other threads had open."""


def _part() -> CompiledPart:
    made_for = f"torch-{torch.__version__}-{sys.implementation.cache_tag}"
    return CompiledPart(_FILE, made_for, tuple(sorted(_SOURCES.glob("*.[ch]*"))), place_in_wheel())


def place_in_wheel() -> Path | None:
    """Return the path of the wheel's library for this PyTorch; None for one that was built from a state between releases."""
    release = re.match(r"(\d+\.\d+)\.\d+(\+|$)", torch.__version__)
    if release is None or not torch.compiled_with_cxx11_abi():
        return None
    return _SOURCES / f"torch-{release[1]}" / _FILE


def place() -> Path:
    """Return the path of the module, built or not: in the user's cache, under everything that it depends on."""
    return _part().place()


def build(*, verbose: bool = False, target: Path | None = None) -> Path:
    """Build the module with PyTorch's own means, put it at `target` or in its place, and return that.

    Raises:
        RuntimeError, OSError: what PyTorch's build says where there is no compiler, or no ninja.
    """
    from torch.utils import cpp_extension  # slow to import

    def make(folder: Path) -> Path:
        # As a plain library, so that it is not initialised in this process, whose adapter may be in use without it.
        source = str(_SOURCES / "module.cpp")
        # Assertions name the files that they stand in, and not where those were when this was built.
        named = (f"-ffile-prefix-map={_SOURCES}=unamp_torch", f"-ffile-prefix-map={Path(torch.__file__).parent}=torch")
        cpp_extension.load(
            _MODULE,
            [source],
            extra_cflags=["-O2", *named],
            extra_ldflags=["-Wl,-s"] if sys.platform == "linux" else [],
            build_directory=str(folder),
            verbose=verbose,
            is_python_module=False,
        )
        return next(folder.glob(f"{_MODULE}*{place().suffix}"))

    return _part().keep(make, target)


def in_wheel() -> str | None:
    """Return the versions that the wheel's kernels are for, and why none is used here; None where it brings none."""
    if _loaded.refusal is not None:
        return f"refused: {_loaded.refusal}"
    brought = sorted(path.parent.name.replace("-", " ") for path in _SOURCES.glob(f"torch-*/{_FILE}"))
    if not brought and any(_SOURCES.glob("torch-*")):
        return "none for this Python"
    return f"for {', '.join(brought)}" if brought else None


def build_hint(*, on_gpu: bool) -> str | None:
    """Return the command that builds the module, where it is not built and could be; None where it is, or is not wanted."""
    if library is not None or not _loaded.would_be_used(os.environ.get("CXX", "c++"), "ninja"):
        return None
    waiting = ", and this machine's GPU waits for it" if on_gpu else ""
    return (
        f"unamp's part of PyTorch's regions and operations is in Python here, several times slower than in C++{waiting}: "
        "python -m unamp_torch builds it, once, in half a minute"
    )


_loaded = _part()

#: The module; None where it is not built.
library = cast("Library | None", _loaded.module())
