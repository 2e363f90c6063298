"""Regions and `paddle.jit.to_static`.

While a program is traced, Python runs, and regions inside it and around it act as they do in eager
mode: what stands in for Paddle's functions computes on the values of the program, casts included.
What has to be seen to is that a program traced under one policy is never run under another: the
policy in force becomes part of every key under which Paddle remembers a program, a piece of
translated bytecode, or the dtype that an operation answers in.
"""

from __future__ import annotations

import difflib
import inspect
import os
import pathlib
import textwrap
import threading
import tomllib
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import paddle
import paddle.jit.sot  # only its first use would load it, and keys must be complete from the first
from paddle.base import core
from paddle.jit.dy2static.convert_call_func import is_paddle_func
from paddle.jit.dy2static.program_translator import FunctionCache
from paddle.jit.sot.opcode_translator import skip_files
from paddle.jit.sot.utils import paddle_api_config

from unamp import custom_function, regions
from unamp._function_types import Function
from unamp._region_decorator import MARK
from unamp.adapter.layers import RulesInForce
from unamp.adapter.patching import find
from unamp.adapter.replacing import CodePatch, as_replacement
from unamp.amp_warnings import graph_ran
from unamp.layers.region import LayerRegion
from unamp.results import WIDENED, widened
from unamp_paddle.listing import unpatched
from unamp_paddle.state import thread

if TYPE_CHECKING:
    from paddle.jit.dy2static.program_translator import CacheKey
    from paddle.jit.sot.opcode_translator.executor.executor_cache import OpcodeExecutorCache

T = TypeVar("T")

#: Paddle's options of single functions, where this version has them.
_OPTIONS = find("paddle.jit.dy2static.utils", "TransformOptions")

#: Functions that open a region or ask about one, and those that they call, in case the simulation
#: is inside them already.
_NOT_SIMULATED = (
    *(
        each
        for each in vars(regions).values()
        if inspect.isfunction(each) and each.__module__ == regions.__name__
    ),
    regions.Region.__enter__,
    regions.Region.__exit__,
    regions.Region.here,
    regions.Region.__call__,
    LayerRegion.here,
    LayerRegion.finished,
    *(
        getattr(paddle, name)
        for name in ("is_autocast_enabled", "get_autocast_dtype")
        if hasattr(paddle, name)
    ),
)
# SOT simulates bytecode, and would go on into these. It stops before them instead, runs them, and
# goes on behind them.
for _function in _NOT_SIMULATED:
    paddle_api_config.add_break_graph_function(_function)
# Nor does it translate the frames of ours that run between the pieces, nor those of the standard
# library that read our data there: it fails in them.
skip_files.skip_file_names.update(
    os.path.join(os.path.dirname(path), "") for path in (regions.__file__, __file__)
)
_READING = (difflib, pathlib, textwrap, tomllib)
# Some are packages.
skip_files.skip_file_names.update(
    str(module.__file__).removesuffix("__init__.py") for module in _READING
)
skip_files.setup_skip_files()


def not_simulated(build: Callable[[], T]) -> T:
    """Return the result of `build`, while SOT translates nothing.

    It would translate the standard library, too, on which set-up relies.
    """
    simulation = core.set_eval_frame(None)
    try:
        return build()
    finally:
        core.set_eval_frame(simulation)


@as_replacement
def behind_regions(original: Function, self: FunctionCache, func: Any) -> object:
    """Wrap the translation of a function's source, so that unamp's decorators are not lost.

    The source is that behind all decorators.
    """
    region, widens = vars(func).get(MARK), vars(func).get(WIDENED, False)
    if region is None and not widens:
        return original(self, func)
    inner: Any = func.__wrapped__
    owner: tuple[object, ...] = ()
    if inspect.ismethod(inner):
        inner, owner = inner.__func__, (inner.__self__,)
    left = is_paddle_func(inner) or not inspect.isfunction(inner)
    if not left and (
        _OPTIONS is None or _OPTIONS.check_fn_need_transform(inner, _OPTIONS.ToStaticMode.AST)
    ):
        inner = self.convert_with_cache(inner)

    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for each in () if region is None else region.regions():
                stack.enter_context(each)
            result = inner(*owner, *args, **kwargs)
        return widened(result) if widens else result

    return run


@as_replacement
def left_as_written(original: Function, /, function: object, *args: Any, **kwargs: Any) -> bool:
    """Wrap the function that tells which functions are not translated.

    Those around the functions of a PyLayer are among them.
    """
    code = getattr(function, "__code__", None)
    return getattr(code, "co_filename", None) == custom_function.__file__ or original(
        function, *args, **kwargs
    )


# A function may be translated before any region is open, so these stay.
CodePatch(FunctionCache._convert, behind_regions).apply()
CodePatch(is_paddle_func, left_as_written).apply()


#: The rules that layers have: what is traced follows them.
layer_rules = RulesInForce()


def _policy() -> tuple[Hashable, ...] | None:
    plan, rules = thread.plan, layer_rules.key
    if plan is None:
        # A region that changes nothing still keeps the default regions of libraries out.
        off = regions.keeps_defaults_out("paddle")
        return (None, "off" if off else None, rules) if off or rules is not None else None
    return (plan.policy, plan.layer_rule, rules)


@as_replacement
def as_written(original: Function, function: Function) -> object:
    """Wrap the function that reads a function's arguments, so that it reads the code as written.

    It must not read the arguments of a stand-in.
    """
    return original(unpatched(function))


@as_replacement
def keyed_program(original: Function, /, self: CacheKey, *args: Any, **kwargs: Any) -> None:
    """Wrap the making of a program's key, so that the policy in force is part of it."""
    original(self, *args, **kwargs)
    if thread.sink is not None:
        graph_ran(
            "paddle",
            "paddle.jit.to_static(full_graph=True)",
            "call paddle.jit.enable_to_static(False) before",
        )
    if (policy := _policy()) is not None:
        self._spec_names_id = hash((self._spec_names_id, policy))


@as_replacement
def keyed(original: Function, /, *args: Any, **kwargs: Any) -> object:
    """Wrap the making of a cache's key, so that the policy in force is part of it."""
    key = original(*args, **kwargs)
    policy = _policy()
    return key if policy is None else (key, policy)


_lock = threading.RLock()
_states: dict[tuple[Hashable, ...], dict[str, object]] = {}


@as_replacement
def per_policy(original: Function, /, self: OpcodeExecutorCache, *args: Any, **kwargs: Any) -> Any:
    """Wrap the cache of translated bytecode, so that each policy has one of its own."""
    policy = _policy()
    if policy is None:
        return original(self, *args, **kwargs)
    with _lock:
        before = self.dump_state()
        if policy not in _states:
            _states[policy] = {
                "cache": {},
                "translate_count": 0,
                "code_symbolic_inputs": {},
                "compile_time_stats": {},
            }
        self.load_state(_states[policy])
        try:
            return original(self, *args, **kwargs)
        finally:
            _states[policy] = self.dump_state()
            self.load_state(before)
