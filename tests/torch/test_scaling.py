"""The scaler on PyTorch agrees with torch.amp's own."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from elsewhere import python
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import said_by_ranks, skipped_together
from torch.utils._python_dispatch import TorchDispatchMode

import unamp
from unamp.dialects.torch import amp

pytestmark = pytest.mark.beside_kernels

GOOD, BAD, UNSCALED = "good", "bad", "unscaled"


def native(**kwargs: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **kwargs)


class Side:
    """A scaler with two optimizers.

    The second optimizer has parameters of another dtype and a loss of its own.
    """

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler
        self.weights = [
            torch.ones(3, requires_grad=True),
            torch.ones(2, dtype=torch.float64, requires_grad=True),
        ]
        self.optimizers = [torch.optim.SGD([w], lr=0.125) for w in self.weights]

    def iterate(self, events: tuple[str, str], new_scale: float | None) -> None:
        losses = [
            (w * (math.inf if event == BAD else 0.25)).sum()
            for w, event in zip(self.weights, events, strict=True)
        ]
        for loss in self.scaler.scale(losses):
            loss.backward()
        for optimizer, event in zip(self.optimizers, events, strict=True):
            if event == UNSCALED:
                self.scaler.unscale_(optimizer)
            self.scaler.step(optimizer)
            optimizer.zero_grad()
        self.scaler.update(new_scale)


iterations = st.tuples(
    st.tuples(st.sampled_from([GOOD, BAD, UNSCALED]), st.sampled_from([GOOD, BAD, UNSCALED])),
    st.none() | st.floats(2.0**-10, 2.0**20, width=32),
)


@settings(deadline=None, max_examples=100)
@given(
    events=st.lists(iterations, max_size=12),
    init_scale=st.floats(2.0**-20, 2.0**100, width=32),
    growth_factor=st.floats(1.0, 1e6, exclude_min=True),
    backoff_factor=st.floats(1e-3, 1.0, exclude_max=True),
    growth_interval=st.integers(1, 4),
)
def test_after_any_sequence_it_is_where_torchs_own_is(events: Any, **settings: Any) -> None:
    ours, theirs = Side(unamp.GradScaler(**settings)), Side(native(**settings))
    for each in events:
        ours.iterate(*each)
        theirs.iterate(*each)
        assert ours.scaler.state_dict("torch") == theirs.scaler.state_dict()
    for mine, own in zip(ours.weights, theirs.weights, strict=True):
        torch.testing.assert_close(mine, own, rtol=0, atol=0, equal_nan=True)
    assert ours.scaler.skipped == sum(event == BAD for pair, _ in events for event in pair)


def _call(side: Side, name: str, which: int) -> bool:
    """Make one call; return whether it was accepted."""
    scaler, optimizer = side.scaler, side.optimizers[which]
    if name in (GOOD, BAD):
        optimizer.zero_grad()
        scaler.scale((side.weights[which] * (math.inf if name == BAD else 0.25)).sum()).backward()
        return True
    try:
        scaler.update() if name == "update" else getattr(scaler, name)(optimizer)
    except (RuntimeError, AssertionError):
        return False
    return True


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from([GOOD, BAD, "unscale_", "step", "update"]), st.integers(0, 1)),
        max_size=24,
    )
)
def test_it_accepts_and_refuses_what_torchs_own_does(calls: list[tuple[str, int]]) -> None:
    ours, theirs = (
        Side(unamp.GradScaler(1024.0, growth_interval=2)),
        Side(native(init_scale=1024.0, growth_interval=2)),
    )
    for call in [(GOOD, 0), (GOOD, 1), *calls]:
        assert _call(ours, *call) == _call(theirs, *call)
        assert ours.scaler.state_dict("torch") == theirs.scaler.state_dict()
        for mine, own in zip(ours.weights, theirs.weights, strict=True):
            torch.testing.assert_close(mine, own, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(mine.grad, own.grad, rtol=0, atol=0, equal_nan=True)


def _network() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )


def _data(step: int, *, overflow: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return (x * math.inf if overflow else x), x.sum(1, keepdim=True).sin()


def _loss(
    network: torch.nn.Module, step: int, *, overflow: bool = False, **policy: Any
) -> torch.Tensor:
    x, y = _data(step, overflow=overflow)
    with unamp.autocast(**{"dtype": "float16"} | policy):
        return torch.nn.functional.mse_loss(network(x), y)


def plain(network: Any, optimizer: Any, scaler: Any, step: int) -> None:
    scaler.scale(_loss(network, step, overflow=step == 5)).backward()
    scaler.step(optimizer)


def clipping(network: Any, optimizer: Any, scaler: Any, step: int) -> None:
    scaler.scale(_loss(network, step, overflow=step == 5)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
    scaler.step(optimizer)


def accumulating(network: Any, optimizer: Any, scaler: Any, step: int) -> None:
    for part in range(3):
        scaler.scale(
            _loss(network, 100 * part + step, overflow=(step, part) == (5, 1)) / 3
        ).backward()
    scaler.step(optimizer)


def penalised(network: Any, optimizer: Any, scaler: Any, step: int) -> None:
    loss = _loss(network, step, overflow=step == 5)
    parameters = list(network.parameters())
    scaled = torch.autograd.grad(scaler.scale(loss), parameters, create_graph=True)
    gradients = [gradient / scaler.get_scale() for gradient in scaled]
    with unamp.autocast(dtype="float16"):
        loss = loss + 0.1 * sum(gradient.square().sum() for gradient in gradients).sqrt()
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def two_losses(network: Any, optimizer: Any, scaler: Any, step: int) -> None:
    for loss in scaler.scale((_loss(network, step), _loss(network, step + 50, overflow=step == 5))):
        loss.backward()
    scaler.step(optimizer)


FUSED = [partial(optimizer, fused=True) for optimizer in (torch.optim.SGD, torch.optim.Adam)]


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, *FUSED])
@pytest.mark.parametrize("manner", [plain, clipping, accumulating, penalised, two_losses])
def test_training_is_torchs_own_to_the_bit(manner: Any, make: Any) -> None:
    ended = []
    for scaler in (
        unamp.GradScaler(4096.0, growth_interval=4),
        native(init_scale=4096.0, growth_interval=4),
    ):
        network = _network()
        optimizer = make(network.parameters(), lr=0.01)
        for step in range(12):
            optimizer.zero_grad()
            manner(network, optimizer, scaler, step)
            scaler.update()
        ended.append((scaler.get_scale(), [p.detach().clone() for p in network.parameters()]))
    assert ended[0][0] == ended[1][0] != 4096.0
    assert all(torch.equal(a, b) for a, b in zip(ended[0][1], ended[1][1], strict=True))


def test_a_checkpoint_moves_to_torchs_own_and_back() -> None:
    ours = unamp.GradScaler(64.0, 4.0, 0.25, 7)
    side = Side(ours)
    for event in (BAD, GOOD, GOOD):
        side.iterate((event, GOOD), None)
    for form in ("torch", "unamp"):
        theirs = native()
        theirs.load_state_dict(ours.state_dict(form))
        assert theirs.state_dict() == ours.state_dict("torch")
        back = unamp.GradScaler()
        back.load_state_dict(theirs.state_dict())
        assert back.state_dict() == ours.state_dict()


def test_a_low_scalar_does_not_overflow_by_the_scale_itself() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        loss = torch.tensor(3.0, dtype=dtype, requires_grad=True)
        scaled, theirs = unamp.GradScaler().scale(loss), native().scale(loss)
        assert (
            (scaled.dtype, scaled.item())
            == (theirs.dtype, theirs.item())
            == (torch.float32, 3 * 65536.0)
        )


class _Reads(TorchDispatchMode):
    """Count the reads of a tensor's number: on a GPU each waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_it_waits_for_the_device_as_often_as_torchs_own() -> None:
    counts = []
    for scaler in (unamp.GradScaler(), native()):
        side = Side(scaler)
        with _Reads() as reads:
            for events in ((GOOD, BAD), (UNSCALED, GOOD)):
                side.iterate(events, None)
        counts.append(reads.count)
    assert counts[0] == counts[1] == 4


def test_the_first_overflow_is_named() -> None:
    network = _network()
    scaler = unamp.GradScaler()
    by_place = torch.optim.SGD(
        [{"params": network[0].parameters()}, {"params": network[3].parameters()}], lr=0.1
    )
    by_name = torch.optim.SGD(network.named_parameters(), lr=0.1)
    scaler.scale(network(_data(0)[0]).sum()).backward()
    assert scaler.first_nonfinite(by_place) is None
    network[3].weight.grad[0, 3] = math.nan
    network[3].bias.grad[0] = math.inf
    assert scaler.step(by_place) is False
    assert scaler.first_nonfinite(by_place) == "parameter 0 of group 1"
    assert scaler.first_nonfinite(by_place, network) == "3.weight"
    assert scaler.first_nonfinite(by_name) == "3.weight"


def test_an_optimizer_that_minimizes_nothing_is_named() -> None:
    with pytest.raises(TypeError, match=r"SGD has no minimize\(\)"):
        unamp.GradScaler().minimize(torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1))


def test_gradients_are_not_kept_alive_until_the_update() -> None:
    w = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    scaler = unamp.GradScaler()
    scaler.scale(w.sum()).backward()
    gone = []
    torch.utils.weak.weakref.finalize(w.grad.untyped_storage(), gone.append, True)
    scaler.step(optimizer)
    optimizer.zero_grad()
    assert gone == [True]
    scaler.update()


#: The first parameter whose gradient overflows on the second rank. Where gradients are averaged, it
#: overflows on the first rank, too.
NAMED = {
    "replicated": "module.0.weight",
    "decorated": "module.0.weight",
    "sharded": "0.weight",
    "flattened": "_fsdp_wrapped_module._flat_param",
    "flattened-named": "_fsdp_wrapped_module.0.weight",
}


def test_the_closure_of_a_step_without_a_scale_computes_under_the_policy_around_it() -> None:
    w, seen = torch.ones(3, 3, requires_grad=True), []

    def closure() -> torch.Tensor:
        loss = (w @ w).sum()
        seen.append(loss.dtype)
        loss.backward()
        return loss

    with unamp.autocast(level="O3", dtype="bfloat16"):
        unamp.GradScaler(enabled=False).step(torch.optim.SGD([w], lr=0.1), closure)
    assert seen == [torch.bfloat16]


def _fitting(
    make: Callable[[Any], torch.optim.Optimizer], dtype: str
) -> tuple[torch.optim.Optimizer, Callable[..., Any]]:
    """Return an optimizer, and the closure of a small fit under a policy.

    The closure takes the function that scales the loss.
    """
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(4, 1), torch.randn(64, 4)
    y, optimizer = x @ torch.ones(4, 1), make(layer.parameters())

    def closure(scale: Callable[[Any], Any] = lambda loss: loss) -> torch.Tensor:
        optimizer.zero_grad()
        with unamp.autocast(dtype=dtype):
            loss = torch.nn.functional.mse_loss(layer(x), y)
        scale(loss).backward()
        return loss.detach()

    return optimizer, closure


def test_the_closure_of_a_search_steps_without_a_scale_as_its_error_says() -> None:
    optimizer, closure = _fitting(torch.optim.LBFGS, "bfloat16")
    scaler, before = unamp.GradScaler(), float(closure())
    with pytest.raises(
        RuntimeError, match=r"compute in bfloat16 or float32.* write optimizer\.step\(closure\)"
    ):
        scaler.step(optimizer, closure)
    assert float(closure()) == before
    optimizer.step(closure)
    unamp.GradScaler(enabled=False).step(optimizer, closure)
    assert float(closure()) < before / 100


def test_a_closure_that_is_called_before_a_scaled_step_does_what_the_optimizer_would_do_with_it() -> None:  # fmt: skip  # noqa: E501
    (optimizer, closure), (exact, exact_closure) = [
        _fitting(partial(torch.optim.SGD, lr=0.1), "float16") for _ in range(2)
    ]
    scaler = unamp.GradScaler(2.0**10)
    with pytest.raises(
        RuntimeError, match=r"call it before: closure\(\); scaler\.step\(optimizer\)"
    ):
        scaler.step(optimizer, closure)
    for _ in range(3):
        closure(scaler.scale)
        assert scaler.step(optimizer)
        scaler.update()
        exact.step(exact_closure)
    # An output is below 8, so a rounding that falls the other way moves it by at most 2**-8. The
    # loss moves by at most twice its root times that.
    torch.testing.assert_close(closure(), exact_closure(), rtol=2.0**-6, atol=2.0**-6)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the outcome on each of two ranks, by the manner of sharing the work."""
    script, meeting = (
        Path(__file__).with_name("data_parallel.py"),
        tmp_path_factory.mktemp("ranks") / "meeting",
    )
    command = [sys.executable, str(script), str(meeting)]
    return said_by_ranks([[*command, str(rank), *NAMED] for rank in range(2)])


@pytest.mark.parametrize("manner", NAMED)
def test_an_overflow_on_one_rank_skips_the_step_on_every_rank(
    manner: str, two_ranks: list[dict[str, Any]]
) -> None:
    first, second = [rank[manner] for rank in two_ranks]
    skipped_together(first, second)
    name = NAMED[manner]
    assert (first["named"], second["named"]) == (name if name.startswith("module.") else None, name)


class Told(torch.optim.Optimizer):
    """Note what a scaler tells an optimizer whose fused kernel unscales by itself."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self._step_supports_amp_scaling = True
        self.told: list[tuple[Any, float]] = []

    def step(self, closure: Any = None) -> Any:
        self.told.append((self.grad_scale, float(self.found_inf)))


def test_an_optimizer_that_supports_scaling_is_told_what_torchs_scaler_tells_it() -> None:
    told = []
    for scaler in (torch.amp.GradScaler("cpu"), unamp.GradScaler()):
        layer = torch.nn.Linear(2, 2)
        optimizer = Told(layer.parameters())
        scaler.scale(layer(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        told.append(optimizer.told)
        assert not hasattr(optimizer, "grad_scale")
        assert not hasattr(optimizer, "found_inf")
    assert told[0] == told[1] == [(None, 0.0)]


class StepsByItself(torch.optim.SGD):
    """Take the scaler and unscale with it, as an optimizer with scaling of its own does."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:
        scale = grad_scaler.get_scale()
        grad_scaler.unscale_(self)
        if all(
            bool(p.grad.isfinite().all()) for group in self.param_groups for p in group["params"]
        ):
            super().step()
        return scale


def test_an_optimizer_whose_step_takes_the_scaler_is_handed_it() -> None:
    found = []
    for scaler in (
        torch.amp.GradScaler("cpu", 8.0),
        amp.GradScaler("cpu", 8.0),
        unamp.GradScaler(8.0),
    ):
        weight = torch.nn.Parameter(torch.arange(1.0, 5.0))
        optimizer = StepsByItself([weight], lr=0.1)
        results, scales = [], []
        for factor in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale((weight * weight * factor).sum()).backward()
            with pytest.warns(FutureWarning, match="GradScaler"):
                results.append(scaler.step(optimizer))
            scaler.update()
            scales.append(scaler.get_scale())
        found.append((weight.tolist(), scales))
        assert results == ([True, False, True] if isinstance(results[0], bool) else [8.0, 8.0, 4.0])
    assert found[0] == found[1] == found[2]
    assert found[0][1] == [8.0, 4.0, 4.0]


# --- PyTorch's own scaler in a region -------------------------------------------------------------

#: Policies that make a sum or a product low.
LOW_SUMS = {
    "O2": {"level": "O2"},
    "O3": {"level": "O3"},
    "allowed": {"allow": ["add", "mul"]},
    "one low, all low": {"preset": "tensorflow"},
}
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "fused SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.5, fused=True),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True),
}


def _own_steps(make: Any, region: unamp.Region, *, inside: bool, unscale: bool) -> list[Any]:
    """Train with PyTorch's own scaler inside a region, or around it; one step overflows."""
    torch.manual_seed(0)
    net, scaler = torch.nn.Linear(8, 4), native(init_scale=1024.0)
    optimizer, told = make(net.parameters()), []
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        with ExitStack() as open_region:
            open_region.enter_context(region)
            loss = net(torch.linspace(-1, 1, 16).reshape(2, 8)).float().square().sum()
            if not inside:
                open_region.close()
            scaled = scaler.scale(loss)
            assert scaled.dtype == torch.float32
            scaled.backward(torch.tensor(factor))
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        told += [scaler.get_scale(), *(each.detach().clone() for each in net.parameters())]
    return told


@pytest.mark.parametrize("unscale", [False, True], ids=["step", "unscale_"])
@pytest.mark.parametrize("policy", LOW_SUMS)
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_pytorchs_own_scaler_computes_the_same_inside_of_a_region(
    make: str, policy: str, unscale: bool
) -> None:
    region = unamp.autocast("cpu", dtype="bfloat16", **LOW_SUMS[policy])
    inside, outside = (
        _own_steps(OPTIMIZERS[make], region, inside=each, unscale=unscale) for each in (True, False)
    )
    assert inside[::3] == [1024.0, 512.0, 512.0]
    for one, other in zip(inside, outside, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_a_float16_loss_does_not_overflow_in_pytorchs_own_scaler() -> None:
    loss = torch.tensor(2.0, dtype=torch.float16)
    with unamp.autocast("cpu", dtype="float16", level="O2"):
        assert float(native(init_scale=2.0**16).scale(loss)) == 2.0**17
        assert (loss * 2.0).dtype == torch.float16


def test_a_closure_in_pytorchs_own_scaler_is_under_the_policy() -> None:
    w, seen = torch.ones(2, 2, requires_grad=True), []
    optimizer, scaler = torch.optim.SGD([w], 0.1), native(init_scale=2.0)

    def closure() -> float:
        seen.append((w @ w).dtype)
        return 1.0

    with unamp.autocast("cpu", dtype="bfloat16", level="O2"):
        scaler.scale(w.sum()).backward()
        assert scaler.step(optimizer, closure) == 1.0
        assert (w + w).dtype == torch.bfloat16
    assert seen == [torch.bfloat16]


@pytest.mark.filterwarnings("error:Dynamo does not know")
def test_pytorchs_own_scaler_in_a_compiled_function() -> None:
    scaler, x = native(init_scale=4.0), torch.ones(3, requires_grad=True)
    scaler.scale(x.sum())  # makes the scale, which a graph reads

    @torch.compile(backend="aot_eager")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        with unamp.autocast("cpu", dtype="bfloat16", level="O2"):
            return scaler.scale((x * x).sum())

    found = scaled(x)
    assert (found.dtype, found.item()) == (torch.float32, 12.0)


def test_other_threads_and_native_regions_have_pytorchs_own_scaler() -> None:
    w = torch.ones(2, requires_grad=True)
    with unamp.autocast("cpu", dtype="bfloat16", level="O2"):
        with unamp.autocast("cpu", dtype="bfloat16", preset="native"):
            assert native(init_scale=2.0).scale(w).dtype == torch.float32
        with ThreadPoolExecutor(1) as pool:
            assert (
                pool.submit(lambda: native(init_scale=2.0).scale(w)).result().dtype == torch.float32
            )
    assert torch.amp.GradScaler.scale.__code__.co_filename.endswith("grad_scaler.py")


@pytest.fixture(scope="module")
def alone() -> Any:
    """Make a group of this process alone: FSDP's scaler asks for a group."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_fsdps_scaler_computes_outside_of_every_policy(alone: Any) -> None:
    region = unamp.autocast(level="O2", dtype="float16", framework="torch")
    with region:
        pass  # prepared before the class exists
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    original = ShardedGradScaler.scale.__code__
    w = torch.ones(4, requires_grad=True)
    optimizer, scaler = (
        torch.optim.SGD([w], lr=0.5),
        ShardedGradScaler("cpu", 1024.0, process_group=alone),
    )
    with region:
        assert (w * w).dtype == torch.float16
        with unamp.autocast(enabled=False):
            loss = (w * 50.0).sum()
        scaled, several = scaler.scale(loss), scaler.scale([loss.detach()])
        assert scaled.dtype == torch.float32
        # float16's largest number is 65,504
        assert scaled.item() == several[0].item() == 200.0 * 1024.0
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 1024.0
    torch.testing.assert_close(w, torch.full((4,), -24.0))
    assert ShardedGradScaler.scale.__code__ is original


def test_a_scaler_of_ones_own_computes_outside_of_every_policy() -> None:
    with unamp.autocast(level="O2", dtype="float16", framework="torch"):

        class Doubled(torch.amp.GradScaler):
            def scale(self, outputs: Any) -> Any:
                return super().scale(outputs) * 2

        with unamp.autocast(level="O2", dtype="float16", framework="torch"):
            # the class was imported inside another region
            assert Doubled("cpu").scale(torch.ones(())).item() == 2.0**17
        code = Doubled.scale.__code__
        assert code.co_name == "scale"
    with unamp.autocast(level="O2", dtype="float16", framework="torch"):
        assert Doubled("cpu").scale(torch.ones(())).item() == 2.0**17


def test_a_build_without_distributed_trains_and_is_probed_for_what_it_has() -> None:
    assert python(Path(__file__).parent / "no_distributed.py").strip() == "2.99.0"
