"""Kernels for the usual call of an operator, written out: plain tensors on the CPU, all of which a rule casts to one dtype.

`calls` carries out any call. There looking for tensors among the arguments, and calling one function after another, take as
long as casts do. Here that is one function without a loop, for each number of tensors that operators begin with. What a rule
casts to it takes from the same table (`calls.CASTS`), and whatever is not usual it leaves to the kernel of `calls`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from unamp_torch import calls
from unamp_torch.casting import ELIGIBLE, cast_weight
from unamp_torch.compiling import run_uncompiled
from unamp_torch.listing import Operator
from unamp_torch.state import CPU, CUDA, NATIVE_KEYS, excluded, set_excluded, thread

__all__ = ["kernel_of"]

#: The kernel. `calls._run` says why which keys are excluded; a build without CUDA has nothing on the other one.
_SOURCE = """
def make(name, call, no_kernel, own_key, before_dtype, general):
    def kernel({parameters}, *rest, **kwargs):
        plan = thread.plan
        if (
            plan is None
            or thread.sink is not None
            or (casts := plan.casts_on_cpu.get(name)) is None
            or {unusual}
            or not a0.is_cpu
            or excluded(CPU_KEY)
        ):
            return general({arguments}, *rest, **kwargs)
        dtype, to, keep = casts
        if keep and no_kernel:
            return general({arguments}, *rest, **kwargs)
        set_excluded(own_key, True)
        set_excluded(CPU_KEY, True)
        {exclude_other}
        try:
            {cast}
            if rest or kwargs:
                return call({tensors}, *rest, **kwargs)
            return call({tensors})
        except RuntimeError as error:
            if not keep or not says_no_kernel(error):
                raise
        finally:
            {include_other}
            set_excluded(CPU_KEY, False)
            set_excluded(own_key, False)
        return general({arguments}, *rest, **kwargs)  # which finds out that it has to be emulated
    return kernel
"""

#: How many lines are above it in this file: a traceback through a kernel shows them.
_ABOVE = sys._getframe().f_lineno - _SOURCE.count("\n") - 4

_CAST = (
    "a{n} = a{n} if {absent}(found := a{n}.dtype) is dtype or found not in ELIGIBLE "
    "else cast_weight(a{n}, dtype) if keep and a{n}.is_leaf and a{n}.requires_grad else to(a{n})"
)


def kernel_of(operator: Operator, own_key: torch._C.DispatchKey) -> Callable[..., Any]:
    """Return an operator's kernel for one of our keys."""
    general = calls.kernel_of(operator, own_key)
    eligible = operator.eligible
    count = len(eligible.positions)
    special = eligible.keywords or eligible.parameters or operator.sparse_position is not None
    if special or not 1 <= count <= 3 or eligible.positions != tuple(range(count)):
        return general
    types = [str(argument.type) for argument in operator.overload._schema.arguments[:count]]
    if types[0] != "Tensor" or not {"Tensor", "Optional[Tensor]"}.issuperset(types):
        return general
    position = operator.dtype_position
    make = _makes(tuple(kind != "Tensor" for kind in types), operator.composite, position is not None)
    before_dtype = 0 if position is None else position - count
    kernel: Callable[..., Any] = make(operator.name, operator.call, operator.no_kernel, own_key, before_dtype, general)
    run_uncompiled(kernel)
    return kernel


@cache
def _makes(optional: tuple[bool, ...], composite: bool, names_dtype: bool) -> Callable[..., Callable[..., Any]]:
    """Return what makes the kernels of operators that begin with so many tensors, some of which may be left out.

    Args:
        optional: for each tensor, whether it may be None.
        composite: whether the kernel is given the keyset, too.
        names_dtype: whether the operator has an argument that names the result's dtype.
    """
    keyset = ["keyset"] if composite else []
    tensors = [f"a{n}" for n in range(len(optional))]
    unusual = [f"type(a{n}) not in {'PLAIN_OR_NONE' if may else 'PLAIN'}" for n, may in enumerate(optional)]
    if names_dtype:
        unusual.append("kwargs or len(rest) > before_dtype")
    casts = (_CAST.format(n=n, absent=f"a{n} is None or " if may else "") for n, may in enumerate(optional))
    with_cuda = torch.backends.cuda.is_built()
    source = _SOURCE.format(
        parameters=", ".join(
            [*keyset, *(f"{name}=None" if may else name for name, may in zip(tensors, optional, strict=True))]
        ),
        arguments=", ".join([*keyset, *tensors]),
        tensors=", ".join(tensors),
        unusual=" or ".join(unusual),
        cast="; ".join(casts),
        exclude_other="other_off = excluded(CUDA_KEY); set_excluded(CUDA_KEY, True)" if with_cuda else "",
        include_other="set_excluded(CUDA_KEY, other_off)" if with_cuda else "",
    )
    names = dict(_NAMES)
    exec(compile("\n" * _ABOVE + source, __file__, "exec"), names)
    made: Callable[..., Callable[..., Any]] = names["make"]
    return made


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NAMES: dict[str, Any] = {
    "__name__": __name__,  # so that a traceback, too, shows them as ours
    "CPU_KEY": NATIVE_KEYS[CPU],
    "CUDA_KEY": NATIVE_KEYS[CUDA],
    "ELIGIBLE": ELIGIBLE,
    "PLAIN": _PLAIN,
    "PLAIN_OR_NONE": (*_PLAIN, type(None)),
    "cast_weight": cast_weight,
    "excluded": excluded,
    "says_no_kernel": calls.says_no_kernel,
    "set_excluded": set_excluded,
    "thread": thread,
}
