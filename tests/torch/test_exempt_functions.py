"""`data/exempt.toml` names functions that the installed PyTorch has, and those that it probes."""

from __future__ import annotations

import importlib
import inspect
from types import FunctionType

import pytest
from unamp_torch import exempt_functions
from unamp_torch.hooks import HOOKS

from unamp.adapter.patching import find
from unamp.adapter.wrapping import with_derived
from unamp.policy import Policy

pytestmark = pytest.mark.either_kernels

_TABLE = exempt_functions._TABLE
_FUNCTIONS = [
    (module, path)
    for modules in _TABLE.functions.values()
    for module, paths in modules.items()
    for path in paths
]
_METHODS = [
    pytest.param(path, name, id=f"{path}.{name}")
    for kinds in (_TABLE.own_methods, _TABLE.all_methods)
    for classes in kinds.values()
    for path, names in classes.items()
    for name in names
]


@pytest.mark.parametrize(("module", "path"), _FUNCTIONS)
def test_an_exempt_function_is_there(module: str, path: str) -> None:
    importlib.import_module(module)
    assert isinstance(inspect.unwrap(find(module, path)), FunctionType)


@pytest.mark.parametrize(("path", "name"), _METHODS)
def test_an_exempt_method_is_defined_by_the_class_or_a_derived_one(path: str, name: str) -> None:
    [(_, base, _)] = exempt_functions._classes({"any": {path: (name,)}})
    kinds = with_derived(base)
    assert any(isinstance(vars(kind).get(name), FunctionType) for kind in kinds)


def test_a_private_function_is_probed() -> None:
    """One that is renamed would follow the policy in silence."""
    probed = {f"{o}.{n}" for o, names in HOOKS.table.at_registration.items() for n in names}
    late = {f"{o}.{n}" for o, names in HOOKS.table.when_used.items() for n in names}
    private = {
        f"{module}.{path}"
        for module, path in _FUNCTIONS
        if any(
            part.startswith("_") and not part.endswith("__")
            for part in f"{module}.{path}".split(".")
        )
    }
    assert private
    assert private <= probed | late


def test_what_a_version_does_not_have_is_left_out() -> None:
    places = [("making", "torch", ("no_such_function", "finfo")), ("making", "no_such", ("f",))]
    assert not list(exempt_functions._functions(places))


def test_a_kind_with_a_replacement_of_its_own_has_functions() -> None:
    listed = {*_TABLE.functions, *_TABLE.own_methods, *_TABLE.all_methods}
    assert exempt_functions._REPLACING.keys() <= listed


@pytest.mark.parametrize("op", sorted(exempt_functions._PARTS))
def test_each_part_is_an_operation_and_brings_the_functions_in(op: str) -> None:
    assert exempt_functions.reaches(Policy("O1", "bfloat16", allow=(op,)))
    assert not exempt_functions.reaches(Policy("O1", "bfloat16", deny=(op,)))
