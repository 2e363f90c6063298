"""The dialects have the names, signatures and lists of the installed frameworks' modules.

Behaviour that needs no framework is tested here, too.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import importlib.util
import inspect
import sys
from typing import Any

import pytest
from elsewhere import python
from installed import place

import unamp
from unamp._data import load_table
from unamp.vocabulary import vocabulary

#: For each module, the installed files with its definitions; the last file lists the module's
#: names.
MODULES = {
    "torch.amp": (
        "torch/amp/autocast_mode.py",
        "torch/amp/grad_scaler.py",
        "torch/amp/__init__.py",
    ),
    "torch.cuda.amp": (
        *(
            "torch/cuda/amp/autocast_mode.py",
            "torch/cuda/amp/common.py",
            "torch/cuda/amp/grad_scaler.py",
        ),
        "torch/cuda/amp/__init__.py",
    ),
    "torch.cpu.amp": (
        "torch/cpu/amp/autocast_mode.py",
        "torch/cpu/amp/grad_scaler.py",
        "torch/cpu/amp/__init__.py",
    ),
    "paddle.amp": (
        *("paddle/amp/auto_cast.py", "paddle/amp/grad_scaler.py", "paddle/amp/amp_lists.py"),
        "paddle/amp/__init__.py",
    ),
    "paddle.amp.debugging": ("paddle/amp/debugging.py",),
    "mindspore.amp": (
        "mindspore/train/amp.py",
        "mindspore/train/loss_scale_manager.py",
        "mindspore/amp.py",
    ),
    "keras.mixed_precision": (
        *("keras/src/dtype_policies/dtype_policy.py", "keras/src/optimizers/base_optimizer.py"),
        *("keras/src/optimizers/loss_scale_optimizer.py", "keras/mixed_precision/__init__.py"),
    ),
}

#: Methods about Keras' layers, variables and saved models, which the dialects leave out.
KERAS_ALONE = {
    *(
        "DTypePolicy.convert_input",
        "Policy.convert_input",
        "LossScaleOptimizer.build",
        "LossScaleOptimizer.check_finite",
    ),
    *("LossScaleOptimizer.finalize_variable_values", "LossScaleOptimizer.stateless_apply"),
}


@functools.cache
def parsed(path: str) -> ast.Module:
    """Return the syntax tree of an installed framework's file, without importing it."""
    framework, _, inside = path.partition("/")
    return ast.parse((place(framework) / inside).read_text("utf-8"))


def theirs(module: str) -> dict[str, list[tuple[str, str, object]]]:
    """Return the parameters of a module's functions, constructors and public methods."""
    found: dict[str, list[tuple[str, str, object]]] = {}
    for path in MODULES[module]:
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef):
                # of several overloads, the last is the function itself
                found[node.name] = written(node.args)
            elif isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and not _is_property(method):
                        found[f"{node.name}.{method.name}"] = written(method.args)[1:]
    aliases = {
        alias.asname: alias.name
        for node in parsed(MODULES[module][-1]).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and alias.asname != alias.name
    }
    for alias, name in aliases.items():
        found |= {
            alias + key.removeprefix(name): value
            for key, value in found.items()
            if key.partition(".")[0] == name
        }
    return found


def written(args: ast.arguments) -> list[tuple[str, str, object]]:
    """Return parameters as (name, kind, default), from their definition."""
    places = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(places) - len(args.defaults)) + [*args.defaults]
    found = [
        (arg.arg, "positional or keyword", _value(default))
        for arg, default in zip(places, defaults, strict=True)
    ]
    found += [(args.vararg.arg, "variadic positional", NONE)] if args.vararg else []
    keywords = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    found += [(arg.arg, "keyword-only", _value(default)) for arg, default in keywords]
    return found + ([(args.kwarg.arg, "variadic keyword", NONE)] if args.kwarg else [])


NONE = "no default"


def _is_property(method: ast.FunctionDef) -> bool:
    return any(
        "property" in (text := ast.unparse(each)) or text.endswith(".setter")
        for each in method.decorator_list
    )


def _value(default: ast.expr | None) -> object:
    if default is None:
        return NONE
    if isinstance(default, ast.Attribute):
        return default.attr  # a mode, or a dtype: the dialects have its name
    return eval(compile(ast.Expression(default), "default", "eval"), {})


def ours(thing: object) -> list[tuple[str, str, object]]:
    """Return parameters as (name, kind, default), from a callable."""
    parameters = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    return [
        (p.name, p.kind.description, NONE if p.default is p.empty else _named(p.default))
        for p in parameters
    ]


def _named(default: object) -> object:
    return default.name if isinstance(default, enum.Enum) else default


def dialect(module: str) -> Any:
    return importlib.import_module(f"unamp.dialects.{module}")


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_there(module: str) -> None:
    body = parsed(MODULES[module][-1]).body
    listed = [
        node.value
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    imported = [
        alias.asname or alias.name
        for n in body
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
    ]
    public = set(ast.literal_eval(listed[0]) if listed else imported)
    assert public <= set(dialect(module).__all__)
    assert all(hasattr(dialect(module), name) for name in dialect(module).__all__)


@pytest.mark.parametrize("module", MODULES)
def test_the_signatures_are_the_frameworks_own(module: str) -> None:
    compared = set()
    for key, wanted in theirs(module).items():
        name, _, method = key.partition(".")
        if (
            name not in dialect(module).__all__
            or key in KERAS_ALONE
            or (method.startswith("_") and method != "__init__")
        ):
            continue
        found = ours(
            getattr(dialect(module), name)
            if method in ("", "__init__")
            else _bound(module, name, method)
        )
        assert found == wanted, f"{module}.{key}"
        compared.add(name)
    unseen = set(dialect(module).__all__) - compared
    assert unseen <= {
        # a module, and two aliases of a function
        *("debugging", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype"),
        *("DebugMode", "OperatorStats"),  # no functions
    }


def _bound(module: str, name: str, method: str) -> Any:
    """Return a method without its `self`."""
    function = inspect.getattr_static(getattr(dialect(module), name), method)
    function = getattr(function, "__func__", function)
    return functools.partial(function, None)


@pytest.mark.parametrize(
    "name", ["torch.amp", "paddle.amp", "mindspore.amp", "keras.mixed_precision"]
)
def test_the_names_are_in_the_dialect_itself_too(name: str) -> None:
    whole, module = getattr(unamp.dialects, name.partition(".")[0]), dialect(name)
    assert all(getattr(whole, each) is getattr(module, each) for each in module.__all__)
    assert set(module.__all__) <= set(whole.__all__)


def test_a_dialect_imports_no_framework() -> None:
    frameworks = {"torch", "paddle", "mindspore", "tensorflow", "jax", "keras", "numpy"}
    imported = "; ".join(f"import unamp.dialects.{module}" for module in MODULES)
    code = f"import sys, unamp; {imported}; print(*({frameworks!r} & set(sys.modules)))"
    assert python("-c", code).strip() == ""


# --- the lists ------------------------------------------------------------------------------------


def assigned(path: str) -> dict[str, ast.expr]:
    """Return the top-level assignments in a file of an installed framework."""
    return {
        ast.unparse(node.targets[0]): node.value
        for node in parsed(path).body
        if isinstance(node, ast.Assign)
    }


def test_paddles_lists() -> None:
    official = assigned("paddle/amp/amp_lists.py")
    ours = load_table("dialects/paddle.toml")
    for name in ("WHITE_LIST", "ONLY_FP16_WHITE_LIST", "FP16_BLACK_LIST", "EXTRA_BLACK_LIST"):
        assert set(ours[name]) == ast.literal_eval(official[name]), name
        for op in ours[name]:
            vocabulary().resolve(op, prefer="paddle")


def test_mindspores_lists() -> None:
    official = assigned("mindspore/train/amp.py")
    ours = load_table("dialects/mindspore.toml")
    for name in ("AMP_WHITE_LIST", "AMP_BLACK_LIST"):
        named = [ast.unparse(entry) for entry in official[name].elts]  # type: ignore[attr-defined]
        assert ours[name] == [entry.replace("P.", "ops.") for entry in named], name
        for op in ours[name]:
            vocabulary().resolve(f"mindspore.{op}")


def test_the_lists_that_are_handed_out_are_copies() -> None:
    paddle, mindspore = unamp.dialects.paddle, unamp.dialects.mindspore
    paddle.white_list()["float16"]["O1"].clear()
    mindspore.get_white_list().clear()
    assert "conv2d" in paddle.white_list()["float16"]["O1"]
    assert "mindspore.nn.Conv2d" in mindspore.get_white_list()
    assert (
        "fused_attention"
        in paddle.white_list()["float16"]["OD"] - paddle.white_list()["bfloat16"]["OD"]
    )
    assert paddle.black_list()["bfloat16"]["OD"] == set() != paddle.black_list()["bfloat16"]["O2"]


# --- policies where there is no Keras -------------------------------------------------------------


def test_a_global_policy_needs_keras() -> None:
    keras = unamp.dialects.keras
    assert "keras" not in sys.modules
    assert keras.global_policy().name == "float32"
    keras.set_global_policy("float32")
    with pytest.raises(
        unamp.NotExpressible, match=r"with unamp.autocast\(level='O2', dtype='float16'\)"
    ):
        keras.set_global_policy("mixed_float16")
    with pytest.raises(unamp.NotExpressible, match="dtype='bfloat16'"):
        keras.set_global_policy(keras.Policy("mixed_bfloat16"))
    assert keras.global_policy().name == "float32"


def test_a_policy_is_a_value() -> None:
    policy = unamp.dialects.keras.DTypePolicy
    mixed = policy("mixed_bfloat16")
    assert (mixed.name, mixed.compute_dtype, mixed.variable_dtype) == (
        "mixed_bfloat16",
        "bfloat16",
        "float32",
    )
    assert (policy().name, policy("float16").variable_dtype, mixed.quantization_mode) == (
        "float32",
        "float16",
        None,
    )
    assert repr(mixed) == '<DTypePolicy "mixed_bfloat16">'
    assert mixed == policy.from_config(mixed.get_config()) != policy("float32")
    assert hash(mixed) == hash(policy("mixed_bfloat16"))
    with pytest.raises(TypeError, match="must be a string"):
        policy(16)
    with pytest.raises(ValueError, match="Cannot convert 'mixed_int4'"):
        policy("mixed_int4")
    with pytest.raises(ValueError, match="Invalid `policy` argument"):
        unamp.dialects.keras.set_dtype_policy(3)


# --- checkpoints ----------------------------------------------------------------------------------


def test_a_state_moves_through_every_dialect() -> None:
    """Each dialect loads the state that the one before it saved, under its own framework's keys."""
    torch, paddle, mindspore = unamp.dialects.torch, unamp.dialects.paddle, unamp.dialects.mindspore
    first = torch.GradScaler("cpu", 1024.0, growth_interval=5)
    first.load_state_dict(first.state_dict() | {"_growth_tracker": 3})
    state = first.state_dict()
    assert (state["scale"], state["growth_interval"], state["_growth_tracker"]) == (1024.0, 5, 3)
    second = paddle.GradScaler()
    second.load_state_dict(state)
    assert second.get_init_loss_scaling() == 1024.0
    third = mindspore.DynamicLossScaler(1, 3, 1)
    third.load_state_dict(second.state_dict())
    assert third.state_dict() == {
        "scale_value": 1024.0,
        "scale_factor": 2.0,
        "scale_window": 5,
        "counter": 3,
    }
    fourth = unamp.GradScaler(growth_factor=4.0)
    fourth.load_state_dict(third.state_dict())
    keras = fourth.state_dict("keras")
    assert keras == {"dynamic_scale": 1024.0, "step_counter": 3, "dynamic_growth_steps": 5}
    first.load_state_dict(keras)
    assert first.state_dict() == state
    for scaler in (first, second):
        with pytest.raises(RuntimeError, match="the state is empty"):
            scaler.load_state_dict({})


def test_a_state_is_not_saved_for_who_would_go_on_with_other_rules() -> None:
    with pytest.raises(
        ValueError, match=r"keras's scalers go on with growth_factor=2.0; they cannot take over 4.0"
    ):
        unamp.GradScaler(growth_factor=4.0).state_dict("keras")
    with pytest.raises(ValueError, match="backoff_factor=0.25"):
        unamp.GradScaler(growth_factor=4.0).state_dict("mindspore")
    assert (
        unamp.GradScaler(growth_factor=4.0, backoff_factor=0.25).state_dict("mindspore")[
            "scale_factor"
        ]
        == 4.0
    )
    with pytest.raises(ValueError, match="backoff_interval=1"):
        unamp.GradScaler(backoff_interval=2).state_dict("keras")


# --- devices --------------------------------------------------------------------------------------


def test_torchs_devices(make_adapter: Any) -> None:
    torch = unamp.dialects.torch
    adapter = make_adapter()
    with pytest.warns(UserWarning, match="CUDA is not available"):
        region = torch.autocast("cuda")
    with torch.autocast("cpu"), region:
        # a region for another device changes nothing here
        assert unamp.get_autocast_dtype() == "bfloat16"
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not torch.GradScaler().is_enabled()
    adapter.has_gpu = True
    with torch.autocast("cuda:0") as opened:
        assert opened.fast_dtype == unamp.get_autocast_dtype() == "float16"
        assert unamp.current_policy() == unamp.Policy("O1", "float16", preset="torch-cuda")
        with (
            torch.cuda.amp.autocast(dtype="bfloat16", cache_enabled=False),
            torch.autocast("cuda") as inner,
        ):
            assert inner.fast_dtype == "bfloat16"  # None means the dtype around, as in torch
            assert unamp.current_policy() == unamp.Policy(
                "O1", "bfloat16", preset="torch-cuda", cache=False
            )
        with torch.autocast("cpu") as cpu:
            assert cpu.fast_dtype == "bfloat16"
    assert torch.GradScaler().is_enabled()
    assert torch.cuda.amp.GradScaler(2.0).get_scale() == 2.0
    assert not torch.cuda.amp.amp_definitely_not_available()


def test_torchs_tensors_are_left_to_torch_and_others_follow_its_lists(make_adapter: Any) -> None:
    torch, others = make_adapter("torch"), make_adapter("fake")
    region = unamp.dialects.torch.autocast("cpu", "float16")
    late = make_adapter("late")
    with region, region:
        assert torch.in_force == [unamp.Policy("O1", "float16", preset="native")] * 2
        assert (
            others.in_force
            == late.in_force
            == [unamp.Policy("O1", "float16", preset="torch-cpu")] * 2
        )
    others.fails_on_enter = unamp.NotExpressible("not here")
    with pytest.raises(unamp.NotExpressible), region:
        raise AssertionError
    assert torch.in_force == others.in_force == late.in_force == []
    assert unamp.current_policy() is None


def test_paddles_levels_and_dtypes(fake: Any) -> None:
    paddle = unamp.dialects.paddle
    for level in ("O1", "o2", "OD"):
        with paddle.auto_cast(level=level, dtype="BFloat16"):
            assert unamp.current_policy() == unamp.Policy(
                level.upper(), "bfloat16", preset="paddle", promote=True
            )
            assert paddle.is_autocast_enabled()
            assert paddle.get_autocast_dtype() == paddle.get_autocast_gpu_dtype() == "bfloat16"
    with paddle.autocast("gpu", enabled=False):
        assert not paddle.is_autocast_enabled()
        assert paddle.get_autocast_cpu_dtype() == "float16"
    with paddle.auto_cast(enable=False, dtype="float32"):
        assert not unamp.is_autocast_enabled()
    assert not paddle.is_float16_supported()  # the fake framework emulates float16
    assert paddle.is_bfloat16_supported("cpu")
    assert not paddle.is_bfloat16_supported("gpu:1")
    with pytest.raises(ValueError, match="The device should be"):
        paddle.is_bfloat16_supported("tpu")
