"""The monitor on PyTorch counts what the gradients hold, and disturbs nothing."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from watched import finds_the_layer_that_underflows, swallowed

import unamp

pytestmark = pytest.mark.beside_kernels


class Net(nn.Module):
    """A network whose layer `tiny` is behind a small factor, with a connection around `tiny`.

    The factor makes the gradient of `tiny` subnormal in float16.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tiny, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x)
        return self.last(h + 1e-5 * self.tiny(x))


X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def made(**arguments):
    torch.manual_seed(0)
    network = Net()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-2)
    scaler = unamp.GradScaler(1.0, growth_interval=1000)
    return network, optimizer, scaler, unamp.watch(network, optimizer, scaler=scaler, **arguments)


def backward(network, optimizer, scaler):
    optimizer.zero_grad()
    with unamp.autocast(dtype="float16"):
        loss = network(X).square().mean()
    scaler.scale(loss).backward()


def take(network, optimizer, scaler, watch):
    backward(network, optimizer, scaler)
    with watch.step():
        taken = scaler.step(optimizer)
        scaler.update()
    return taken


@pytest.mark.filterwarnings("ignore:on a CPU torch is about")
def test_a_layer_that_underflows_is_found_by_its_name() -> None:
    network, optimizer, scaler, watch = made(every=2)
    finds_the_layer_that_underflows(watch, 5, lambda: take(network, optimizer, scaler, watch))
    assert [sample.step for sample in watch.history.samples] == [0, 2, 4]


@pytest.mark.filterwarnings("ignore:on a CPU torch is about")
def test_it_counts_what_the_gradients_hold_and_changes_nothing() -> None:
    network, optimizer, scaler, watch = made(every=1)
    backward(network, optimizer, scaler)
    gradients = torch.cat([p.grad.reshape(-1) for p in network.tiny.parameters()])
    held = [p.grad for p in network.parameters()]
    with watch.step():
        assert all(p.grad is before for p, before in zip(network.parameters(), held, strict=True))
    found = next(each for each in watch.history.samples[0].layers if each.layer == "tiny")
    rounded = gradients.half()
    assert found.size == len(gradients) == 72
    assert found.zero == (gradients == 0).double().mean().item()
    subnormal = (rounded != 0) & (rounded.abs() < torch.finfo(torch.float16).smallest_normal)
    assert found.subnormal == pytest.approx(subnormal.double().mean().item())
    assert found.flushed == pytest.approx(
        ((rounded == 0) & (gradients != 0)).double().mean().item()
    )


def test_numbers_that_float16_would_flush_are_told_apart() -> None:
    layer = nn.Linear(4, 1, bias=False)
    watch = unamp.watch(layer)
    layer.weight.grad = torch.tensor([[0.0, 2.0**-26, 2.0**-20, -1.0]])
    with watch.step():
        pass
    (found,) = watch.history.samples[0].layers
    assert (found.zero, found.flushed, found.subnormal) == (0.25, 0.25, 0.25)


def test_a_bfloat16_parameter_tells_what_rounding_swallows() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).bfloat16()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    watch = unamp.watch(network, optimizer, dtype="bfloat16")
    network(X.bfloat16()).float().square().mean().backward()
    before = [p.detach().clone() for p in network[0].parameters()]
    with watch.step():
        optimizer.step()
    row = [torch.cat([each.detach().float().reshape(-1) for each in tensors]) for tensors in (
        before, [p.grad for p in network[0].parameters()], list(network[0].parameters())
    )]  # fmt: skip
    found = watch.history.samples[0].layers[0]
    assert found.swallowed == pytest.approx(swallowed(*(each.tolist() for each in row)))
    assert 0.5 < found.swallowed < 1.0
    assert found.update == pytest.approx(
        ((row[2] - row[0]).norm() / row[0].norm()).item(), rel=1e-5
    )
    assert watch.findings()[0].startswith("0: rounding swallows")


def test_with_master_weights_nothing_is_swallowed() -> None:
    network = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
    unamp.decorate(network, optimizer, level="O2", dtype="bfloat16")
    watch = unamp.watch(network, optimizer, dtype="bfloat16")
    network(X.bfloat16()).float().square().mean().backward()
    with watch.step():
        optimizer.step()
    assert watch.history.samples[0].layers[0].swallowed is None


def test_dead_layers_are_found() -> None:
    network = nn.ModuleDict(
        {"used": nn.Linear(8, 4), "unused": nn.Linear(8, 4), "cut": nn.Linear(8, 4)}
    )
    watch = unamp.watch(network)
    for _ in range(2):
        network.zero_grad()
        (network["used"](X) + 0.0 * network["cut"](X)).sum().backward()
        with watch.step():
            pass
    assert [said.partition(",")[0] for said in watch.findings()] == ["unused: dead", "cut: dead"]


@pytest.mark.filterwarnings("ignore:on a CPU torch is about")
def test_a_step_that_is_skipped_is_counted_and_no_update_is_told_of() -> None:
    network, optimizer, scaler, watch = made(every=1)
    take(network, optimizer, scaler, watch)
    with torch.no_grad():
        network.last.weight[0, 0] = math.inf
    assert not take(network, optimizer, scaler, watch)
    assert [sample.skipped for sample in watch.history.samples] == [0, 1]
    # a sample's scale is that of its gradients; the scale is halved after it
    assert [sample.scale for sample in watch.history.samples] == [1.0, 1.0]
    assert watch.history.samples[1].layers[0].nonfinite > 0
    assert watch.history.skipped == 1


def test_old_samples_thin_out() -> None:
    layer = nn.Linear(2, 2)
    watch = unamp.watch(layer, every=1, keep=10)
    layer(torch.ones(1, 2)).sum().backward()
    for _ in range(100):
        with watch.step():
            pass
    steps = [sample.step for sample in watch.history.samples]
    assert len(steps) <= 10
    assert (steps[0], steps[-1], watch.steps) == (0, 99, 100)
    assert steps == sorted(steps)


def test_nothing_is_traced_and_no_region_reaches_it() -> None:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    watch = unamp.watch(layer)
    with unamp.trace() as trace, unamp.autocast(level="O3", dtype="bfloat16"), watch.step():
        pass
    assert trace.records == []
    assert watch.steps == 1


def test_sparse_gradients_are_the_rows_that_they_hold() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    watch = unamp.watch(table)
    table(torch.tensor([1, 3])).sum().backward()
    with watch.step():
        pass
    assert watch.history.samples[0].layers[0].size == 8


def test_tensorboard_reads_what_its_writer_was_given(tmp_path, monkeypatch) -> None:
    # TensorBoard can do without TensorFlow, unless it takes our folder of that name for it
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    with SummaryWriter(str(tmp_path)) as writer:
        watch = unamp.watch(nn.ModuleDict({"only": layer}), every=2, to=writer)
        for _ in range(3):
            with watch.step():
                pass
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("unamp/loss scale")] == [
        (0, 1.0),
        (2, 1.0),
    ]
    assert "unamp/subnormal/only" in read.Tags()["scalars"]


class TestWrong:
    """Errors come at once, and the monitor goes on with its earlier objects."""

    def test_arguments(self) -> None:
        layer = nn.Linear(2, 2)
        for wrong, error, said in (
            ({"every": 0}, ValueError, "every must be at least 1, not 0"),
            ({"every": 1.5}, TypeError, "every must be a whole number, not 1.5"),
            ({"keep": 3}, ValueError, "keep must be at least 10"),
            ({"dtype": "float32"}, ValueError, "not a low precision"),
            (
                {"scaler": torch.amp.GradScaler("cpu")},
                TypeError,
                "an unamp.GradScaler or None, not GradScaler",
            ),
            ({"optimizer": layer}, TypeError, "Linear is no optimizer of torch"),
            ({"to": ["runs"]}, TypeError, "add_scalar"),
        ):
            with pytest.raises(error, match=said):
                unamp.watch(layer, **wrong)
        with pytest.raises(TypeError, match="str is no network"):
            unamp.watch("layer")

    def test_a_step_without_with(self) -> None:
        layer = nn.Linear(2, 2)
        watch = unamp.watch(layer)
        watch.step()
        with pytest.raises(RuntimeError, match="write: with watch.step"):
            watch.step()

    def test_steps_out_of_order(self) -> None:
        network, optimizer, scaler, watch = made(every=1)
        with pytest.raises(ValueError, match="no parameter has a gradient"), watch.step():
            pass
        scaler.scale(network(X).square().mean()).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="unscaled already"), watch.step():
            pass
        scaler.step(optimizer)
        scaler.update()
        scaler.scale(network(X).square().mean()).backward()
        with watch.step() as step:
            scaler.step(optimizer)
        assert watch.steps == 1
        with pytest.raises(RuntimeError, match="this step has ended"), step:
            pass
        with pytest.raises(RuntimeError, match="parameters before the step"):
            step.updated({})

    def test_what_is_held_is_not_given(self) -> None:
        watch = unamp.watch(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="hold their gradients"):
            watch.step([torch.ones(2)])
        with pytest.raises(TypeError, match="takes none"):
            watch.step(parameters={})

    @pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
    def test_a_scale_that_is_none(self, scale: float) -> None:
        layer = nn.Linear(2, 2)
        layer(torch.ones(1, 2)).sum().backward()
        watch = unamp.watch(layer)
        with (
            pytest.raises(ValueError, match="scale must be a finite float32 number above 0"),
            watch.step(scale=scale),
        ):
            pass
        assert watch.steps == 0

    def test_an_error_inside_is_no_step(self) -> None:
        layer = nn.Linear(2, 2)
        layer(torch.ones(1, 2)).sum().backward()
        watch = unamp.watch(layer)
        with pytest.raises(KeyError), watch.step():
            raise KeyError
        assert (watch.steps, watch.history.samples) == (0, ())
        with watch.step():
            pass
        assert watch.steps == 1
