"""Programs of static mode that a user builds by hand.

They are built with `paddle.enable_static`, `static.data`, layers and an `Executor`. In PIR,
Paddle's default since 3.0, they are built by the functions that a region replaces, casts included:
a region around the building is all that it takes. The old IR appends operators by their names,
which nothing of ours sees, so regions refuse it.
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
    """Check that programs which are built now are in PIR.

    Raises:
        NotExpressible: for the old IR.
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
    """Wrap the function that appends an operator to a program of the old IR.

    It raises after a region was opened.
    """
    policy = None if _in_dynamic_mode() else current_policy("paddle")
    if policy is not None and policy.active:
        check_ir()
    return append_op(*args, **kwargs)


def in_program(value: object) -> bool:
    """Return whether something stands for a tensor in a program, of either IR."""
    # In dynamic mode Paddle's `isinstance` takes every tensor for a `Variable`.
    return isinstance(value, Value) or Variable in type(value).__mro__


def refuse_scaling(loss: object) -> None:
    """Check that a loss is a number that has been computed.

    Raises:
        NotExpressible: for a value of a program, in which the present scale would be a constant.
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
    """Check that parameters are tensors with numbers in them.

    Raises:
        NotExpressible: in static mode, where they are names in a program.
    """
    if not _in_dynamic_mode():
        raise NotExpressible(
            "decorate changes parameters that hold numbers, and in static mode "
            "(paddle.enable_static) they are values in a program. Open a region at level O2 or O3 "
            "where the program is built, which keeps float32 parameters and casts them where they "
            "are used; or decorate in dynamic mode (paddle.disable_static) and use "
            "paddle.jit.to_static"
        )
