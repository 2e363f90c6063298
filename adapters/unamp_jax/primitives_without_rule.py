"""One call of a primitive without a rule, which the vocabulary does not have.

It is left alone: its operands stay as they are, and a program that it carries was traced under the
policy before. Only operands that the primitive's own abstract evaluation refuses as they are, and
takes as float32, are widened: the code that calls it expects float32, and a rule made some low. A
function of the user's that a primitive carries runs under the policy; see `programs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unamp._function_types import Function, Keywords
from unamp_jax import programs
from unamp_jax.operands import Rest, abstract_values, cast
from unamp_jax.state import ELIGIBLE, FLOAT32, Plan, PyTree

if TYPE_CHECKING:
    import jax
    from jax.extend.core import Primitive


def carry_out(
    original: Function,
    primitive: Primitive,
    trace: jax.core.Trace,
    args: Sequence[object],
    rest: Rest,
    plan: Plan,
) -> PyTree:
    """Call a primitive without a rule."""
    avals, params = abstract_values(args, rest), rest[-1]
    given = programs.followed(primitive.name, params, plan)
    if given is not params:
        rest = (*rest[:-1], given)
    places = [n for n, aval in enumerate(avals) if getattr(aval, "dtype", None) in ELIGIBLE]
    if (
        len({avals[n].dtype for n in places}) > 1
        and plan.policy.active
        and not _takes(primitive, avals, params)
    ):
        widened, again = cast(trace, args, rest, avals, places, FLOAT32)
        if _takes(primitive, abstract_values(widened, again), params):
            return original(primitive, trace, widened, *again)
    return original(primitive, trace, args, *rest)


def _takes(primitive: Primitive, avals: Sequence[jax.core.AbstractValue], params: Keywords) -> bool:
    """Return whether a primitive's own abstract evaluation takes operands of these dtypes.

    A primitive without any takes all.
    """
    try:
        primitive.abstract_eval(*avals, **params)
    except NotImplementedError:
        return True
    except Exception:
        # of any kind: the evaluation is other people's code, and the call itself raises it again
        return False
    return True
