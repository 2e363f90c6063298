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
    [(base, _)] = exempt_functions._classes({path: (name,)})
    kinds = with_derived(base)
    assert any(isinstance(vars(kind).get(name), FunctionType) for kind in kinds)


def test_a_private_function_is_probed() -> None:
    """One that is renamed would follow the policy in silence."""
    probed = {f"{o}.{n}" for o, names in HOOKS.table.at_registration.items() for n in names}
    late = {f"{o}.{n}" for o, names in HOOKS.table.when_used.items() for n in names}
    private = {
        f"{module}.{path}"
        for module, path in _FUNCTIONS
        if any(part.startswith("_") and not part.endswith("__") for part in path.split("."))
    }
    assert private
    assert private <= probed | late


def test_a_function_that_a_version_does_not_have_is_left_out() -> None:
    group = exempt_functions.Group((None, inspect.unwrap, len))
    assert group.functions == (inspect.unwrap,)


def test_every_kind_has_the_operations_that_its_functions_compute_with() -> None:
    listed = {*_TABLE.functions, *_TABLE.own_methods, *_TABLE.all_methods}
    assert listed == set(exempt_functions._PARTS)
    assert exempt_functions.reaches(Policy("O3", "bfloat16"))
