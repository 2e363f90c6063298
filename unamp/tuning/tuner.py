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


# A literal dtype tells which it will be; in a variable it is any string, and hardly one of float8.
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

    Everything else runs low. The network is run in float32, and then with some of its operations
    held in float32 and the others low, again and again.

    Args:
        run: takes a batch, runs the network, and returns results: tensors, arrays or numbers, in
            lists or mappings. The same batch must give the same results: evaluation mode, no random
            numbers. For training it may return the loss and the gradients (of a scaled loss,
            unscaled again).
        network: the network, whose layers the rules are about; on JAX also a function with named
            scopes, or what `haiku.transform` returns. None with ``by="operation"``, for a function
            without layers.
        batches: a list of batches. The last of several is held out: it shows the error on what the
            search has not seen.
        dtype: the low dtype; float16 unless `base` has another. ``"float8_e4m3"`` and
            ``"float8_e5m2"`` are studied (with ``_rows`` behind, each row has a scale of its own):
            which layers would bear products of factors that are scaled, rounded to float8, and
            scaled back, computed in float32. Where `run` computes gradients, those of the results
            are in float8_e5m2. A study takes `tolerance` and `measure` alone.
        tolerance: the largest error that is allowed. Without `measure` that is the relative error
            of each result, by norms.
        base: the policy to begin with; everything low unless given. Its deny list stays.
        by: what is held as one: an operation in a layer (``"place"``), wherever it is
            (``"operation"``), or all that a layer runs itself (``"layer"``).
        measure: the error of a run: a function of what `run` returned in float32, and in the run in
            question. A loss or an accuracy: ``lambda exact, low: abs(exact - low)``.
        effort: ``"halves"``, or ``"ranked"``: a further run for each place, which keeps more of the
            work low where many roundings add up.
        margin: the part of the tolerance that the search may use, so that other batches are within
            all of it.
        held_out: a batch to hold out in place of the last one.
        budget: how many runs, or for how long (``"90s"``, ``"10min"``), may be searched. Then the
            best so far is returned, as it is after Ctrl-C.
        resume: a file for what was tried. Where it exists, the search goes on with it.
        progress: a function called after every run with a `Step`; False for none. None: a line
            where there is a terminal.

    Returns:
        The cheapest policy that was found, and why. With a dtype of float8 the study: every layer
        with its errors, and the lists that torchao, Transformer Engine and Keras take.

    Raises:
        TypeError, ValueError: for bad arguments; where two float32 runs differ; where the error is
            beyond the tolerance with everything in float32; where nothing ran that a policy could
            have low; and where the budget ends before a search.
        NotExpressible: where the framework cannot follow a policy, or a rule on a layer, or
            computes no layer from float8.
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
        ValueError: without a network, and for an argument that says something to a search alone.
    """
    if network is None:
        raise ValueError("network is None, and a study in float8 is about layers: give the network")
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(tune).parameters.items()
    }
    for name, value in further.items():
        # A batch compares number by number; what has no default but None is said where it is
        # anything else.
        if value is not None if defaults[name] is None else value != defaults[name]:
            raise ValueError(
                f"{name} goes with a low dtype; a study in float8 takes tolerance and measure alone"
            )
