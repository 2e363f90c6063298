"""docs/examples/library.py on one framework: decisions, callers' policies, numbers, training.

Each framework's folder tests all `PROMISES` of the library with its own tensors, parameters and
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import documents  # noqa: F401 - it adds docs/examples to the path
import library
import numpy as np
import pytest

import unamp
from unamp.testing import assert_computed

#: The relative error of one rounding.
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LOW = ("float16", "bfloat16")


class Framework(NamedTuple):
    """The parts of a framework that a test needs and the library does not."""

    tensor: Callable[[Any], Any]
    parameter: Callable[[Any], Any]
    sgd: Callable[[Sequence[Any], float], Any]
    numpy: Callable[[Any], Any]


def _random(*shapes: tuple[int, ...]) -> list[Any]:
    generator = np.random.default_rng(17)
    return [generator.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


def _inputs(framework: Framework) -> list[Any]:
    return [framework.tensor(array) for array in _random(*[(2, 5, 8)] * 3)]


def default_is_in_force_where_nothing_is(framework: Framework) -> None:
    x, gain = (framework.tensor(array) for array in _random((5, 8), (8,)))
    with unamp.trace() as trace:
        library.attention(*_inputs(framework))
    assert_computed(trace, matmul="bfloat16", mul="bfloat16", softmax="float32")
    with unamp.trace() as trace, unamp.policy_region(library.DEFAULT):
        library.rms_norm(x, gain)
        loss = library.cross_entropy(x, framework.tensor(np.arange(5, dtype=np.int32)))
    assert_computed(trace, mul="float32", mean="float32", pow="float32", cross_entropy="float32")
    assert "float32" in str(loss.dtype).lower()
    assert unamp.current_policy() is None


def denied_softmax_is_what_the_policy_says(framework: Framework) -> None:
    """Check softmax at O2: it runs low, unless it is denied; the rule applies in the library."""
    for deny, computed in (((), "bfloat16"), ("softmax", "float32")):
        with unamp.trace() as trace:
            library.attention(*_inputs(framework), policy=unamp.Policy("O2", "bfloat16", deny=deny))
        assert_computed(trace, matmul="bfloat16", softmax=computed)


def regions_of_the_caller_go_before(framework: Framework) -> None:
    with unamp.trace() as trace, unamp.autocast(dtype="float16", deny="mul"):
        library.attention(*_inputs(framework))
    assert_computed(trace, matmul="float16", mul="float32")
    for off in (unamp.autocast(enabled=False), unamp.policy_region(unamp.Policy("O0"))):
        with unamp.trace() as trace, off:
            out = library.attention(*_inputs(framework))
        assert_computed(trace, matmul="float32", mul="float32", softmax="float32")
        assert "float32" in str(out.dtype).lower()


def numbers_agree_with_numpy(framework: Framework, dtype: str) -> None:
    """Check attention in a low dtype against float64, within the bound of its roundings.

    The norm and the loss are within float32's.
    """
    query, key, value = _random(*[(2, 5, 8)] * 3)
    with unamp.policy_region(library.DEFAULT.replace(dtype=dtype)):
        out = library.attention(*map(framework.tensor, (query, key, value)))
    exact, bound = _attention(query, key, value, UNIT[dtype])
    assert np.all(np.abs(framework.numpy(out) - exact) <= bound)

    x, gain = _random((5, 8), (8,))
    wide, u = x.astype(np.float64), UNIT["float32"]
    norm = framework.numpy(library.rms_norm(framework.tensor(x), framework.tensor(gain)))
    exact = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * gain
    # Sums of squares cancel nothing: each rounding counts once, one for each number that is added
    # and a dozen for the rest.
    assert np.all(np.abs(norm - exact) <= _gamma(8 + 12, u) * np.abs(exact))

    labels = np.arange(5, dtype=np.int32)
    loss = framework.numpy(library.cross_entropy(framework.tensor(x), framework.tensor(labels)))
    exact = np.mean(np.log(np.exp(wide).sum(-1)) - wide[np.arange(5), labels])
    assert abs(float(loss) - exact) <= _gamma(8 + 12, u) * (np.log(8) + 2 * np.abs(wide).max())


def _gamma(roundings: int, unit: float) -> float:
    """Return the largest relative error of successive roundings (Higham's gamma)."""
    return roundings * unit / (1 - roundings * unit)


def _attention(query: Any, key: Any, value: Any, unit: float) -> tuple[Any, Any]:
    """Return attention in float64, and the largest difference of one in a low dtype.

    The low one has softmax in float32, and all else in the low dtype. A score is rounded five
    times: query, key, product, scale, and their product. Sums are in float32, for which one more
    rounding is enough. Scores that are off by d change softmax's results by the factor exp(2 d) at
    most. The weights, the values and the result are rounded once each; one more is for float32.
    """
    query, key, value = (each.astype(np.float64) for each in (query, key, value))
    scale = query.shape[-1] ** -0.5
    scores = query @ key.swapaxes(-1, -2) * scale
    off = (
        _gamma(6, unit)
        * scale
        * (np.abs(query) @ np.abs(key).swapaxes(-1, -2)).max(-1, keepdims=True)
    )
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return weights @ value, (np.exp(2 * off) * (1 + _gamma(4, unit)) - 1) * (
        weights @ np.abs(value)
    )


def training_steps_lower_the_loss(framework: Framework) -> None:
    """Check float16 training from a loss scale that overflows: steps are skipped until it fits."""
    x, *weights = _random((8, 5, 8), *[(8, 8)] * 3, (8, 4))
    gain, query, key, value, head = parameters = [
        framework.parameter(each) for each in (np.ones(8, np.float32), *weights)
    ]
    batch = framework.tensor(x), framework.tensor(np.arange(8, dtype=np.int32) % 4)

    def loss_of(x: Any, labels: Any) -> Any:
        normed = library.rms_norm(x, gain)
        mixed = x + library.attention(normed @ query, normed @ key, normed @ value)
        return library.cross_entropy(library.functions_of(x).mean(mixed, 1, False) @ head, labels)

    optimizer, scaler = (
        framework.sgd(parameters, 0.5),
        unamp.GradScaler(2.0**24, backoff_factor=2.0**-4),
    )
    before = [np.array(framework.numpy(each)) for each in parameters]
    losses, taken = [], []
    for _ in range(12):
        with unamp.trace() as trace:
            loss, step = library.training_step(
                loss_of,
                parameters,
                optimizer,
                scaler,
                *batch,
                policy=unamp.Policy("O2", "float16", deny="softmax"),
            )
        assert_computed(trace, softmax="float32", cross_entropy="float32")
        losses.append(float(framework.numpy(loss)))
        taken.append(step)
    assert not taken[0]
    assert taken[-1]
    assert scaler.skipped == taken.count(False)
    assert losses[-1] < 0.8 * losses[0]
    assert all(
        np.any(old != framework.numpy(new)) for old, new in zip(before, parameters, strict=True)
    )
    with unamp.trace() as trace:
        loss, step = library.training_step(
            loss_of, parameters, optimizer, unamp.GradScaler(enabled=False), *batch
        )
    # bfloat16, the library's default, needs no scale
    assert_computed(trace, matmul="bfloat16", softmax="float32")
    assert step
    assert float(framework.numpy(loss)) < 0.8 * losses[0]
    assert unamp.current_policy() is None


#: The promises of the library on every framework.
PROMISES: dict[str, Callable[[Framework], None]] = {
    "default": default_is_in_force_where_nothing_is,
    "denied": denied_softmax_is_what_the_policy_says,
    "callers": regions_of_the_caller_go_before,
    **{f"numbers-{dtype}": partial(numbers_agree_with_numpy, dtype=dtype) for dtype in LOW},
    "training": training_steps_lower_the_loss,
}


@pytest.mark.parametrize("promise", PROMISES)
def test_the_library_keeps(request: pytest.FixtureRequest, promise: str) -> None:
    """Check one promise; the folder's module has the framework's parts as `FRAMEWORK`."""
    PROMISES[promise](request.module.FRAMEWORK)
