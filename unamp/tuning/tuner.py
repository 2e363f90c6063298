"""`unamp.tune`: the cheapest policy whose results stay within a tolerance of the float32 run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from unamp.dtypes import is_float8
from unamp.policy import Policy
from unamp.tuning import checks
from unamp.tuning.finishing import result_of
from unamp.tuning.float8 import Float8Study, study
from unamp.tuning.progress import Progress, showing
from unamp.tuning.search import Search
from unamp.tuning.subject import Subject
from unamp.tuning.trials import budget_of
from unamp.tuning.tuned import Tuned
from unamp.typing import DtypeLike, Float8Name


# A literal dtype selects the overload. A variable is any string: it is hardly ever one of float8.
@overload
def tune(
    run: Callable[[Any], Any],
    network: Any,
    batches: Sequence[Any],
    *,
    dtype: Float8Name,
    tolerance: float = 1e-2,
    measure: Callable[[Any, Any], Any] | None = None,
) -> Float8Study: ...


@overload
def tune(
    run: Callable[[Any], Any],
    network: Any,
    batches: Sequence[Any],
    *,
    dtype: DtypeLike | None = None,
    tolerance: float = 1e-2,
    base: Policy | None = None,
    by: str = "place",
    measure: Callable[[Any, Any], Any] | None = None,
    effort: str = "halves",
    margin: float = 0.8,
    held_out: Any = None,
    budget: object = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | Progress | None = None,
) -> Tuned: ...


def tune(
    run: Callable[[Any], Any],
    network: Any,
    batches: Sequence[Any],
    *,
    dtype: DtypeLike | None = None,
    tolerance: float = 1e-2,
    base: Policy | None = None,
    by: str = "place",
    measure: Callable[[Any, Any], Any] | None = None,
    effort: str = "halves",
    margin: float = 0.8,
    held_out: Any = None,
    budget: object = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | Progress | None = None,
) -> Tuned | Float8Study:
    """Find the operations to keep in float32 so that results stay within a tolerance.

    All other operations run low. The network runs in float32 first. Then it runs many times with
    some operations held in float32 and the others low.

    Args:
        run: takes a batch, runs the network, and returns results: tensors, arrays or numbers, in
            lists or mappings. The same batch must give the same results: use evaluation mode and no
            random numbers. For training, return the loss and the gradients (of a scaled loss,
            unscaled again).
        network: the network, whose layers get the rules. On JAX also a function with named scopes,
            or the result of `haiku.transform`. None with ``by="operation"``, for a function without
            layers.
        batches: a list of batches. The last of several is held out: the search does not use it, and
            the error on it is shown.
        dtype: the low dtype; by default that of `base`, or float16. With ``"float8_e4m3"`` or
            ``"float8_e5m2"`` the result is a study of the layers that may be in float8; with
            ``_rows`` behind the name, each row has a scale of its own. Factors of products are
            scaled, rounded to float8 and scaled back, and the product is computed in float32. Where
            `run` computes gradients, the gradients of results are in float8_e5m2. Of the arguments
            below, a study takes only `tolerance` and `measure`.
        tolerance: the largest error that is allowed. Without `measure` it is the relative error of
            each result, by norms.
        base: the policy to begin with; by default everything is low. Its deny list stays.
        by: the unit that is held: an operation in a layer (``"place"``), an operation wherever it
            is (``"operation"``), or all operations that a layer runs itself (``"layer"``).
        measure: a function that returns the error of a run. It takes what `run` returned in
            float32, and in that run. For a loss or an accuracy: ``lambda exact, low: abs(exact -
            low)``.
        effort: ``"halves"``, or ``"ranked"``: one more run for each place, which keeps more of the
            work low where many roundings add up.
        margin: the part of the tolerance that the search may use, so that other batches are within
            the whole of it.
        held_out: a batch to hold out in place of the last one.
        budget: the number of runs, or the time (``"90s"``, ``"10min"``), of the search. At its end
            the best result so far is returned, as after Ctrl-C.
        resume: a file for the trials. Where it exists, the search goes on with them.
        progress: a function that is called with a `Step` after every run; False for none. None
            shows a line on a terminal.

    Returns:
        The cheapest policy that was found, with the reasons. With a float8 dtype a study: every
        layer with its errors, and the lists that torchao, Transformer Engine and Keras take.

    Raises:
        TypeError, ValueError: for bad arguments; where two float32 runs differ; where the error is
            beyond the tolerance with everything in float32; where no operation ran that the policy
            would have low; and where the budget ends before the search.
        NotExpressible: where the framework cannot follow a policy, or a rule on a layer, or
            cannot compute a layer from float8.
    """
    checks.check_arguments(run, batches, tolerance, margin, by, effort)
    if dtype is not None and is_float8(dtype):
        further = {"base": base, "by": by, "effort": effort, "margin": margin, "held_out": held_out}
        _check_study(network, further | {"budget": budget, "resume": resume, "progress": progress})
        return study(run, network, batches, dtype, tolerance, measure)
    if network is None and by != "operation":
        raise ValueError(
            'network is None, which goes with by="operation" alone: there are no layers to hold'
        )
    policy = checks.base_policy(base, dtype)
    searched, fresh = (
        (batches, held_out)
        if held_out is not None or len(batches) == 1
        else (batches[:-1], batches[-1])
    )
    search = Search(
        Subject(run, network, policy, measure), searched, fresh, tolerance, tolerance * margin
    )
    search.by, search.effort, search.budget, search.resume = by, effort, budget_of(budget), resume
    with showing(progress) as search.progress:
        search.prepare()
        held = search.search()
        return result_of(search, held)


def _check_study(network: object, further: Mapping[str, object]) -> None:
    """Check the arguments of a study.

    Raises:
        ValueError: without a network, and for an argument that only a search takes.
    """
    if network is None:
        raise ValueError("network is None, and a study in float8 is about layers: give the network")
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(tune).parameters.items()
    }
    for name, value in further.items():
        # A batch has no single truth value when compared: where the default is None, only None
        # counts as not given.
        if value is not None if defaults[name] is None else value != defaults[name]:
            raise ValueError(
                f"{name} goes with a low dtype; a study in float8 takes tolerance and measure alone"
            )
