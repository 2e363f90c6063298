"""Checks for static mode, in which a user builds programs by hand.

Programs are built with `paddle.enable_static`, `static.data`, layers and an `Executor`. In PIR,
Paddle's default since 3.0, the functions that a region replaces build them: a region around the
building is enough. The old IR appends operators by name, past these functions, so regions refuse
it.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle.base.framework import Variable, use_pir_api

from unamp._function_types import Function
from unamp.adapter.replacing import as_replacement
from unamp.errors import NotExpressible
from unamp.regions import current_policy
from unamp_paddle.state import Value

_in_dynamic_mode = paddle.in_dynamic_mode


def check_ir() -> None:
    """Check that a program that is being built is in PIR.

    Raises:
        NotExpressible: for a program of the old IR.
    """
    if not _in_dynamic_mode() and not use_pir_api():
        raise NotExpressible(
            "no policy reaches programs of Paddle's old IR (FLAGS_enable_pir_api=0, "
            "paddle.pir_utils.OldIrGuard): their operations would stay in float32. Build them in "
            "PIR, Paddle's default since 3.0, or outside of regions with "
            "paddle.static.amp.decorate(optimizer)"
        )


@as_replacement
def refusing(append_op: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Wrap the function that appends an operator to an old IR's program: it raises in regions."""
    policy = None if _in_dynamic_mode() else current_policy("paddle")
    if policy is not None and policy.active:
        check_ir()
    return append_op(*args, **kwargs)


def in_program(value: object) -> bool:
    """Return whether an object is a tensor in a program of either IR."""
    # Not `isinstance`: in dynamic mode, Paddle makes that true of every tensor.
    return isinstance(value, Value) or Variable in type(value).__mro__


def refuse_scaling(loss: object) -> None:
    """Check that a loss is no value of a program.

    Raises:
        NotExpressible: for such a value: the present scale would be a constant in the program.
    """
    if in_program(loss):
        raise NotExpressible(
            "the loss is a value in a program, in which the loss scale of this moment would be a "
            "constant. Under paddle.jit.to_static(full_graph=True) scale the loss outside of the "
            "function that is compiled. In a program that is built by hand use "
            "paddle.amp.GradScaler with paddle.static.amp.decorate(optimizer), which make the "
            "scale a part of the program, or bfloat16, which needs none"
        )


def refuse_decoration() -> None:
    """Check that Paddle is in dynamic mode, where parameters have numbers.

    Raises:
        NotExpressible: in static mode, where parameters are values in a program.
    """
    if not _in_dynamic_mode():
        raise NotExpressible(
            "decorate changes parameters that hold numbers, and in static mode "
            "(paddle.enable_static) they are values in a program. Open a region at level O2 or O3 "
            "where the program is built, which keeps float32 parameters and casts them where they "
            "are used; or decorate in dynamic mode (paddle.disable_static) and use "
            "paddle.jit.to_static"
        )
