"""The scaler's scale, steps, states and errors are right, on the fake framework."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import unamp
from unamp.scaling.loss_scale import FORMS


@pytest.fixture
def train(fake: Any, tensor: Any, optimizer: Any) -> Callable[..., bool]:
    """Return a function that runs one iteration with a scaler.

    It scales a loss, steps with one gradient of the loss's scaled value, and updates the scale.
    """

    def iterate(scaler: unamp.GradScaler, *, overflow: bool = False) -> bool:
        loss = scaler.scale(tensor("float32", 1.0))
        ran = scaler.step(optimizer(w=tensor("float32", math.inf if overflow else loss.value)))
        scaler.update()
        return ran

    return iterate


@pytest.fixture
def scaled(fake: Any, tensor: Any) -> Callable[..., unamp.GradScaler]:
    """Return a function that makes a scaler and scales a loss of 1."""

    def make(*args: Any, **kwargs: Any) -> unamp.GradScaler:
        scaler = unamp.GradScaler(*args, **kwargs)
        scaler.scale(tensor("float32", 1.0))
        return scaler

    return make


def test_an_overflow_skips_the_step_and_halves_the_scale(train: Any) -> None:
    scaler = unamp.GradScaler(1024.0, growth_interval=3)
    ran = [train(scaler, overflow=o) for o in (False, False, True, False, False, False)]
    assert ran == [True, True, False, True, True, True]
    assert scaler.get_scale() == 1024.0  # halved, then doubled after three in a row
    assert scaler.skipped == 1


@pytest.mark.parametrize(
    ("settings", "overflows", "scales"),
    [
        ({"growth_interval": 1}, "..", [16, 32]),
        ({"growth_interval": 2}, "..x..", [8, 16, 8, 8, 16]),
        ({"growth_factor": 1.5, "growth_interval": 1}, ".", [12]),
        ({"backoff_factor": 0.25}, "x", [2]),
        ({"backoff_interval": 2}, "xxx.x", [8, 4, 4, 4, 4]),
        ({"minimum": 3.0}, "xx", [4, 3]),
        ({"maximum": 20.0, "growth_interval": 1}, "..", [16, 20]),
        ({"dynamic": False, "growth_interval": 1}, ".x.", [8, 8, 8]),
    ],
)
def test_the_scale_after_every_update(
    train: Any, settings: dict[str, Any], overflows: str, scales: list[float]
) -> None:
    scaler = unamp.GradScaler(8.0, **settings)
    seen = []
    for sign in overflows:
        assert train(scaler, overflow=sign == "x") is (sign != "x")
        seen.append(scaler.get_scale())
    assert seen == scales
    assert scaler.skipped == overflows.count("x")


def test_the_scale_leaves_float32_in_neither_direction(train: Any) -> None:
    scaler = unamp.GradScaler(2.0**127, growth_interval=1)
    train(scaler)
    assert scaler.get_scale() == 2.0**127
    scaler.update(2.0**-125)
    for _ in range(3):
        train(scaler, overflow=True)
    # torch's own scale falls to 0, whose reciprocal makes every gradient NaN
    assert scaler.get_scale() == 2.0**-126


def test_products_are_rounded_to_float32(train: Any) -> None:
    scaler = unamp.GradScaler(1.0, growth_factor=1.1, growth_interval=1)
    train(scaler)
    assert scaler.get_scale() == 1.10000002384185791015625


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init_scale": 0.0}, "scale must be finite, from"),
        ({"init_scale": -1.0}, "scale must be finite, from"),
        ({"init_scale": math.inf}, "scale must be finite, from"),
        ({"init_scale": math.nan}, "scale must be finite, from"),
        ({"init_scale": 1e39}, "scale must be finite, from"),
        ({"init_scale": 4.0, "maximum": 2.0}, "from .* to 2.0, not 4.0"),
        ({"growth_factor": 1.0}, "growth_factor must be above 1, not 1.0"),
        ({"backoff_factor": 1.0}, "backoff_factor must be between 0 and 1, not 1.0"),
        ({"backoff_factor": 0.0}, "backoff_factor must be between 0 and 1, not 0.0"),
        ({"growth_interval": 0}, "growth_interval must be at least 1, not 0"),
        ({"backoff_interval": 0}, "backoff_interval must be at least 1, not 0"),
        ({"init_scale": 10**400}, "scale must be finite"),
        ({"minimum": 0.0}, "minimum must be a finite number of at least 2\\*\\*-126"),
        ({"minimum": 8.0, "maximum": 4.0}, "maximum must be at least the minimum 8.0, not 4.0"),
    ],
)
def test_bad_numbers(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unamp.GradScaler(**settings)


class _Tensor:
    """A tensor of floats that has `__index__` all the same, as PyTorch's has."""

    def __index__(self) -> int:
        raise TypeError("only integer tensors can be converted to an index")

    def __lt__(self, other: object) -> bool:
        return False

    def __int__(self) -> int:
        return 2


@pytest.mark.parametrize(
    "settings",
    [
        {"growth_interval": 2.0},
        {"growth_interval": _Tensor()},
        {"growth_factor": "2"},
        {"init_scale": [1.0, 2.0]},
    ],
)
def test_what_is_no_number_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(settings)).removeprefix('init_')} must be "):
        unamp.GradScaler(**settings)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("init_loss_scaling", "init_scale"),
        ("scale_window", "growth_interval"),
        ("initial_scale", "init_scale"),
        ("enable", "enabled"),
    ],
)
def test_another_frameworks_word_for_an_argument_is_answered_with_ours(
    theirs: str, ours: str
) -> None:
    with pytest.raises(
        TypeError, match=f"GradScaler has no argument '{theirs}'; did you mean '{ours}'"
    ):
        unamp.GradScaler(**{theirs: 1})  # type: ignore[arg-type]


def test_a_device_is_not_taken_for_a_scale() -> None:
    with pytest.raises(TypeError, match="not 'cuda'; a scaler needs no device"):
        unamp.GradScaler("cuda")  # type: ignore[arg-type]


def test_losses_are_scaled_in_any_nesting(fake: Any, tensor: Any) -> None:
    scaler = unamp.GradScaler(4.0)
    one, two, three = (tensor("float32", float(n)) for n in (1, 2, 3))
    first, [second, (third,)] = scaler.scale((one, [two, (three,)]))
    assert (first.value, second.value, third.value) == (4.0, 8.0, 12.0)
    assert [each.value for each in scaler.scale(t for t in (one, two))] == [4.0, 8.0]


@pytest.mark.parametrize("wrong", [3.0, "loss", {"loss": 1}, None, [1.0]])
def test_only_tensors_are_scaled(fake: Any, wrong: object) -> None:
    with pytest.raises(TypeError, match=r"scale\(\) takes tensors"):
        unamp.GradScaler().scale(wrong)


def test_scaling_is_outside_of_every_policy(fake: Any, tensor: Any) -> None:
    scaler = unamp.GradScaler()
    with unamp.autocast(dtype="float16", level="O3"):
        scaler.scale(tensor("float16", 1.0))
    scaler.scale(tensor("float32", 1.0))
    assert fake.scaled_under == [False, False]


def test_unscaling_then_stepping_unscales_once(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=tensor("float32", 16.0), frozen=None)
    scaler.unscale_(o)
    assert o.gradients["w"].value == 2.0
    o.gradients["w"].value = 1.0  # as clipping does
    assert scaler.step(o, "argument", option=3) is True
    assert o.total == 1.0
    assert o.steps == [("argument", ("option", 3))]


def test_one_overflow_among_several_optimizers(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler = scaled(8.0)
    good, bad = optimizer(w=tensor("float32", 8.0)), optimizer(w=tensor("float32", math.nan))
    assert scaler.step(good) is True
    assert scaler.step(bad) is False
    scaler.update()
    assert (good.total, bad.total, scaler.get_scale(), scaler.skipped) == (1.0, 0.0, 4.0, 1)


def test_gradients_that_are_handed_over(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=None)
    unscaled = scaler.unscale_(o, {"w": tensor("float32", 16.0)})
    assert unscaled["w"].value == 2.0
    assert scaler.step(o, gradients={"w": tensor("float32", 1.0)}) is True
    assert o.total == 1.0
    scaler.update()
    assert scaler.step(o, gradients={"w": tensor("float32", 24.0)}) is True
    assert o.total == 4.0
    scaler.update()
    assert scaler.step(o, gradients={"w": tensor("float32", math.inf)}) is False
    assert o.total == 4.0


def test_gradients_are_not_handed_over_half_way(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=tensor("float32", 8.0))
    scaler.unscale_(o)
    with pytest.raises(TypeError, match="the optimizer's parameters hold them"):
        scaler.step(o, gradients={"w": tensor("float32", 1.0)})
    assert scaler.step(o) is True


def test_the_first_overflow_is_named(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler = scaled()
    o = optimizer(
        a=tensor("float32", 1.0), b=tensor("float32", math.nan), c=tensor("float32", math.inf)
    )
    assert scaler.step(o) is False
    assert scaler.first_nonfinite(o) == "b"
    assert scaler.first_nonfinite(o, {"b": "layer.b"}) == "layer.b"
    assert scaler.first_nonfinite(optimizer(a=tensor("float32", 1.0))) is None


def test_stepping_twice(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=tensor("float32", 8.0))
    scaler.step(o)
    with pytest.raises(
        RuntimeError, match=r"step\(\) was called already for this optimizer since the last update"
    ):
        scaler.step(o)
    with pytest.raises(RuntimeError, match=r"step\(\) was called before it since the last update"):
        scaler.unscale_(o)
    assert (o.total, o.gradients["w"].value) == (1.0, 1.0)


def test_unscaling_twice(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=tensor("float32", 8.0))
    scaler.unscale_(o)
    with pytest.raises(
        RuntimeError, match=r"unscale_\(\) is called once .* called already since the last update"
    ):
        scaler.unscale_(o)
    assert o.gradients["w"].value == 1.0


def test_before_a_loss_is_scaled(fake: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = unamp.GradScaler(8.0), optimizer(w=tensor("float32", 8.0))
    for call in (scaler.step, scaler.unscale_):
        with pytest.raises(RuntimeError, match="no loss has been scaled"):
            call(o)
    assert (o.steps, o.gradients["w"].value) == ([], 8.0)


def test_without_gradients(scaled: Any, optimizer: Any) -> None:
    scaler, o = scaled(), optimizer(w=None)
    with pytest.raises(RuntimeError, match="none of the optimizer's parameters has a gradient"):
        scaler.step(o)
    with pytest.raises(RuntimeError, match=r"update\(\) found no gradients that were checked"):
        scaler.update()
    assert o.steps == []


def test_low_gradients(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=tensor("float32", 8.0), v=tensor("float16", 8.0))
    with pytest.raises(
        ValueError, match="there are float16 gradients: the optimizer's parameters are low already"
    ):
        scaler.step(o)
    assert ([g.value for g in o.gradients.values()], o.steps) == ([8.0, 8.0], [])


@pytest.mark.parametrize("given", [((lambda: None,), {}), ((), {"closure": lambda: None})])
def test_a_closure_is_refused(scaled: Any, tensor: Any, optimizer: Any, given: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=tensor("float32", 8.0))
    with pytest.raises(RuntimeError, match=r"step\(\) takes no closure"):
        scaler.step(o, *given[0], **given[1])
    assert o.gradients["w"].value == 8.0


@pytest.fixture
def by_value(make_adapter: Any) -> type:
    """Return the optimizer class of a framework that gives gradients as lists of numbers."""

    class Optimizer:
        taken: tuple[Any, ...] = ()

    class Values:
        def __init__(self, optimizer: Any, given: Any) -> None:
            self.optimizer, self.values = optimizer, given

        def dtypes(self) -> frozenset[str]:
            return frozenset({"float32"})

        def unscale(self, scale: float) -> None:
            self.values = [None if each is None else each / scale for each in self.values]

        def overflow(self) -> bool:
            return False

        def apply(self, *args: Any, **kwargs: Any) -> None:
            self.optimizer.taken = (self.values, *args, kwargs)

    adapter = make_adapter("values", optimizer=Optimizer, tensor=float)
    adapter.holds_gradients = False
    adapter.scale_loss = lambda loss, scale: loss * scale
    adapter.gradients = Values
    return Optimizer


@pytest.mark.parametrize("spelling", ["position", "keyword"])
def test_scaled_gradients_are_no_argument_of_a_step(by_value: type, spelling: str) -> None:
    scaler, optimizer = unamp.GradScaler(8.0), by_value()
    gradients = [scaler.scale(1.0), None]
    beside: Any = ((gradients,), {}) if spelling == "position" else ((), {"grad": gradients})
    with pytest.raises(ValueError, match="scaled gradients a second time"):
        scaler.step(optimizer, *beside[0], gradients=gradients, **beside[1])
    assert optimizer.taken == ()
    unscaled = scaler.unscale_(optimizer, gradients)
    assert scaler.step(optimizer, gradients=unscaled, grad=unscaled)
    assert optimizer.taken == ([1.0, None], {"grad": [1.0, None]})


def test_gradients_that_unscale_left_scaled_are_not_stepped_with(by_value: type) -> None:
    scaler, optimizer = unamp.GradScaler(8.0), by_value()
    gradients = [scaler.scale(1.0), None]
    unscaled = scaler.unscale_(optimizer, gradients)
    for again in (gradients, tuple(gradients)):
        with pytest.raises(ValueError, match="hand over the ones that it returned"):
            scaler.step(optimizer, gradients=again)
    assert optimizer.taken == ()
    gradients[:] = unscaled  # the same list with other gradients
    assert scaler.step(optimizer, gradients=gradients)
    assert optimizer.taken == ([1.0, None], {})


def test_another_frameworks_optimizer(
    scaled: Any, make_adapter: Any, tensor: Any, optimizer: Any
) -> None:
    other_optimizer, other_tensor = type("OtherOptimizer", (), {}), type("OtherTensor", (), {})
    make_adapter("other", optimizer=other_optimizer, tensor=other_tensor)
    scaler = scaled()
    for call in (scaler.step, scaler.unscale_, scaler.first_nonfinite):
        with pytest.raises(
            TypeError,
            match="losses of fake; OtherOptimizer is other's, which needs a scaler of its own",
        ):
            call(other_optimizer())
    with pytest.raises(TypeError, match="scales losses of fake; OtherTensor is other's"):
        scaler.scale(other_tensor())
    with pytest.raises(
        TypeError, match="str is no optimizer of a framework that is in use: .*fake"
    ):
        scaler.step("SGD")


def test_a_step_that_raises_can_be_taken_again(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=tensor("float32", 8.0))
    o.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        scaler.step(o)
    del o.step
    assert scaler.step(o) is True
    assert o.total == 1.0  # unscaled once


@pytest.mark.parametrize("clipped", [False, True])
def test_gradients_are_handed_over_again_after_a_step_that_raises(
    scaled: Any, tensor: Any, optimizer: Any, clipped: bool
) -> None:
    scaler, o = scaled(8.0), optimizer(w=None)
    given = {"w": tensor("float32", 8.0)}
    if clipped:
        given = scaler.unscale_(o, given)
    o.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        scaler.step(o, gradients=given)
    del o.step
    assert scaler.step(o, gradients=given) is True
    assert o.total == 1.0  # unscaled once


def test_without_dynamic_scaling_no_update_is_needed(
    scaled: Any, tensor: Any, optimizer: Any
) -> None:
    scaler, o = scaled(8.0, dynamic=False), optimizer(w=tensor("float32", 8.0))
    assert scaler.step(o) is True
    o.gradients["w"].value = math.inf
    assert scaler.step(o) is False
    scaler.update()
    assert scaler.get_scale() == 8.0


def test_a_disabled_scaler_does_nothing(fake: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o, loss = (
        unamp.GradScaler(enabled=False),
        optimizer(w=tensor("float16", math.inf)),
        tensor("float32", 3.0),
    )
    assert scaler.scale(loss) is loss
    assert scaler.unscale_(o) is None
    assert scaler.step(o) is True
    assert scaler.step(o) is True
    scaler.update()
    assert (len(o.steps), scaler.skipped, scaler.get_scale(), scaler.is_enabled()) == (
        2,
        0,
        1.0,
        False,
    )


def test_minimize_steps_and_updates(scaled: Any, tensor: Any, optimizer: Any) -> None:
    class Minimizing(optimizer):
        def minimize(self, loss: Any) -> tuple[str, Any]:
            self.step()
            return "done", loss

    scaler, o = scaled(8.0, growth_interval=1), Minimizing(w=tensor("float32", 8.0))
    assert scaler.minimize(o, "loss") == ("done", "loss")
    assert (o.total, scaler.get_scale()) == (1.0, 16.0)
    o.gradients["w"].value = math.nan
    assert scaler.minimize(o, "loss") == (None, None)
    assert (o.total, scaler.get_scale(), scaler.skipped) == (1.0, 8.0, 1)
    assert unamp.GradScaler(enabled=False).minimize(o, "loss") == ("done", "loss")
    with pytest.raises(
        TypeError, match=r"FakeOptimizer has no minimize\(\); call step\(\) and update"
    ):
        scaler.minimize(optimizer())


def test_a_new_scale(scaled: Any, tensor: Any) -> None:
    scaler = scaled(8.0)
    scaler.update(2)
    assert scaler.get_scale() == 2.0
    for wrong, error in ((0.0, ValueError), (math.inf, ValueError), ("4", TypeError)):
        with pytest.raises(error):
            scaler.update(wrong)
    assert scaler.get_scale() == 2.0


def test_pickles_and_copies_between_iterations(
    train: Any, scaled: Any, tensor: Any, optimizer: Any
) -> None:
    scaler = scaled(8.0, growth_interval=2)
    train(scaler)
    for again in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        train(again)
        assert again.get_scale() == 16.0
    shallow = copy.copy(scaler)
    scaler.unscale_(optimizer(w=tensor("float32", 8.0)))
    with pytest.raises(RuntimeError, match="between update"):
        pickle.dumps(scaler)
    # the half iteration belongs to the other scaler
    assert pickle.loads(pickle.dumps(shallow)).get_scale() == 8.0


def _state_of(form: str, train: Any) -> dict[str, Any]:
    scaler = (
        unamp.GradScaler(64.0, growth_interval=7)
        if form == "keras"
        else unamp.GradScaler(64.0, 4.0, 0.25, 7)
    )
    for overflow in (True, False, False):
        train(scaler, overflow=overflow)
    return scaler.state_dict(form)


def test_saved_states_have_each_frameworks_keys(train: Any) -> None:
    torch = {
        "scale": 16.0,
        "growth_factor": 4.0,
        "backoff_factor": 0.25,
        "growth_interval": 7,
        "_growth_tracker": 2,
    }
    assert _state_of("torch", train) == torch
    assert _state_of("unamp", train) == torch | {
        "backoff_interval": 1,
        "backoff_tracker": 0,
        "dynamic": True,
    }
    assert _state_of("paddle", train) == {
        "scale": [16.0],
        "incr_ratio": 4.0,
        "decr_ratio": 0.25,
        "incr_every_n_steps": 7,
        "decr_every_n_nan_or_inf": 1,
        "incr_count": 2,
        "decr_count": 0,
        "use_dynamic_loss_scaling": True,
    }
    with pytest.raises(
        ValueError, match="unknown form of a scaler's state 'jax'; valid: unamp, torch, paddle"
    ):
        unamp.GradScaler().state_dict("jax")


@pytest.mark.parametrize("form", ["torch", "mindspore", "keras"])
@pytest.mark.parametrize("rules", [{"dynamic": False}, {"backoff_interval": 2}])
def test_a_form_that_cannot_keep_a_rule_raises(form: str, rules: dict[str, Any]) -> None:
    (field,) = rules
    with pytest.raises(
        ValueError, match=f"{form}'s scalers go on with {field}=.*; they cannot take over"
    ):
        unamp.GradScaler(growth_interval=1, **rules).state_dict(form)


@pytest.mark.parametrize("rules", [{"dynamic": False}, {"backoff_interval": 2}])
def test_torchs_scaler_does_not_take_rules_that_it_would_drop(rules: dict[str, Any]) -> None:
    state = unamp.GradScaler(growth_interval=1, **rules).state_dict()
    assert "_growth_tracker" not in state  # torch.amp.GradScaler.load_state_dict needs it
    again = unamp.GradScaler()
    again.load_state_dict(state)
    assert again.state_dict() == state


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_scaler_goes_on_as_it_would_have(train: Any, form: str) -> None:
    settings = {"growth_interval": 3} | (
        {"backoff_interval": 2} if form in ("unamp", "paddle") else {}
    )
    whole = unamp.GradScaler(64.0, **settings)
    overflows = [False, True, True, False, True, False, False, False, True, True]
    for at, overflow in enumerate(overflows):
        resumed = unamp.GradScaler()
        resumed.load_state_dict(whole.state_dict(form))
        for rest in overflows[at:]:
            train(resumed, overflow=rest)
        clone = copy.deepcopy(whole)
        for rest in overflows[at:]:
            train(clone, overflow=rest)
        assert resumed.state_dict(form) == clone.state_dict(form)
        train(whole, overflow=overflow)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_with_wrong_or_missing_keys_changes_nothing(train: Any, form: str) -> None:
    good = _state_of(form, train)
    scaler = unamp.GradScaler(2.0)
    before = scaler.state_dict()
    for key in good:
        with pytest.raises(ValueError, match=f"missing: .*'{key}'|unknown: "):
            scaler.load_state_dict({k: v for k, v in good.items() if k != key})
    with pytest.raises(
        ValueError, match=f"nearest to {form}'s, unknown: 'epoch'; nothing was loaded"
    ):
        scaler.load_state_dict(good | {"epoch": 3})
    for key in good.keys() - {"dynamic", "use_dynamic_loss_scaling"}:
        with pytest.raises(TypeError, match="must be"):
            scaler.load_state_dict(good | {key: "many"})
    with pytest.raises(ValueError, match="scale must be"):
        scaler.load_state_dict(good | {next(key for key in good if "scale" in key): 0.0})
    assert scaler.state_dict() == before


def test_states_that_are_none(train: Any) -> None:
    scaler = unamp.GradScaler(2.0)
    with pytest.raises(RuntimeError, match="saved from a scaler that was disabled"):
        scaler.load_state_dict(unamp.GradScaler(enabled=False).state_dict())
    with pytest.raises(ValueError, match="not a scaler's state .* missing: "):
        scaler.load_state_dict({"param_groups": [], "state": {}})
    with pytest.raises(TypeError, match="a scaler's state is a dictionary, not list"):
        scaler.load_state_dict([])  # type: ignore[arg-type]
    assert scaler.get_scale() == 2.0
    off = unamp.GradScaler(enabled=False)
    off.load_state_dict(scaler.state_dict())
    assert off.get_scale() == 1.0


def test_loading_forgets_a_half_done_iteration(scaled: Any, tensor: Any, optimizer: Any) -> None:
    scaler, o = scaled(8.0), optimizer(w=tensor("float32", 8.0))
    state = scaler.state_dict()
    scaler.step(o)
    scaler.load_state_dict(state)
    assert scaler.step(o) is True
