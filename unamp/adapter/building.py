"""Parts of adapters that are compiled where a user asks for it: optional, built by one command, kept in the user's cache.

Every process uses what is built. The environment can say that a framework's parts must not be used (``UNAMP_PADDLE_COMPILED=0``,
say), or that they must (``1``: an error where one is not built).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from unamp.errors import FrameworkNotSupported

__all__ = ["CompiledPart", "compiler"]


def compiler() -> list[str]:
    """Return the C compiler that `CC` names, or `cc`, as the beginning of a command."""
    return shlex.split(os.environ.get("CC", "cc"))


class CompiledPart:
    """A part of an adapter that is compiled.

    Args:
        framework: the framework's import name.
        what: what messages call the part.
        file: the name of the file that is loaded.
        made_for: what it depends on beside its sources: another version is another file.
        sources: the files that it is made from.
        verb: how messages go on behind `what`.
    """

    def __init__(
        self, framework: str, what: str, file: str, made_for: str, sources: Iterable[Path], *, verb: str = "is"
    ) -> None:
        self.command = f"python -m unamp_{framework}"
        self._variable = f"UNAMP_{framework.upper()}_COMPILED"
        self._what = what
        self._verb = verb
        self._file = file
        self._made_for = made_for
        self.sources = tuple(sources)

    def place(self) -> Path:
        """Return where the part is, or would be: in the user's cache, under what it depends on."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        source = hashlib.sha256(b"".join(path.read_bytes() for path in self.sources)).hexdigest()
        return Path(cache) / "unamp" / f"{self._made_for}-{source[:16]}" / self._file

    def keep(self, make: Callable[[Path], Path]) -> Path:
        """Put what `make` makes, in a folder that is gone afterwards, in its place, and return that."""
        target = self.place()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            os.replace(make(Path(folder)), target)
        return target

    def compile(self, *flags: str) -> Path:
        """Build the part with the C compiler, put it in its place, and return that.

        Raises:
            OSError: there is no compiler.
            subprocess.CalledProcessError: it failed; what it has to say is on the terminal.
        """

        def make(folder: Path) -> Path:
            built = folder / self._file
            command = [*compiler(), "-O3", "-shared", "-fPIC", *flags, *map(str, self.sources), "-o", str(built)]
            subprocess.run(command, check=True)
            return built

        return self.keep(make)

    def would_be_used(self, *tools: str) -> bool:
        """Return whether somebody has yet to build the part, which can be done with the tools that are here."""
        unwanted = os.environ.get(self._variable) == "0"
        return not (unwanted or self.place().exists()) and all(shutil.which(tool) is not None for tool in tools)

    def to_load(self) -> Path | None:
        """Return the file to be loaded; None where nothing is built, or where it must not be used.

        Raises:
            FrameworkNotSupported: nothing is built, and it must be used.
        """
        wanted = os.environ.get(self._variable)
        path = self.place()
        if wanted == "1" and not path.exists():
            raise FrameworkNotSupported(
                f"{self._variable}=1, but {self._what} {self._verb} not built ({path} does not exist); run: {self.command}"
            )
        return None if wanted == "0" or not path.exists() else path

    def module(self) -> Any:
        """Return the extension module that the part is; None where there is nothing to load.

        Raises:
            FrameworkNotSupported: nothing is built, and it must be used.
            ImportError: what is built cannot be loaded.
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
            raise self.damaged(path, error) from error
        return module

    def damaged(self, path: Path, error: Exception) -> ImportError:
        """Return the error for a file that cannot be loaded."""
        return ImportError(f"{self._what} cannot be loaded: {error}; run {self.command} again, or delete {path}")
