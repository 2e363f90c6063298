"""Parts of adapters that are compiled: optional, brought by a wheel, or built by one command and kept in the user's cache.

Every process uses what is built: the user's own before the wheel's. Nothing is compiled by an import. What a wheel brings and
this Python or framework cannot load is left alone, and `CompiledPart.refusal` says why. The environment can say that a
framework's parts must not be used, with ``UNAMP_TORCH_COMPILED=0``, say, or that they must (``1``: an error where one is not
built).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from unamp.errors import FrameworkNotSupported


class CompiledPart:
    """A part of an adapter that is compiled.

    Args:
        framework: the framework's import name.
        what: what messages call the part.
        file: the name of the file that is loaded.
        made_for: what it depends on beside its sources: another version is another file.
        sources: the files that it is made from.
        in_wheel: the path of the file that a wheel for this platform brings; None where it brings none for this Python.
        verb: how messages go on behind `what`.

    Attributes:
        refusal: why the file that a wheel brings could not be loaded; None where it was not tried, or could.
    """

    def __init__(
        self,
        framework: str,
        what: str,
        file: str,
        made_for: str,
        sources: Iterable[Path],
        *,
        in_wheel: Path | None,
        verb: str = "is",
    ) -> None:
        self.command = f"python -m unamp_{framework}"
        self._variable = f"UNAMP_{framework.upper()}_COMPILED"
        self._what = what
        self._verb = verb
        self._file = file
        self._made_for = made_for
        self.sources = tuple(sources)
        self.in_wheel = in_wheel
        self.refusal: str | None = None

    def place(self) -> Path:
        """Return the path of the part, built or not: in the user's cache, under everything that it depends on."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        source = hashlib.sha256(b"".join(path.read_bytes() for path in self.sources)).hexdigest()
        return Path(cache) / "unamp" / f"{self._made_for}-{source[:16]}" / self._file

    def keep(self, make: Callable[[Path], Path], target: Path | None = None) -> Path:
        """Put the file that `make` makes, in a folder that is gone afterwards, at `target` or in its place, and return that."""
        target = target or self.place()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            os.replace(make(Path(folder)), target)
        return target

    def would_be_used(self, *tools: str) -> bool:
        """Return whether somebody has yet to build the part, which can be done with the tools that are here."""
        unwanted = os.environ.get(self._variable) == "0"
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
        wanted = os.environ.get(self._variable)
        path = self._built()
        if wanted == "1" and path is None:
            raise FrameworkNotSupported(
                f"{self._variable}=1, but {self._what} {self._verb} not built ({self.place()} does not exist); "
                f"run: {self.command}"
            )
        return None if wanted == "0" else path

    def module(self) -> Any:
        """Return the extension module that the part is; None where there is nothing to load, or the wheel's is refused.

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
            if path == self.in_wheel and os.environ.get(self._variable) != "1":
                self.refusal = str(error)
                return None
            raise self.damaged(path, error) from error
        return module

    def damaged(self, path: Path, error: Exception) -> ImportError:
        """Return the error for a file that cannot be loaded."""
        return ImportError(f"{self._what} cannot be loaded: {error}; run {self.command} again, or delete {path}")
