"""Loading an adapter as soon as its framework is imported.

MindSpore's compiler reads the source behind a decorator; it neither runs the decorator nor asks
about it. So the adapter must be there before the compiler is, even where a function is decorated
before MindSpore is imported: a finder waits for that import. Nothing is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, then: Callable[[], object]) -> None:
    """Have a function called right after a module's first import.

    Nothing happens where the module is imported already, or has a finder that waits for it.
    """
    if name not in sys.modules and not any(
        isinstance(each, _Waiting) and each.name == name for each in sys.meta_path
    ):
        sys.meta_path.insert(0, _Waiting(name, then))


class _Waiting:
    """A finder that waits for one module.

    It stays until the module is imported: a program may ask for the spec alone, to see whether the
    module is installed.
    """

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self.name, self._then = name, then

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the module's spec, with a loader that calls back; None for any other module."""
        if name != self.name:
            return None
        finders: list[Any] = list(sys.meta_path)
        # only those behind this one: two that wait for one module would ask each other without end
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        asked = (
            each.find_spec(name, path, target) for each in behind if hasattr(each, "find_spec")
        )
        spec: ModuleSpec | None = next(filter(None, asked), None)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, self._imported)  # type: ignore[assignment]
        return spec

    def _imported(self) -> None:
        with suppress(ValueError):  # somebody has removed it
            sys.meta_path.remove(self)
        self._then()


class Loader:
    """A loader that loads a module as another one does, and leaves the module with that one.

    Args:
        loader: the other loader.
        then: called once the module is loaded.
    """

    def __init__(self, loader: Any, then: Callable[[], object]) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module that the other loader creates."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then call the function that waits for it."""
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        spec._initializing = False  # all of it has run, and Python says so only after this method
        self._then()
