"""The adapters: found by entry points, checked, and loaded once their framework is imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unamp._compiler_marks import WHEN_ASKED, once_per_trace
from unamp._entry_points import entry_points
from unamp.adapter.arguments import leaves
from unamp.adapter.contract import Adapter
from unamp.adapter.versions import check_version
from unamp.errors import AdapterError, FrameworkNotSupported, shortened, unknown
from unamp.vocabulary import FRAMEWORKS, NAMERS, vocabulary

if TYPE_CHECKING:
    from importlib import metadata

_GROUP = "unamp.adapters"

_lock = threading.RLock()
_loaded: dict[str, Adapter] = {}
# A new object, even an equal one, means a change: regions compare it with `is`.
_in_use: tuple[Adapter, ...] = ()
# frameworks that are imported and whose adapter cannot work with them
_unsuitable: dict[str, Exception] = {}
# frameworks with an adapter that is not loaded; None before the entry points are read
_waiting: tuple[str, ...] | None = None
_modules = sys.modules.keys()


def installed() -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points of all installed adapters, by framework."""
    return {point.name: point for point in entry_points(_GROUP)}


def register(adapter: Adapter) -> None:
    """Make an adapter known.

    Those installed through the entry-point group are registered when first needed.

    Raises:
        AdapterError: where a part of the contract is missing or has another signature, and where
            the spellings that the adapter's package brings are bad; the message names it.
        FrameworkNotSupported: where the framework's version or internals do not suit the adapter.
    """
    global _in_use, _waiting
    _verify(adapter)
    check_version(adapter.framework, adapter.version(), adapter.requires)
    if adapter.framework not in FRAMEWORKS:
        vocabulary().add_spellings(adapter.framework, type(adapter).__module__)
    adapter.probe()
    with _lock:
        _loaded[adapter.framework] = adapter
        _in_use = tuple(_loaded.values())
        if _waiting is not None:
            _waiting = tuple(name for name in _waiting if name != adapter.framework)


def adapters_in_use() -> tuple[Adapter, ...]:
    """Return the adapters that suit an imported framework; see `unsuitable` for the others."""
    if _waiting is None or (_waiting and _newly_imported()):
        _load_imported()
    return _in_use


@once_per_trace
def _newly_imported() -> bool:
    return _waiting is not None and not _modules.isdisjoint(_waiting)


def renew() -> None:
    """Have every region prepare its policy again when it is next opened."""
    global _in_use
    with _lock:
        _in_use = tuple(_loaded.values())


def unsuitable() -> Mapping[str, Exception]:
    """Return the imported frameworks that no region can cover, each with the reason.

    A reason is a `FrameworkNotSupported` where a version or internals do not suit the adapter, and
    an `AdapterError` where the adapter cannot be loaded or does not fulfil the contract.
    """
    return _unsuitable


def check_suitable(value: object) -> None:
    """Raise an error where a value is of a framework that is imported and that no region can cover.

    Args:
        value: a tensor, network or optimizer that no adapter in use knows.

    Raises:
        FrameworkNotSupported, AdapterError: see `unsuitable`.
    """
    for framework, error in _unsuitable.items():
        # Among the bases of a framework's tensors, networks and optimizers, of Keras's and of the
        # user's too, is a class from a module that begins with the framework's name.
        if any(base.__module__.partition(".")[0] == framework for base in type(value).__mro__):
            raise error.with_traceback(None)  # it is raised again: it must not keep these frames


def check_tensors_suitable(given: object) -> None:
    """Call `check_suitable` with all objects in arguments that look like tensors, at any depth.

    Other objects of a framework, such as data sets, keep no region from opening.
    """
    for each in leaves(given):
        if hasattr(each, "dtype") and hasattr(each, "shape"):
            check_suitable(each)


def adapter_for(framework: str) -> Adapter:
    """Return the adapter of one framework, which must be imported already.

    Raises:
        TypeError: for anything but a name.
        ValueError: for a name that no installed adapter has; the message lists the valid ones.
        FrameworkNotSupported: where the framework is not installed, not yet imported or unsuitable.
    """
    if not isinstance(framework, str):
        raise TypeError(
            "framework must be the import name of one framework, or None for all; "
            f"not {shortened(framework)}"
        )
    adapters_in_use()
    if framework in _loaded:
        return _loaded[framework]
    if framework in _unsuitable:
        raise _unsuitable[framework].with_traceback(None)
    known = installed()
    if framework not in known:
        raise ValueError(
            unknown("framework", framework, sorted(known), "adapters are installed for")
        )
    from importlib.util import find_spec

    if find_spec(framework) is None:
        raise FrameworkNotSupported(
            f"{framework} is not installed; pip install 'unamp[{framework}]'"
        )
    raise FrameworkNotSupported(
        f"{framework} is not imported; import it before a region names it "
        "(unamp imports no framework)"
    )


def owner(value: object, kind: str) -> Adapter | None:
    """Return the adapter that knows a value as one of its own; None where none does.

    Args:
        value: anything.
        kind: what it may be: ``"tensor"``, ``"network"`` or ``"optimizer"``.

    Raises:
        FrameworkNotSupported, AdapterError: where it is of a framework that no adapter suits; see
            `unsuitable`.
    """
    for adapter in adapters_in_use():
        if getattr(adapter, f"is_{kind}")(value):
            return adapter
    check_suitable(value)
    return None


def spelling_of(value: object) -> str | None:
    """Return the spelling of a framework's object, from the adapter that knows it, or None."""
    for adapter in adapters_in_use():
        if spelling := adapter.spelling(value):
            return spelling
    return None


NAMERS.append(spelling_of)
WHEN_ASKED.append(adapters_in_use)


@once_per_trace
def _load_imported() -> None:
    global _in_use, _waiting
    with _lock:
        points = installed()
        _waiting = tuple(name for name in points if name not in _loaded and name not in _unsuitable)
        for name in _waiting:
            # A framework in the middle of its own import (which opens a region) is left for the
            # next region. So is one whose adapter is being imported: that imports this module.
            if name not in sys.modules or _begun(name) or _begun(points[name].module):
                continue
            try:
                register(_load(points[name]))
            except Exception as error:
                _unsuitable[name] = error
                _in_use = tuple(_loaded.values())
                _waiting = tuple(other for other in _waiting if other != name)


def _begun(module: str) -> bool:
    """Return whether a module is in the middle of its own import."""
    return (
        getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False) is True
    )


def _load(point: metadata.EntryPoint) -> Adapter:
    try:
        return point.load()  # type: ignore[no-any-return]
    except FrameworkNotSupported:
        raise
    except Exception as error:
        version = getattr(sys.modules.get(point.name), "__version__", "of unknown version")
        raise AdapterError(
            f"the adapter for {point.name} ({point.value}) could not be loaded "
            f"with {point.name} {version}: {error}"
        ) from error


def _verify(adapter: object) -> None:
    import inspect  # slow to import, and only a registration needs it

    who = type(adapter).__name__
    for attribute in ("framework", "requires"):
        if not isinstance(getattr(adapter, attribute, None), str):
            raise AdapterError(f"adapter {who}: attribute {attribute!r} must be a string")
    if not isinstance(getattr(adapter, "holds_gradients", None), bool):
        raise AdapterError(f"adapter {who}: attribute 'holds_gradients' must be True or False")
    for name, promised in vars(Adapter).items():
        if name.startswith("_") or not inspect.isfunction(promised):
            continue
        given = getattr(adapter, name, None)
        if not callable(given):
            raise AdapterError(
                f"adapter {who} ({adapter.framework}) "  # type: ignore[attr-defined]
                f"has no method {name!r}"
            )
        wanted = list(inspect.signature(promised).parameters)[1:]
        found = list(inspect.signature(given).parameters)
        if wanted != found:
            raise AdapterError(
                f"adapter {who} ({adapter.framework}): "  # type: ignore[attr-defined]
                f"{name}({', '.join(found)}) must take ({', '.join(wanted)})"
            )
