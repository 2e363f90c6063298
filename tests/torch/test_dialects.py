"""The dialects on PyTorch answer as the frameworks' own modules do.

torch's dialect runs beside torch's own; the other frameworks' examples run on torch tensors.
"""

from __future__ import annotations

import functools
import importlib
import math
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spoken import (
    error_of,
    mindspores_example,
    paddles_example,
    test_mindspores_scalers_on_gradients_that_are_values,  # noqa: F401
    torchs_example,
)
from torch import Tensor, nn
from torch.nn import functional as F

import unamp
from unamp.adapter import major_minor
from unamp.dialects.keras.mixed_precision import DTypePolicy, LossScaleOptimizer, set_global_policy
from unamp.dialects.mindspore import amp as mindspore_amp
from unamp.dialects.paddle import amp as paddle_amp
from unamp.dialects.torch import amp, cpu, cuda

pytestmark = pytest.mark.beside_kernels

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


# --- torch.amp beside torch's own -----------------------------------------------------------------

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x, x[0]),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None, :3, :3]),
    "softmax": lambda x: F.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, [8]),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
    "cat": lambda x: torch.cat([x, x @ x]),
    "exp of low": lambda x: (x @ x).exp(),
    "clamp of low": lambda x: (x @ x).clamp(min=torch.tensor(0.0)),
    "sum of low": lambda x: (x @ x).sum(),
    "chain": lambda x: F.gelu(F.linear(x, x)) + x,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [F16, BF16, None], ids=str)
def test_numbers_and_dtypes_are_torchs_own(name: str, dtype: torch.dtype | None) -> None:
    x = torch.randn(8, 8)
    with amp.autocast("cpu", dtype):
        found = CALLS[name](x)
    with torch.amp.autocast("cpu", dtype):
        own = CALLS[name](x)
    assert found.dtype == own.dtype
    assert torch.equal(found, own)


@pytest.mark.parametrize("device", ["foo", "CPU", "gpu", "meta", "fpga", None, 3, "cpu", "cpu:0"])
def test_devices_as_torch_takes_them(device: Any) -> None:
    for ours, own in (
        (amp.autocast, torch.amp.autocast),
        (amp.is_autocast_available, torch.amp.is_autocast_available),
    ):
        assert error_of(lambda make=ours: make(device)) is error_of(
            lambda make=own: make(device)
        ), ours
    for name in ("custom_fwd", "custom_bwd"):
        ours, own = getattr(amp, name), getattr(torch.amp, name)
        assert error_of(lambda f=ours: f(device_type=device)) is error_of(
            lambda f=own: f(device_type=device)
        )
    if error_of(lambda: torch.amp.is_autocast_available(device)) is None:
        assert amp.is_autocast_available(device) is torch.amp.is_autocast_available(device)


def test_other_devices_mean_what_torch_means() -> None:
    for device in ("xpu", "mps"):
        with pytest.warns(UserWarning, match=f"{device.upper()} is not available"):
            region = amp.autocast(device)
        with region:
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == F32
    with pytest.raises(RuntimeError, match="with torch imported the devices of torch.autocast"):
        amp.autocast("fpga")
    with pytest.raises(TypeError, match="as a context manager"):
        amp.autocast("cpu")(3)  # type: ignore[arg-type]
    theirs = TypeError if major_minor(torch.__version__) >= (2, 12) else None
    assert error_of(lambda: torch.amp.autocast("cpu")(3)) is theirs


@pytest.mark.parametrize("dtype", [F32, torch.float64])
def test_other_dtypes_warn_and_switch_off(dtype: torch.dtype) -> None:
    x = torch.rand(2, 2)
    for module in (amp, torch.amp):
        with pytest.warns(UserWarning, match="In CPU autocast, but the target dtype"):
            region = module.autocast("cpu", dtype)
        with region:
            assert (x @ x).dtype == F32


def test_cuda_means_cuda_as_in_torch() -> None:
    """Without a GPU both warn and do nothing; with a GPU both leave the CPU alone."""
    x = torch.rand(2, 2)
    seen = []
    for module in (cuda.amp, torch.cuda.amp):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            region, scaler = module.autocast(), module.GradScaler()
        with region:
            dtype = (x @ x).dtype
        warned = [each.category for each in caught if each.category is not FutureWarning]
        seen.append((warned, dtype, scaler.is_enabled(), scaler.get_scale(), scaler.state_dict()))
    assert seen[0] == seen[1]
    assert seen[0][1] == F32


def test_regions_of_one_device_nest_as_torchs() -> None:
    x = torch.rand(2, 2)
    found: list[list[torch.dtype]] = []
    for module in (amp, torch.amp):
        seen = []
        with module.autocast("cpu", F16):
            seen.append((x @ x).dtype)
            with module.autocast("cpu"):  # None means the dtype of the region around
                seen.append((x @ x).dtype)
            with module.autocast("cpu", BF16):
                seen.append((x @ x).dtype)
            with module.autocast("cpu", enabled=False), module.autocast("cpu"):
                seen.append((x @ x).dtype)
        found.append(seen)
    assert found[0] == found[1]


def test_a_region_in_a_compiled_function_and_as_a_decorator() -> None:
    def product(x: Tensor) -> Tensor:
        with amp.autocast("cpu", dtype=F16):
            return x @ x

    x = torch.rand(4, 4)
    decorated = amp.autocast("cpu", F16)(lambda x: x @ x)
    expected = product(x)
    assert expected.dtype == F16
    for function in (product, decorated):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), expected)
        assert torch.equal(function(x), expected)
    assert (x @ x).dtype == F32


class Square(torch.autograd.Function):
    seen: list[Any]

    @staticmethod
    @amp.custom_fwd(device_type="cpu", cast_inputs=F32)
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Square.seen = [x.dtype, unamp.is_autocast_enabled()]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @functools.partial(amp.custom_bwd, device_type="cpu")
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Square.seen += [unamp.is_autocast_enabled()]
        return 2 * gradient * ctx.saved_tensors[0]


def test_custom_functions() -> None:
    x = torch.rand(3, dtype=BF16, requires_grad=True)
    with amp.autocast("cpu"):
        out = Square.apply(x)
    out.sum().backward()
    assert Square.seen == [F32, False, False]
    assert (out.dtype, x.grad.dtype) == (F32, BF16)
    # outside regions: nothing changes
    assert cuda.amp.custom_fwd(cast_inputs=F16)(lambda ctx, x: x)(types.SimpleNamespace(), x) is x


# --- torch.amp.GradScaler beside torch's own ------------------------------------------------------


def trained(make: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Step one parameter with a scaler; return what a user could see after each step."""
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], 0.125)
    scaler = make()

    def step(overflow: bool, unscale: bool, new_scale: float | None) -> tuple[Any, ...]:
        optimizer.zero_grad()
        scaler.scale((w * (math.inf if overflow else 0.25)).sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        result = scaler.step(optimizer)
        scaler.update(new_scale)
        return result, scaler.get_scale(), scaler.state_dict(), w.tolist()

    return step


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.sampled_from([None] * 6 + [2.0**10])),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(
        [
            {},
            {"growth_interval": 2},
            {"growth_factor": 3.0, "backoff_factor": 0.3, "growth_interval": 1},
        ]
    ),
)
def test_after_any_sequence_the_scaler_is_where_torchs_own_is(
    steps: list[tuple[Any, ...]], rules: dict[str, Any]
) -> None:
    ours = trained(lambda: amp.GradScaler("cpu", 1024.0, **rules))
    own = trained(lambda: torch.amp.GradScaler("cpu", 1024.0, **rules))
    for each in steps:
        assert ours(*each) == own(*each)


def test_getters_and_setters_are_torchs() -> None:
    ours, own = amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
    for scaler in (ours, own):
        scaler.set_growth_factor(3.0)
        scaler.set_backoff_factor(0.25)
        scaler.set_growth_interval(7)
    for name in (
        "get_growth_factor get_backoff_factor get_growth_interval get_scale is_enabled state_dict"
    ).split():
        assert getattr(ours, name)() == getattr(own, name)(), name


def _begun(module: Any) -> tuple[Any, torch.optim.Optimizer, nn.Parameter]:
    w = nn.Parameter(torch.ones(1))
    scaler = module.GradScaler("cpu")
    scaler.scale(w.sum()).backward()
    return scaler, torch.optim.SGD([w], 0.1), w


def _twice(method: str) -> Callable[[Any], Any]:
    def calls(module: Any) -> None:
        scaler, optimizer, _ = _begun(module)
        getattr(scaler, method)(optimizer)
        getattr(scaler, method)(optimizer)

    return calls


def _low(module: Any) -> None:
    scaler, optimizer, _ = _begun(module)
    w = nn.Parameter(torch.ones(1, dtype=F16))
    w.grad = torch.ones(1, dtype=F16)
    optimizer.add_param_group({"params": [w]})
    scaler.step(optimizer)


def _without_gradients(module: Any) -> None:
    scaler, optimizer, _ = _begun(module)
    optimizer.zero_grad()
    scaler.step(optimizer)


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "growth factor": lambda module: module.GradScaler("cpu", growth_factor=1.0),
    "backoff factor": lambda module: module.GradScaler("cpu", backoff_factor=1.0),
    "no tensor": lambda module: module.GradScaler("cpu").scale(3),
    "update first": lambda module: module.GradScaler("cpu").update(),
    "step first": lambda module: module.GradScaler("cpu").step(
        torch.optim.SGD([torch.ones(1)], 0.1)
    ),
    "unscale first": lambda module: module.GradScaler("cpu").unscale_(
        torch.optim.SGD([torch.ones(1)], 0.1)
    ),
    "update without step": lambda module: _begun(module)[0].update(),
    "unscale twice": _twice("unscale_"),
    "step twice": _twice("step"),
    "closure": lambda module: (lambda s, o, w: s.step(o, closure=w.sum))(*_begun(module)),
    "float16 gradients": _low,
    "no gradients": _without_gradients,
    "empty state": lambda module: module.GradScaler("cpu").load_state_dict({}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise_what_torchs_own_raises(name: str) -> None:
    own = error_of(lambda: MISTAKES[name](torch.amp))
    assert own is not None
    assert error_of(lambda: MISTAKES[name](amp)) is own


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("spelling", ["position", "keyword"])
def test_a_closure_is_refused_in_either_spelling(optimizer: Any, spelling: str) -> None:
    """torch's own scaler accepts a closure by position.

    The closure would step with scaled, unchecked gradients.
    """
    w = nn.Parameter(torch.ones(1))
    scaler, stepped = amp.GradScaler("cpu", 1024.0), optimizer([w], lr=0.5)

    def closure() -> Any:
        stepped.zero_grad()
        loss = w.sum()
        scaler.scale(loss).backward()
        return loss

    closure()
    given: Any = ((closure,), {}) if spelling == "position" else ((), {"closure": closure})
    with pytest.raises(RuntimeError, match=r"step\(\) takes no closure"):
        scaler.step(stepped, *given[0], **given[1])
    assert (w.item(), w.grad.item()) == (1.0, 1024.0)  # type: ignore[union-attr]


def test_a_packet_of_overloads_is_one_entry_of_a_list_in_paddles_spelling_too() -> None:
    region = unamp.auto_cast(custom_black_list=torch.ops.aten.add)
    assert region.policy.deny == unamp.Policy(deny=torch.ops.aten.add).deny == ("add",)


def test_a_disabled_scaler_steps_outside_the_policy_around_it() -> None:
    low: list[torch.dtype] = []

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            low.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)

    w = nn.Parameter(torch.ones(1))
    with amp.autocast("cpu", dtype=BF16):
        amp.GradScaler("cpu", enabled=False).step(Optimizer([w], 0.5))
        amp.GradScaler("cpu", enabled=False).step(Optimizer([w], 0.5), lambda: None)
    assert low == [F32, BF16]  # the closure computes the loss, so it needs the policy


def test_a_disabled_scaler_steps_and_returns_what_the_optimizer_does() -> None:
    w = nn.Parameter(torch.ones(1))
    w.grad = torch.ones(1)
    optimizer = torch.optim.SGD([w], 0.5)
    scaler = cpu.amp.GradScaler(enabled=False)
    assert scaler.step(optimizer, lambda: 7.0) == 7.0
    assert w.item() == 0.5
    scaler.update()
    scaler = amp.GradScaler("cpu")
    scaler.scale(w.sum()).backward()
    optimizer.step = lambda: "stepped"  # type: ignore[method-assign,assignment,return-value]
    assert scaler.step(optimizer) == "stepped"


# --- the documentation's examples -----------------------------------------------------------------


def test_torch_amps_example() -> None:
    torchs_example("torch", torch.mm, *(torch.rand((8, 8)) for _ in range(4)))


def test_torch_cpu_amps_example() -> None:
    conv = nn.Conv2d(64, 128, (3, 3), stride=(2, 2), padding=(1, 1), bias=False)
    model, x = nn.Sequential(conv).eval(), torch.rand(2, 64, 14, 14)
    with cpu.amp.autocast():
        y = model(x)
        traced = torch.jit.freeze(torch.jit.trace(model, x))
        assert torch.equal(traced(x), y)
    assert y.dtype == BF16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with cpu.amp.autocast():
        loss = F.mse_loss(model(x), torch.zeros_like(y))
    loss.backward()
    optimizer.step()
    assert conv.weight.grad.dtype == F32


def test_paddles_example() -> None:
    conv2d = nn.Conv2d(3, 2, 3, bias=False)
    paddles_example(
        "torch", conv2d, torch.rand([10, 3, 32, 32]), torch.rand([2, 3]), torch.rand([2, 3])
    )


def test_paddles_scaler() -> None:
    model, x = nn.Linear(4, 1), torch.rand(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = paddle_amp.GradScaler(
        init_loss_scaling=1024, incr_every_n_steps=1, decr_every_n_nan_or_inf=2
    )
    scales = []
    for overflow in (False, True, True, False):
        optimizer.zero_grad()
        with paddle_amp.auto_cast():
            loss = model(x * math.inf if overflow else x).float().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert scaler.step(optimizer) is None
        assert scaler.update() is None
        scales.append(scaler.get_scale())
    assert scales == [2048.0, 2048.0, 1024.0, 2048.0]
    assert scaler.skipped == 2
    with pytest.raises(TypeError, match=r"SGD has no minimize\(\)"):
        scaler.minimize(optimizer, loss)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_paddles_decorate(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    assert paddle_amp.decorate(model, optimizer, level="O1") == (model, optimizer)
    assert {p.dtype for p in model.parameters()} == {F32}
    assert paddle_amp.decorate(
        model, optimizer, level="O2", dtype=dtype, excluded_layers=model[3]
    ) == (model, optimizer)
    norm = F32 if dtype == F16 else BF16  # as in Paddle
    assert [p.dtype for p in model.parameters()] == [dtype, dtype, norm, norm, F32, F32, F32, F32]
    x, y, scaler, losses = (
        torch.rand(16, 4),
        torch.rand(16, 1),
        paddle_amp.GradScaler(init_loss_scaling=1024),
        [],
    )
    for _ in range(15):
        optimizer.zero_grad()
        with paddle_amp.auto_cast(level="O2", dtype=dtype):
            loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    for wrong in (3, [], None):
        with pytest.raises(TypeError):
            paddle_amp.decorate(wrong, level="O2")


def test_paddles_operator_stats(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.rand(4, 4)
    with paddle_amp.debugging.collect_operator_stats(), paddle_amp.auto_cast(dtype="bfloat16"):
        torch.exp(x @ x)
    rows = {
        line.split()[0]: line.replace("|", "").split()[1:]
        for line in capsys.readouterr().out.splitlines()
        if "|" in line
    }
    assert rows["exp"] == ["0", "0", "1", "0"]
    assert rows["matmul"] == ["0", "1", "0", "0"]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_mindspores_example(level: str) -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 28 * 28, 10), nn.Softmax(-1)
    )
    mindspores_example(
        "torch", network, torch.rand(2, 1, 32, 32), level, "float16", {"conv2d", "relu", "linear"}
    )


def test_mindspores_lists_are_changed_and_handed_back() -> None:
    network, x = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.LayerNorm(4)), torch.rand(2, 4)

    def low(**lists: Any) -> set[str]:
        with unamp.trace() as trace:
            assert mindspore_amp.custom_mixed_precision(network, **lists)(x).dtype == F32
        return {record.op for record in trace.records if record.compute != "float32"}

    white = mindspore_amp.get_white_list()
    assert low(white_list=white) == {"linear"}
    assert low(white_list=[*white, nn.Sigmoid], dtype=BF16) == {"linear", "sigmoid"}
    assert low(white_list=["sigmoid"]) == {"sigmoid"}
    assert low(black_list=mindspore_amp.get_black_list()) == {"linear", "sigmoid"}
    assert low(black_list=[nn.Linear]) == {"sigmoid", "layer_norm"}


def test_mindspores_train_network_takes_the_steps_of_a_loop_by_hand() -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    batches = [(torch.randn(16, 4), torch.randn(16, 1)) for _ in range(4)]
    manager = mindspore_amp.DynamicLossScaleManager(1024, 2, 2)
    for each in (None, manager, mindspore_amp.FixedLossScaleManager(64, False)):
        model, optimizer = made()
        train = mindspore_amp.build_train_network(
            model.eval(), optimizer, F.mse_loss, loss_scale_manager=each
        )
        own, own_optimizer = made()
        for x, y in batches:
            result = train(x, y)
            own_optimizer.zero_grad()
            loss = F.mse_loss(own(x), y)
            loss.backward()
            own_optimizer.step()
            assert torch.equal(result[0] if each is manager else result, loss)
        assert all(
            torch.equal(a, b)
            for a, b in zip(model.state_dict().values(), own.state_dict().values(), strict=True)
        )
    x, y = batches[0]
    train = mindspore_amp.build_train_network(*made(), F.mse_loss, "O2")
    before = [p.clone() for p in train.network.parameters()]
    _, overflow, scale = train(x * math.inf, y)
    assert (overflow, scale, train.scaler.get_scale(), train.scaler.skipped) == (
        True,
        2.0**24,
        2.0**23,
        1,
    )
    assert all(torch.equal(a, b) for a, b in zip(before, train.network.parameters(), strict=True))


def test_kerass_loss_scale_optimizer() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = LossScaleOptimizer(
        torch.optim.SGD([w], 0.5), initial_scale=8.0, dynamic_growth_steps=2
    )
    optimizer.scale_loss((w * 2).sum()).backward()
    assert w.grad.tolist() == [16.0] * 3
    optimizer.apply([w.grad], [w])
    assert w.tolist() == [0.0] * 3
    optimizer.scale_loss(w.sum())
    optimizer.apply_gradients([(torch.full((3,), 16.0), w)])
    assert w.tolist() == [-1.0] * 3
    assert (optimizer.dynamic_scale, optimizer.step_counter) == (16.0, 0)
    optimizer.apply_gradients([(torch.full((3,), math.nan), w)])
    assert w.tolist() == [-1.0] * 3
    assert (optimizer.dynamic_scale, optimizer.scaler.skipped) == (8.0, 1)
    with pytest.raises(TypeError, match=r"apply\(gradients, parameters\)"):
        optimizer.apply([w.grad])
    for wrong in ({"dynamic": False}, {"clipnorm": 1.0}, {"nesterov": True}):
        with pytest.raises(ValueError, match="LossScaleOptimizer"):
            LossScaleOptimizer(torch.optim.SGD([w], 0.5), **wrong)
    with pytest.raises(TypeError, match="inner_optimizer"):
        LossScaleOptimizer(3)
    with pytest.raises(unamp.NotExpressible, match="unamp.autocast"):
        set_global_policy(DTypePolicy("mixed_float16"))


@pytest.mark.parametrize("package", ["amp", "cuda.amp", "cpu.amp"])
@pytest.mark.parametrize("module", ["autocast_mode", "grad_scaler"])
def test_the_modules_below_torchs_packages_can_be_imported_from(package: str, module: str) -> None:
    torchs = importlib.import_module(f"torch.{package}.{module}")
    ours = importlib.import_module(f"unamp.dialects.torch.{package}.{module}")
    inner_state = {"OptState"}  # torch's scaler keeps its state by optimizer
    assert set(ours.__all__) == set(torchs.__all__) - inner_state
    whole = importlib.import_module(f"unamp.dialects.torch.{package}")
    for name in ours.__all__:
        assert getattr(ours, name) is getattr(whole, name, getattr(ours, name))


def test_the_decorator_of_torchs_autocast_mode() -> None:
    from unamp.dialects.torch.amp.autocast_mode import autocast_decorator

    product = autocast_decorator(amp.autocast("cpu"), lambda x: x @ x)
    assert product(torch.ones(2, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize("number", [4096.0, 1024])
def test_a_scale_in_the_place_of_the_device_is_no_silent_mistake(number: float) -> None:
    with pytest.raises(TypeError, match="init_scale="):
        amp.GradScaler(number)  # type: ignore[arg-type]
    assert cuda.amp.GradScaler(number, enabled=False).get_scale() == 1.0
