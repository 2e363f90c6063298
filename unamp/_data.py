"""Reading the tables of facts that ship with the package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def load_table(name: str) -> dict[str, Any]:
    """Return a TOML file of `unamp/data`, parsed."""
    # Imported here because `import unamp` must stay cheap: nothing needs them before a policy.
    import tomllib
    from importlib import resources

    return tomllib.loads(resources.files("unamp").joinpath(f"data/{name}").read_text("utf-8"))


def made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return an object of a class from values of a TOML file, as the types of its fields say.

    A list becomes a tuple or a set.
    """
    types = _types(cast("Any", kind))
    return kind(**{name: _as(types[name], value) for name, value in values.items()})


@cache
def _types(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _as(wanted: object, value: Any) -> Any:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is UnionType:  # of a type and None
        return _as(arguments[0], value)
    if origin in (frozenset, tuple):
        return origin(value)
    if origin is Mapping:
        return {key: _as(arguments[1], item) for key, item in value.items()}
    return value
