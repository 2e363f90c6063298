"""The file of the compiled kernels: optional, brought by a wheel, or built by one command and kept in the user's cache.

Every process uses what is built: the user's own before the wheel's. Nothing is compiled by an import. What a wheel brings and
this Python or PyTorch cannot load is left alone, and `CompiledPart.refusal` says why. The environment can say that it must not
be used, with ``UNAMP_TORCH_COMPILED=0``, or that it must (``1``: an error where it is not built).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unamp.errors import FrameworkNotSupported

_COMMAND = "python -m unamp_torch"
_VARIABLE = "UNAMP_TORCH_COMPILED"
_WHAT = f"the compiled kernels for torch {torch.__version__}"


@dataclass
class CompiledPart:
    """A file that is compiled.

    Attributes:
        file: the name of the file.
        made_for: what it depends on beside its sources: another version is another file.
        sources: the files that it is made from.
        in_wheel: the path of the file that a wheel for this platform brings; None where it brings none for this Python.
        refusal: why the file that a wheel brings could not be loaded; None where it was not tried, or could.
    """

    file: str
    made_for: str
    sources: tuple[Path, ...]
    in_wheel: Path | None
    refusal: str | None = field(default=None, init=False)

    def place(self) -> Path:
        """Return the path of the file, built or not: in the user's cache, under everything that it depends on."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        source = hashlib.sha256(b"".join(path.read_bytes() for path in self.sources)).hexdigest()
        return Path(cache) / "unamp" / f"{self.made_for}-{source[:16]}" / self.file

    def keep(self, make: Callable[[Path], Path], target: Path | None = None) -> Path:
        """Put the file that `make` makes, in a folder that is gone afterwards, at `target` or in its place, and return that."""
        target = target or self.place()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            os.replace(make(Path(folder)), target)
        return target

    def would_be_used(self, *tools: str) -> bool:
        """Return whether somebody has yet to build the file, which can be done with the tools that are here."""
        unwanted = os.environ.get(_VARIABLE) == "0"
        return not (unwanted or self._built() is not None) and all(shutil.which(tool) is not None for tool in tools)

    def _built(self) -> Path | None:
        """Return the user's file, else the wheel's, unless it was refused; None where there is neither."""
        if self.place().exists():
            return self.place()
        return self.in_wheel if self.in_wheel is not None and self.in_wheel.exists() and self.refusal is None else None

    def to_load(self) -> Path | None:
        """Return the file to be loaded; None where nothing is built, or where it must not be used.

        Raises:
            FrameworkNotSupported: nothing is built, and it must be used.
        """
        wanted = os.environ.get(_VARIABLE)
        path = self._built()
        if wanted == "1" and path is None:
            raise FrameworkNotSupported(
                f"{_VARIABLE}=1, but {_WHAT} are not built ({self.place()} does not exist); run: {_COMMAND}"
            )
        return None if wanted == "0" else path

    def module(self) -> Any:
        """Return the extension module that the file is; None where there is nothing to load, or the wheel's is refused.

        Raises:
            FrameworkNotSupported: nothing is built, and it must be used.
            ImportError: what the user has built cannot be loaded, or what the wheel brings cannot and must be used.
        """
        path = self.to_load()
        if path is None:
            return None
        spec = importlib.util.spec_from_file_location(path.name.partition(".")[0], path)
        assert spec is not None
        assert spec.loader is not None
        try:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError as error:
            if path == self.in_wheel and os.environ.get(_VARIABLE) != "1":
                self.refusal = str(error)
                return None
            raise ImportError(f"{_WHAT} cannot be loaded: {error}; run {_COMMAND} again, or delete {path}") from error
        return module
