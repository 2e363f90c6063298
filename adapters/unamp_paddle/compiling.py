"""Keep the programs of `paddle.jit.to_static` by policy, and its compilers out of unamp's code.

Tracing a program runs Python, so regions inside and around it act as in eager mode: the
replacements of Paddle's functions compute on the program's values, and their casts become part of
the program. But a program traced under one policy must never run under another. So the policy in
force becomes part of every key under which Paddle keeps a program, a piece of translated bytecode,
or the dtype of an operation's result.
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
from paddle.jit.dy2static.utils import TransformOptions
from paddle.jit.sot.opcode_translator import skip_files
from paddle.jit.sot.utils import paddle_api_config

from unamp import custom_function, regions
from unamp._function_types import Function
from unamp._region_decorator import MARK
from unamp.adapter.layers import RulesInForce
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

#: Functions that open a region or ask about one, and the functions that they call: the simulation
#: may be inside one already.
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
    paddle.is_autocast_enabled,
    paddle.get_autocast_dtype,
)
# SOT simulates bytecode, and would also simulate these. It breaks its graph there instead: it runs
# the call as Python does, and simulates on after it.
for _function in _NOT_SIMULATED:
    paddle_api_config.add_break_graph_function(_function)
# Nor may it translate unamp's frames that run between the pieces of a graph, or the standard
# library's that read unamp's data there: it fails in them.
skip_files.skip_file_names.update(
    os.path.join(os.path.dirname(path), "") for path in (regions.__file__, __file__)
)
_READING = (difflib, pathlib, textwrap, tomllib)
# A package is skipped as a folder, a module as a file.
skip_files.skip_file_names.update(
    str(module.__file__).removesuffix("__init__.py") for module in _READING
)
skip_files.setup_skip_files()


def not_simulated(build: Callable[[], T]) -> T:
    """Return the result of `build`, which runs with SOT switched off.

    SOT would also translate the standard library's code that `build` uses.
    """
    simulation = core.set_eval_frame(None)
    try:
        return build()
    finally:
        core.set_eval_frame(simulation)


@as_replacement
def behind_regions(original: Function, self: FunctionCache, func: Any) -> object:
    """Wrap the translation of a function's source, so that unamp's decorators are not lost.

    Paddle translates the source of the innermost function, without its decorators.
    """
    region, widens = vars(func).get(MARK), vars(func).get(WIDENED, False)
    if region is None and not widens:
        return original(self, func)
    inner: Any = func.__wrapped__
    owner: tuple[object, ...] = ()
    if inspect.ismethod(inner):
        inner, owner = inner.__func__, (inner.__self__,)
    left = is_paddle_func(inner) or not inspect.isfunction(inner)
    if not left and TransformOptions.check_fn_need_transform(
        inner, TransformOptions.ToStaticMode.AST
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
    """Wrap Paddle's test for functions that stay untranslated: unamp's wrappers of PyLayers do."""
    code = getattr(function, "__code__", None)
    return getattr(code, "co_filename", None) == custom_function.__file__ or original(
        function, *args, **kwargs
    )


# Applied for good: a function may be translated before any region is open.
CodePatch(FunctionCache._convert, behind_regions).apply()
CodePatch(is_paddle_func, left_as_written).apply()


#: The rules for single layers: a traced program depends on them, too.
layer_rules = RulesInForce()


def _policy() -> tuple[Hashable, ...] | None:
    plan, rules = thread.plan, layer_rules.key
    if plan is None:
        # A region that is switched off keeps the default regions of libraries closed. A program
        # traced outside may have one in it, and must not run here.
        off = regions.keeps_defaults_out("paddle")
        return (None, "off" if off else None, rules) if off or rules is not None else None
    return (plan.policy, plan.layer_rule, rules)


@as_replacement
def as_written(original: Function, function: Function) -> object:
    """Wrap Paddle's reader of a function's arguments: it reads the original, not a replacement."""
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
    # One cache serves all threads: it holds this policy's state for the length of one call.
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
