"""The private names of a framework that an adapter uses: a table, checked before they are used.

A framework may rename what is private in any release. So every such name stands in
``data/hooks.toml`` of the adapter's package, and a test reads the adapter's source for names that
do not::

    schema  = 1
    version = "2.15.0"  # the newest version of the framework that the adapter was examined with

    # modules that are private though no name in them begins with an underscore
    private = ["tensorflow.python"]

    # names that every region needs: checked before the adapter's own modules are imported;
    # parentheses call a class, for a name that only instances have
    [at_registration]
    "torch._C" = ["_dispatch_has_kernel"]
    "torch.nn.Module()" = ["_forward_pre_hooks"]

    # names of modules that few programs need: `Hooks.load` imports a module and checks its names
    [when_used]
    "torch._higher_order_ops.scan" = ["scan_op"]

    # names of objects that cannot be made for a check: `Hooks.attribute` reads them
    [on_objects]
    "keras.optimizers.Optimizer" = ["_trainable_variables"]

    # names that some versions lack with which the adapter works: the code says what it does then
    [optional]
    "torch.utils.checkpoint" = ["_checkpoint_without_reentrant_generator_impl"]
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from unamp.adapter.facts import read_facts
from unamp.adapter.patching import missing
from unamp.adapter.versions import major_minor

Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class HookTable:
    """The contents of ``data/hooks.toml``.

    Attributes:
        version: the newest version of the framework that the adapter was examined with.
        private: modules that are private, whatever they are called.
        at_registration, when_used, on_objects, optional: names by the module, class or object that
            has them.
    """

    version: str
    private: tuple[str, ...]
    at_registration: Names
    when_used: Names
    on_objects: Names
    optional: Names


class Hooks:
    """A framework's private names that its adapter uses.

    Args:
        framework: the framework's import name.
        table: the names.
    """

    def __init__(self, framework: str, table: HookTable) -> None:
        self.framework = framework
        self.table = table
        self._loaded: dict[str, ModuleType] = {}

    @property
    def examined(self) -> str:
        """The newest version of the framework that the adapter was examined with."""
        return self.table.version

    def probe(self) -> None:
        """Check the names that every region needs.

        In a version newer than any examined, check the names of `when_used`, too.

        Raises:
            FrameworkNotSupported: where one is missing; the message names it and the version.
        """
        self._probe(self.table.at_registration)
        if major_minor(self._version()) > major_minor(self.examined):
            self._probe(self.table.when_used)

    def load(self, module: str) -> Any:
        """Import and return a module that few programs need; check its names the first time.

        Args:
            module: its name, of the table ``when_used``.

        Raises:
            FrameworkNotSupported: where the module or a name is missing; the message names it.
        """
        if module not in self._loaded:
            owners = {
                o: names
                for o, names in self.table.when_used.items()
                if f"{o}.".startswith(f"{module}.")
            }
            if not owners:
                raise KeyError(
                    f"{module} is not among the hooks of {self.framework} that are probed when used"
                )
            self._probe(owners)
            self._loaded[module] = sys.modules[module]
        return self._loaded[module]

    def attribute(self, value: object, name: str) -> Any:
        """Return a private attribute of an object, of the table ``on_objects``.

        Raises:
            FrameworkNotSupported: where the object lacks it; the message names the version.
        """
        try:
            return getattr(value, name)
        except AttributeError:
            raise missing(
                self.framework, self._version(), f"{type(value).__name__}.{name}"
            ) from None

    def _probe(self, table: Names) -> None:
        for owner, names in table.items():
            found = _find(owner)
            absent = (
                owner
                if found is None
                else next((f"{owner}.{n}" for n in names if not hasattr(found, n)), None)
            )
            if absent is not None:
                raise missing(self.framework, self._version(), absent)

    def _version(self) -> str:
        return str(sys.modules[self.framework].__version__)


def read_hooks(framework: str, package: str) -> Hooks:
    """Return the hooks of an adapter's package, from its ``data/hooks.toml``, read strictly.

    Args:
        framework: the import name of the framework, which is imported.
        package: the adapter's package, of which no other module need be imported yet.

    Raises:
        AdapterError: for a bad file.
    """
    return Hooks(framework, read_facts(HookTable, package, "data/hooks.toml"))


def _find(path: str) -> Any:
    """Import the modules on a dotted path, and return the object at its end, or None."""
    parts = path.split(".")
    found: Any = None
    for count, part in enumerate(parts, 1):
        name = part.removesuffix("()")
        # A package may have a function by the name of its module; the module is meant.
        value: Any = sys.modules.get(".".join(parts[:count]))
        if value is None and count > 1:
            value = getattr(found, name, None)
        if value is None and (count == 1 or isinstance(found, ModuleType)):
            try:
                value = importlib.import_module(".".join(parts[:count]))
            except ImportError:
                return None
        if value is None:
            return None
        found = value() if part.endswith("()") else value
    return found
