"""Optimizers that step inside a region compute the numbers of a step outside.

A step's closure follows the policy.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from elsewhere import forked
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.optim import swa_utils

import unamp
from unamp import Policy, policy_region

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Step = Callable[[torch.optim.Optimizer], Callable[..., Any]]

POLICIES = [
    Policy("O1", "bfloat16", allow=["add", "mul", "sqrt"]),
    Policy("O2", "bfloat16"),
    Policy("O3", "float16"),
    Policy("OD", "bfloat16"),
]
O2 = Policy("O2", "bfloat16")


class OutOfPlace(torch.optim.Optimizer):
    """A user's optimizer, whose arithmetic a policy would change at every level."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.add_((p.grad * 0.37 + p.sin() + (p @ p.mT).abs().sqrt().sum()) * -group["lr"])
        return loss


class Derived(OutOfPlace):
    """A user's optimizer that computes before and after the step of its base."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        before = [p / 3 for p in self.param_groups[0]["params"]]
        loss = super().step(closure)
        for p, b in zip(self.param_groups[0]["params"], before, strict=True):
            p.add_(b * 0.01)
        return loss


class Untidy(torch.optim.Optimizer):
    """A user's optimizer whose step can fail in the middle."""

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            closure()
        raise ArithmeticError("half-way")


def parameters() -> list[nn.Parameter]:
    made = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.rand(6, 4, generator=made) + 0.1) for _ in range(2)]


def stepped(
    make: Make, region: AbstractContextManager[Any], step: Step = lambda optimizer: optimizer.step
) -> list[Tensor]:
    """Return parameters and state after steps in one region, with fixed gradients."""
    params, made = parameters(), torch.Generator().manual_seed(1)
    optimizer = make(params)
    take = step(optimizer)
    gradients = [[torch.randn(p.shape, generator=made) for p in params] for _ in range(3)]
    if isinstance(optimizer, torch.optim.SparseAdam):
        gradients = [[gradient.to_sparse(1) for gradient in each] for each in gradients]
    with region:
        for each in gradients:
            for p, gradient in zip(params, each, strict=True):
                p.grad = gradient
            take(*((lambda: torch.ones(()),) if isinstance(optimizer, torch.optim.LBFGS) else ()))
    states = (state.values() for state in optimizer.state.values())
    return [p.detach().clone() for p in params] + [
        v for each in states for v in each if isinstance(v, Tensor)
    ]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def _makes() -> Iterator[Any]:
    """Yield every class of `torch.optim` in every variant that steps on this device."""
    for name, kind in sorted(vars(torch.optim).items()):
        if (
            not (inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer))
            or kind is torch.optim.Optimizer
        ):
            continue
        taken = inspect.signature(kind).parameters
        given = [
            {word: on}
            for word, on in (("foreach", False), ("foreach", True), ("fused", True))
            if word in taken
        ] or [{}]
        if "capturable" in taken:
            given.append({"foreach": False, "capturable": True})
        for words in given:
            made: Any = kind
            make: Make = partial(made, **words)
            try:
                stepped(make, nullcontext())
            except (AssertionError, RuntimeError) as error:
                if "capturable" not in words:  # this device does not step capturable optimizers
                    raise AssertionError(name, words) from error
                continue
            yield pytest.param(
                make, id="-".join([name, *(f"{word}={on}" for word, on in words.items())])
            )


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(
    "make", [*_makes(), pytest.param(OutOfPlace, id="users"), pytest.param(Derived, id="derived")]
)
def test_a_step_in_a_region_comes_to_the_same_bits_as_outside(make: Make, policy: Policy) -> None:
    assert same(stepped(make, policy_region(policy)), stepped(make, nullcontext()))


def test_the_user_s_optimizer_of_these_tests_tells() -> None:
    """Arithmetic in the user's code follows the policy, so the other tests could fail."""

    def by_hand(params: list[nn.Parameter]) -> Any:
        optimizer = OutOfPlace(params)
        optimizer.step = partial(OutOfPlace.step.__wrapped__, optimizer)  # type: ignore[attr-defined, method-assign]
        return optimizer

    for policy in POLICIES[:3]:
        assert not same(stepped(by_hand, policy_region(policy)), stepped(by_hand, nullcontext()))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda optimizer: copy.deepcopy(optimizer).step, id="copied"),
        pytest.param(lambda optimizer: pickle.loads(pickle.dumps(optimizer)).step, id="pickled"),
        pytest.param(lambda optimizer: partial(type(optimizer).step, optimizer), id="by its class"),
    ],
)
def test_it_does_not_matter_where_an_optimizer_comes_from(step: Step) -> None:
    def both(region: AbstractContextManager[Any]) -> list[Tensor]:
        take = step(OutOfPlace(parameters()))
        owner = take.args[0] if isinstance(take, partial) else take.__self__  # type: ignore[attr-defined]
        params: list[Tensor] = owner.param_groups[0]["params"]
        for p in params:
            p.grad = torch.ones_like(p)
        with region:
            take()
        return [p.detach() for p in params]

    assert same(both(policy_region(O2)), both(nullcontext()))


@pytest.mark.parametrize("inside", [False, True], ids=["made before", "made inside"])
def test_a_schedule_s_own_step_is_one_too(inside: bool) -> None:
    def trained(region: AbstractContextManager[Any]) -> list[Tensor]:
        params = parameters()
        optimizer = OutOfPlace(params) if not inside else None
        schedule = (
            torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if optimizer is not None else None
        )
        with region:
            optimizer = optimizer or OutOfPlace(params)
            schedule = schedule or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            assert "step" in vars(optimizer)
            for _ in range(2):
                for p in params:
                    p.grad = torch.ones_like(p)
                optimizer.step()
                schedule.step()
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
        return [p.detach() for p in params]

    assert same(trained(policy_region(O2)), trained(nullcontext()))


@pytest.mark.parametrize(
    ("scaler", "make"),
    [
        pytest.param(unamp.GradScaler, OutOfPlace, id="unamp"),
        pytest.param(unamp.GradScaler, partial(torch.optim.AdamW, fused=True), id="unamp, fused"),
        pytest.param(partial(torch.amp.GradScaler, "cpu"), OutOfPlace, id="torch"),
    ],
)
def test_a_scaler_s_step_is_one_too(scaler: Callable[[], Any], make: Make) -> None:
    def trained(region: AbstractContextManager[Any]) -> list[Tensor]:
        params, scales = parameters(), scaler()
        optimizer = make(params)
        with region:
            for _ in range(2):
                optimizer.zero_grad()
                with policy_region(Policy(enabled=False)):
                    loss = (params[0] * params[1]).sum()
                scales.scale(loss).backward()
                scales.step(optimizer)
                scales.update()
        return [p.detach() for p in params]

    assert same(trained(policy_region(O2)), trained(nullcontext()))


# --- closures -------------------------------------------------------------------------------------

CLOSURES = [
    pytest.param(partial(torch.optim.LBFGS, max_iter=3), id="LBFGS"),
    pytest.param(
        partial(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"), id="LBFGS, searching"
    ),
    pytest.param(partial(torch.optim.Adam, foreach=False), id="Adam"),
    pytest.param(OutOfPlace, id="users"),
    pytest.param(Derived, id="derived"),
]


def with_closure(
    make: Make,
    around: Callable[[], AbstractContextManager[Any]],
    inside: Callable[[], AbstractContextManager[Any]],
    call: Callable[[Any, Any], Any] = lambda step, closure: step(closure),
) -> tuple[list[Tensor], set[torch.dtype]]:
    """Return parameters after steps with a closure, and the dtypes of its product.

    `around` opens a region around all steps, `inside` one in each closure.
    """
    torch.manual_seed(0)
    model, seen = nn.Linear(8, 4), set()
    optimizer, x = make(list(model.parameters())[:1]), torch.randn(16, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        with inside():
            y = model(x)
            seen.add(y.dtype)
            loss = y.float().square().mean()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    with around():
        for _ in range(3):
            call(optimizer.step, closure)
    return [p.detach() for p in model.parameters()], seen


@pytest.mark.parametrize(
    "policy", [Policy("O1", "bfloat16"), O2, Policy("O3", "bfloat16")], ids=str
)
@pytest.mark.parametrize("make", CLOSURES)
def test_a_closure_is_under_the_policy_and_the_step_is_not(make: Make, policy: Policy) -> None:
    region = partial(policy_region, policy)
    known, low = with_closure(make, nullcontext, region)
    found, seen = with_closure(make, region, nullcontext)
    assert seen == low == {torch.bfloat16}
    assert same(found, known)


def test_a_closure_by_its_name_is_one_too() -> None:
    def named(step: Any, closure: Any) -> Any:
        return step(closure=closure)

    found, seen = with_closure(OutOfPlace, partial(policy_region, O2), nullcontext, named)
    assert seen == {torch.bfloat16}
    assert same(found, with_closure(OutOfPlace, nullcontext, partial(policy_region, O2))[0])


def test_a_closure_that_a_hook_of_the_optimizer_puts_in_is_one_too() -> None:
    seen: list[torch.dtype] = []
    x = torch.ones(2, 2)

    def hook(optimizer: Any, args: Any, kwargs: Any) -> Any:
        return (args[0], lambda: seen.append((x @ x).dtype)), kwargs

    params = parameters()
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = OutOfPlace(params)
    optimizer.register_step_pre_hook(hook)
    with policy_region(O2):
        optimizer.step()
    assert seen == [torch.bfloat16]


def test_a_closure_finds_the_policies_of_every_region_around_and_those_that_the_step_opens() -> (
    None
):
    x, seen = torch.ones(2, 2), []

    class Opening(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append((x @ x).dtype)
            with policy_region(Policy("O3", "float16")):
                closure()
            closure()
            self.kept = closure

    optimizer = Opening(parameters(), {})

    def closure() -> None:
        seen.append((x @ x).dtype)

    with policy_region(O2), policy_region(Policy("O1", "float16")):
        optimizer.step(closure)
    optimizer.kept()
    with policy_region(O2):
        optimizer.kept()
        thread = threading.Thread(target=optimizer.kept)
        thread.start()
        thread.join()
    wide, half, low = torch.float32, torch.float16, torch.bfloat16
    assert seen == [wide, half, half, wide, low, wide]


# --- whatever happens -----------------------------------------------------------------------------


def in_force() -> torch.dtype:
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize(
    "closure",
    [None, in_force, lambda: 1 / 0],
    ids=["without closure", "with closure", "closure raises"],
)
def test_the_policy_is_in_force_again_after_a_step_that_raises(closure: Any) -> None:
    optimizer = Untidy(parameters(), {})
    with policy_region(O2):
        with pytest.raises(ArithmeticError):
            optimizer.step(closure)
        assert in_force() is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    assert in_force() is torch.float32


def test_the_policy_is_in_force_again_after_a_hook_that_raises() -> None:
    def hook(*_: Any) -> None:
        raise ArithmeticError

    optimizer = OutOfPlace(parameters())
    optimizer.register_step_pre_hook(hook)
    with policy_region(O2):
        with pytest.raises(ArithmeticError):
            optimizer.step()
        assert in_force() is torch.bfloat16


def test_what_a_step_changes_the_next_product_computes_with() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with policy_region(O2):
        assert torch.equal(torch.ones(2, 2) @ weight, torch.zeros(2, 2, dtype=torch.bfloat16))
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert torch.equal(
            torch.ones(2, 2) @ weight, torch.full((2, 2), -2.0, dtype=torch.bfloat16)
        )


def test_regions_of_other_threads_stay_in_force_and_threads_without_stay_without() -> None:
    dtypes: dict[str, list[torch.dtype]] = {"in a region": [], "outside": []}
    there, done = threading.Barrier(3), threading.Barrier(3)

    class Waiting(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            dtypes["step"] = [in_force()]
            there.wait(60)
            done.wait(60)

    def other(name: str, region: AbstractContextManager[Any]) -> None:
        with region:
            there.wait(60)
            dtypes[name].append(in_force())
            done.wait(60)

    threads = [
        threading.Thread(target=other, args=("in a region", policy_region(O2))),
        threading.Thread(target=other, args=("outside", nullcontext())),
    ]
    for thread in threads:
        thread.start()
    with policy_region(O2):
        Waiting(parameters(), {}).step()
    for thread in threads:
        thread.join()
    assert dtypes == {
        "in a region": [torch.bfloat16],
        "outside": [torch.float32],
        "step": [torch.float32],
    }


def test_pytorch_s_own_amp_stays_in_force_as_under_its_own_autocast() -> None:
    native = stepped(OutOfPlace, policy_region(Policy("O1", "bfloat16", preset="native")))
    assert same(
        native, stepped(OutOfPlace, torch.autocast("cpu", torch.bfloat16, cache_enabled=False))
    )


# --- clipping, before a step ----------------------------------------------------------------------


def graded() -> list[nn.Parameter]:
    """Return parameters whose gradients' norm is infinite in float16."""
    found = [nn.Parameter(torch.zeros(size)) for size in (1000, 3)]
    for parameter, gradient in zip(found, (1e4, 1e-2), strict=True):
        parameter.grad = torch.full_like(parameter, gradient)
    return found


def clipped(region: AbstractContextManager[Any], clip: Callable[..., Any]) -> list[Tensor]:
    params = graded()
    with region:
        norm = clip(params, 1.0)
    return [norm, *(parameter.grad for parameter in params if parameter.grad is not None)]


def clipped_by_halves(params: list[nn.Parameter], most: float) -> Tensor:
    norm = nn.utils.get_total_norm(
        [parameter.grad for parameter in params if parameter.grad is not None]
    )
    nn.utils.clip_grads_with_norm_(params, most, norm)
    return norm


@pytest.mark.parametrize("policy", [*POLICIES, Policy("O1", "float16", allow=["stack"])], ids=str)
@pytest.mark.parametrize(
    "clip",
    [nn.utils.clip_grad_norm_, partial(nn.utils.clip_grad_norm_, foreach=False), clipped_by_halves],
    ids=["lists", "each", "halves"],
)
def test_gradients_that_are_clipped_in_a_region_come_to_the_same_bits_as_outside(
    clip: Any, policy: Policy
) -> None:
    code = inspect.unwrap(nn.utils.get_total_norm).__code__
    assert same(clipped(policy_region(policy), clip), clipped(nullcontext(), clip))
    assert inspect.unwrap(nn.utils.get_total_norm).__code__ is code


def test_clipping_under_pytorch_s_own_amp_and_in_other_threads_is_pytorch_s() -> None:
    native = clipped(
        policy_region(Policy("O1", "bfloat16", preset="native")), nn.utils.clip_grad_norm_
    )
    assert same(native, clipped(torch.autocast("cpu", torch.bfloat16), nn.utils.clip_grad_norm_))
    with policy_region(O2), ThreadPoolExecutor(1) as pool:
        assert same(
            pool.submit(clipped, nullcontext(), nn.utils.clip_grad_norm_).result(),
            clipped(nullcontext(), clipped_by_halves),
        )
        assert in_force() is torch.bfloat16


@pytest.mark.beside_kernels
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
def test_compiled_clipping_in_a_region_comes_to_the_same_bits_as_outside(inside: bool) -> None:
    torch.compiler.reset()

    def clip(params: list[nn.Parameter], most: float) -> Tensor:
        with policy_region(Policy("O2", "float16")) if inside else nullcontext():
            return nn.utils.clip_grad_norm_(params, most)

    compiled = torch.compile(clip, backend="aot_eager", fullgraph=True)
    known = clipped(nullcontext(), nn.utils.clip_grad_norm_)
    for region in (policy_region(Policy("O2", "float16")), nullcontext()):
        assert same(clipped(region, compiled), known)


# --- what else a program keeps --------------------------------------------------------------------


def networks(count: int) -> list[nn.Module]:
    """Return copies of one network, each with other numbers."""
    made = torch.Generator().manual_seed(0)
    found = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(count)]
    with torch.no_grad():
        for tensor in (tensor for network in found for tensor in network.parameters()):
            tensor.copy_(torch.randn(tensor.shape, generator=made))
    return found


def averaged(**kwargs: Any) -> dict[str, Tensor]:
    first, *later = networks(4)
    average = swa_utils.AveragedModel(first, **kwargs)
    for network in (first, *later):
        average.update_parameters(network)
    return average.state_dict()


def initial(fill: Callable[..., Tensor], *args: Any) -> dict[str, Tensor]:
    return {"filled": fill(torch.empty(8, 8), *args)}


def made_by(make: Callable[[nn.Module], nn.Module]) -> dict[str, Tensor]:
    return make(networks(1)[0][0]).state_dict()


def called(make: Callable[[nn.Module], nn.Module]) -> dict[str, Tensor]:
    """Return the state of a layer after three calls.

    Before the second call the weight is set to zero: the power iteration then has no direction.
    """
    with unamp.autocast(enabled=False):
        layer = make(networks(1)[0][0])
    kept = {}
    for call in range(3):
        layer(torch.ones(2, 4))
        kept |= {f"{call} {name}": tensor.clone() for name, tensor in layer.state_dict().items()}
        with torch.no_grad():
            next(p for name, p in layer.named_parameters() if "weight" in name).zero_()
    return kept


def clipped_by_value() -> dict[str, Tensor]:
    params = graded()
    nn.utils.clip_grad_value_(params, 1.2345678)
    return {
        str(place): parameter.grad
        for place, parameter in enumerate(params)
        if parameter.grad is not None
    }


def assigned(make: Callable[[nn.Module], nn.Module]) -> dict[str, Tensor]:
    layer = make(networks(1)[0][0])
    layer.weight = torch.linspace(0.1, 1, 12).reshape(3, 4)
    return layer.state_dict()


def pruned(prune_one: Callable[[nn.Module], Any]) -> dict[str, Tensor]:
    """Return the state of a pruned layer whose weights hardly differ in bfloat16."""
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(1.001, 1, 12).reshape(3, 4))
    prune_one(layer)
    return layer.state_dict()


def fused(
    first: nn.Module, norm: nn.Module, fuse: Callable[[nn.Module, nn.Module], nn.Module]
) -> dict[str, Tensor]:
    first, norm = first.eval(), norm.eval()
    for place, tensor in enumerate(
        (*first.parameters(), *norm.parameters(), norm.running_mean, norm.running_var)
    ):
        tensor.data = torch.linspace(0.1 + place, 1.1 + place, tensor.numel()).reshape(tensor.shape)
    return fuse(first, norm).state_dict()


def observed() -> dict[str, Tensor]:
    """Return the state of an observer of numbers for quantization, and its scale."""
    from torch.ao.quantization.observer import MovingAverageMinMaxObserver

    observer = MovingAverageMinMaxObserver()
    for call in range(20):
        observer(torch.linspace(-1, 1 + call / 100, 7))
    scale, zero = observer.calculate_qparams()
    return {**observer.state_dict(), "scale": scale, "zero": zero}


householder = partial(nn.utils.parametrizations.orthogonal, orthogonal_map="householder")
without_weight = partial(parametrize.remove_parametrizations, tensor_name="weight")

KEPT: dict[str, Callable[[], dict[str, Tensor]]] = {
    "gradients, by value": clipped_by_value,
    "average": averaged,
    "average, with buffers": partial(averaged, avg_fn=swa_utils.get_swa_avg_fn(), use_buffers=True),
    "exponential average": partial(averaged, avg_fn=swa_utils.get_ema_avg_fn(0.9)),
    "exponential averages": partial(averaged, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
    "nn.init.orthogonal_": partial(initial, nn.init.orthogonal_),
    "nn.init.trunc_normal_": partial(initial, nn.init.trunc_normal_),
    "nn.init.trunc_normal_, its tail": partial(initial, nn.init.trunc_normal_, 0.0, 1.0, 2.0, 4.0),
    "nn.init.kaiming_normal_": partial(initial, nn.init.kaiming_normal_),
    "orthogonal, made": partial(made_by, nn.utils.parametrizations.orthogonal),
    "orthogonal by householder, made": partial(made_by, householder),
    "spectral_norm, made": partial(made_by, nn.utils.parametrizations.spectral_norm),
    "spectral_norm of old, made": partial(made_by, nn.utils.spectral_norm),
    "weight_norm, made": partial(made_by, nn.utils.parametrizations.weight_norm),
    "weight_norm of old, made": partial(made_by, nn.utils.weight_norm),
    "spectral_norm, called": partial(called, nn.utils.parametrizations.spectral_norm),
    "spectral_norm of old, called": partial(called, nn.utils.spectral_norm),
    "orthogonal, removed": partial(
        made_by, lambda layer: without_weight(nn.utils.parametrizations.orthogonal(layer))
    ),
    "spectral_norm, removed": partial(
        made_by, lambda layer: without_weight(nn.utils.parametrizations.spectral_norm(layer))
    ),
    "spectral_norm of old, removed": partial(
        made_by, lambda layer: nn.utils.remove_spectral_norm(nn.utils.spectral_norm(layer))
    ),
    "weight_norm, removed": partial(
        made_by, lambda layer: without_weight(nn.utils.parametrizations.weight_norm(layer))
    ),
    "weight_norm of old, removed": partial(
        made_by, lambda layer: nn.utils.remove_weight_norm(nn.utils.weight_norm(layer))
    ),
    "weight_norm, assigned": partial(assigned, nn.utils.parametrizations.weight_norm),
    "pruned": partial(pruned, partial(prune.l1_unstructured, name="weight", amount=5)),
    "pruned for good": partial(
        pruned,
        lambda layer: prune.remove(prune.l1_unstructured(layer, name="weight", amount=5), "weight"),
    ),
    "pruned together": partial(
        pruned,
        lambda layer: prune.global_unstructured(
            [(layer, "weight")], prune.L1Unstructured, amount=5
        ),
    ),
    "fused convolution": lambda: fused(
        nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5), nn.utils.fuse_conv_bn_eval
    ),
    "observer": observed,
    "window": lambda: {"window": torch.signal.windows.kaiser(9, beta=8.0, dtype=torch.float32)},
    "Sobol sequence": lambda: {"drawn": torch.quasirandom.SobolEngine(3).draw(700)},
    "batch": lambda: torch.utils.data.default_collate([{"target": torch.tensor(1000.5)}] * 3),
    "stacked": lambda: torch.func.stack_module_state(networks(2))[0],
    "fused linear": lambda: fused(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.utils.fuse_linear_bn_eval),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("policy", [Policy("O2", "bfloat16"), Policy("O3", "float16")], ids=str)
@pytest.mark.parametrize("what", KEPT)
def test_what_a_program_keeps_comes_to_the_same_bits_in_a_region_as_outside(
    what: str, policy: Policy
) -> None:
    with torch.random.fork_rng():
        outside = KEPT[what]()
    with policy_region(policy):
        inside = KEPT[what]()
    assert inside.keys() == outside.keys()
    assert same(list(inside.values()), list(outside.values()))


@pytest.mark.beside_kernels
def test_averages_and_power_iterations_in_compiled_functions_come_to_the_same_bits() -> None:
    torch.compiler.reset()

    def trained(compile: Callable[..., Any]) -> list[Tensor]:
        layer = nn.utils.parametrizations.spectral_norm(networks(1)[0][0])
        average = swa_utils.AveragedModel(layer)
        call, update = (
            compile(lambda x: layer(x)),
            compile(lambda: average.update_parameters(layer)),
        )
        for _ in range(3):
            call(torch.ones(2, 4))
            update()
        return [*layer.state_dict().values(), *average.state_dict().values()]

    torch.manual_seed(0)
    outside = trained(lambda function: function)
    torch.manual_seed(0)
    with policy_region(Policy("O2", "float16")):
        assert same(trained(partial(torch.compile, backend="aot_eager")), outside)


GRADIENTS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "jacobian": lambda function, x: torch.autograd.functional.jacobian(function, x),
    "jacobian, all at once": lambda function, x: torch.autograd.functional.jacobian(
        func=function, inputs=x, vectorize=True
    ),
    "hessian": lambda function, x: torch.autograd.functional.hessian(
        lambda x: function(x).sum(), x
    ),
    "hessian, forward": lambda function, x: torch.autograd.functional.hessian(
        lambda x: function(x).sum(), x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "jacrev": lambda function, x: torch.func.jacrev(function)(x),
    "jacrev in chunks": lambda function, x: torch.func.jacrev(function, chunk_size=2)(x),
    "jacrev in chunks of chunks": lambda function, x: torch.func.jacrev(
        torch.func.jacrev(lambda x: function(x).sum(), chunk_size=1), chunk_size=5
    )(x),
    "vmap of jacrev in chunks": lambda function, x: torch.func.vmap(
        torch.func.jacrev(function, chunk_size=3)
    )(x),
    "vmap in chunks": lambda function, x: torch.func.vmap(
        torch.func.grad(lambda x: function(x).sum()), chunk_size=2
    )(x),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("policy", [Policy("O2", "bfloat16"), Policy("O3", "float16")], ids=str)
@pytest.mark.parametrize("what", GRADIENTS)
def test_gradients_that_are_put_together_are_float32_and_their_function_is_under_the_policy(
    what: str, policy: Policy, compiled: bool
) -> None:
    if compiled:
        torch.compiler.reset()
    layer, x, seen = networks(1)[0][0], torch.linspace(0, 1, 12).reshape(3, 4), []

    def function(x: Tensor) -> Tensor:
        result = torch.tanh(layer(x))
        seen.append(result.dtype)
        return result

    def call() -> Tensor:
        return GRADIENTS[what](function, x)

    exact = call()
    seen.clear()
    with policy_region(policy):
        found = (torch.compile(call, backend="aot_eager") if compiled else call)()
        assert in_force() is getattr(torch, policy.dtype)
        assert {*seen} == {in_force()}
        with ThreadPoolExecutor(1) as other:
            assert torch.equal(other.submit(call).result(), exact)
    assert found.dtype is torch.float32
    assert torch.allclose(found, exact, rtol=0.1, atol=0.02)
    assert torch.equal(call(), exact)


@pytest.fixture(scope="module")
def pretended() -> Iterator[None]:
    """Make a group of two processes, of which only this one exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("manner", ["FullyShardedDataParallel", "fully_shard"])
@pytest.mark.parametrize("policy", [Policy("O2", "float16"), Policy("O3", "float16")], ids=str)
def test_gradients_of_sharded_networks_are_clipped_to_the_same_bits_as_outside(
    pretended: None, manner: str, policy: Policy
) -> None:
    with policy_region(policy):
        pass  # prepared before the class exists, in the first of these tests
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    def clip() -> list[Tensor]:
        plain: Any = nn.Linear(64, 64)
        if manner == "fully_shard":
            sharded = fully_shard(plain, mesh=init_device_mesh("cpu", (2,)))
            clip = partial(nn.utils.clip_grad_norm_, sharded.parameters())
        else:
            sharded = FullyShardedDataParallel(plain, device_id=torch.device("cpu"))
            clip = sharded.clip_grad_norm_
        for parameter in sharded.parameters():
            parameter.grad = torch.full_like(parameter, 1e4)  # the norm is infinite in float16
        found = [clip(1.0), *(parameter.grad for parameter in sharded.parameters())]
        return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in found]

    outside = clip()
    with policy_region(policy):
        assert same(clip(), outside)
    assert outside[0] > 65504
    assert all(bool(gradient.any()) for gradient in outside[1:])


@pytest.mark.parametrize("policy", [Policy("O2", "bfloat16"), Policy("O3", "float16")], ids=str)
def test_parameters_that_processes_average_come_to_the_same_bits_as_outside(
    pretended: None, policy: Policy
) -> None:
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    outside, inside = parameters(), parameters()
    average_parameters(iter(outside), torch.distributed.group.WORLD)
    with policy_region(policy):
        average_parameters(iter(inside), torch.distributed.group.WORLD)
    assert same(inside, outside)


@pytest.mark.parametrize("policy", [Policy("O2", "bfloat16"), Policy("O3", "float16")], ids=str)
def test_parameters_and_buffers_that_a_process_sends_are_the_same_bits_as_outside(
    pretended: None, policy: Policy
) -> None:
    """DistributedDataParallel sends both when it is made, and buffers before every forward pass."""
    plain = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()
    plain[1].running_var.fill_(70001.5)  # infinite in float16
    sent = nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    with policy_region(policy), torch.no_grad():
        sent(torch.ones(2, 8))
        made = nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    assert same([*made.module.state_dict().values()], [*plain.state_dict().values()])
    assert same([*sent.module.buffers()], [*plain.buffers()])


@pytest.mark.parametrize("policy", [Policy("O2", "bfloat16"), Policy("O3", "float16")], ids=str)
def test_parts_of_a_tensor_that_processes_exchange_are_the_same_bits_as_outside(
    pretended: None, policy: Policy
) -> None:
    """One part of three rows is padded, and parts of columns are put together."""
    from torch.distributed import _functional_collectives as collectives
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(6.0).reshape(3, 2) / 7

    def exchange() -> list[Tensor]:
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        columns = distribute_tensor(whole, mesh, [Replicate()]).redistribute(mesh, [Shard(1)])
        return [rows.to_local(), columns.to_local(), columns.full_tensor()]

    outside = exchange()
    with policy_region(policy), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions have another name for this
        gathered = collectives.wait_tensor(collectives.all_gather_tensor(whole, 1, mesh))
        assert same(exchange(), outside)
    assert gathered.dtype == torch.float32
    assert bool(outside[0].any())


class _Statistics:
    """The kernels of `SyncBatchNorm`; PyTorch has them for GPUs alone."""

    @staticmethod
    def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x = x.float()
        return x.mean((0, 2)), (x.var((0, 2), unbiased=False) + eps).rsqrt()

    @staticmethod
    def batch_norm_gather_stats_with_counts(
        x: Tensor,
        means: Tensor,
        inverses: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        assert {each.dtype for each in (means, inverses, running_mean, counts)} == {torch.float32}
        share = (counts / counts.sum())[:, None]
        mean = (share * means).sum(0)
        var = (share * (inverses**-2 - eps + (means - mean) ** 2)).sum(0)
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var, momentum)
        return mean, (var + eps).rsqrt()

    @staticmethod
    def batch_norm_elemt(
        x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor, eps: float
    ) -> Tensor:
        normal = (x.float() - mean[:, None]) * inverse[:, None]
        return (normal * weight[:, None] + bias[:, None]).to(x.dtype)


@pytest.mark.parametrize(
    ("policy", "dtype"),
    [
        (Policy("O2", "float16"), torch.float32),
        (Policy("O2", "bfloat16", preset="torch-cuda"), torch.bfloat16),
        (Policy("O3", "float16"), torch.float16),
        (Policy("O1", "float16", allow=["batch_norm"]), torch.float16),
        (Policy("O1", "float16", deny=["batch_norm"]), torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_batch_norm_over_processes_gathers_float32_statistics(
    policy: Policy,
    dtype: torch.dtype,
    given: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.nn.modules import batchnorm

    for name, kernel in vars(_Statistics).items():
        if isinstance(kernel, staticmethod):
            monkeypatch.setattr(torch, name, kernel.__func__)
    processes = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda group: 2,
        group=SimpleNamespace(WORLD=SimpleNamespace(_get_backend_name=lambda: "gloo")),
    )
    of_a_gpu = SimpleNamespace(_get_privateuse1_backend_name=lambda: "cpu")
    asked = SimpleNamespace(**vars(torch) | {"_C": of_a_gpu, "distributed": processes})
    monkeypatch.setattr(batchnorm, "torch", asked)
    monkeypatch.setattr(
        torch.distributed, "all_gather", lambda all, each, *_, **__: [x.copy_(each) for x in all]
    )
    x = (4 * torch.rand(1, 2, 80_000)).to(given).requires_grad_()
    plain, norm = nn.BatchNorm1d(2), nn.SyncBatchNorm(2)
    expected = plain(x.detach().to(dtype).float())
    with policy_region(policy):
        found = norm(x)
        statistics = {each.dtype for each in norm.state_dict().values()}
    assert found.dtype is dtype
    assert torch.allclose(found.float(), expected, rtol=0.02, atol=0.02)
    assert statistics == {torch.float32, torch.int64}
    assert torch.allclose(norm.running_mean, plain.running_mean, rtol=1e-5)
    assert torch.allclose(norm.running_var, plain.running_var, rtol=1e-4)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_parameters_that_become_pieces_of_a_vector_keep_their_dtype(policy: Policy) -> None:
    kept = [nn.Parameter(torch.arange(3.0) + 2**-12), nn.Parameter(torch.ones(2, 2) / 3)]
    outside = nn.utils.parameters_to_vector(kept)
    with policy_region(policy):
        inside = nn.utils.parameters_to_vector(kept)
        nn.utils.vector_to_parameters(inside * 1.0, kept)
    assert same([inside], [outside])
    assert {each.dtype for each in (inside, *kept)} == {torch.float32}
    nn.utils.vector_to_parameters(outside.bfloat16(), kept)  # PyTorch's own function
    assert {each.dtype for each in kept} == {torch.bfloat16}


# --- learning rates, after a step -----------------------------------------------------------------


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 500),
    "sequence": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9995),
        ],
        milestones=[5],
    ),
}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_learning_rate_that_is_a_tensor_is_what_it_is_outside(
    schedule: Any, policy: Policy
) -> None:
    # In a low dtype, a factor near 1 would leave the rate where it is.
    def scheduled(region: AbstractContextManager[Any]) -> list[Tensor]:
        optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=torch.tensor(0.1))
        with region:
            steps = schedule(optimizer)
            for _ in range(40):
                optimizer.step()
                steps.step()
        return [optimizer.param_groups[0]["lr"]]

    code = torch.optim.lr_scheduler.LRScheduler.step.__code__
    assert same(scheduled(policy_region(policy)), scheduled(nullcontext()))
    assert torch.optim.lr_scheduler.LRScheduler.step.__code__ is code


# --- what is patched ------------------------------------------------------------------------------


def test_nothing_of_it_stands_outside_regions() -> None:
    module: Any = sys.modules["torch.optim.optimizer"]
    before = torch.autograd.profiler.record_function, module.chain, torch.optim.SGD.step
    optimizer = torch.optim.SGD(parameters())
    with policy_region(O2):
        assert torch.autograd.profiler.record_function is not before[0]
        assert module.chain is not before[1]
        optimizer.step()
        with torch.autograd.profiler.record_function(name="mine") as own:
            assert isinstance(own, before[0])
            assert in_force() is torch.bfloat16
        optimizer.load_state_dict(optimizer.state_dict())
    assert (torch.autograd.profiler.record_function, module.chain, torch.optim.SGD.step) == before


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a region"])
@pytest.mark.parametrize(
    ("home", "name"),
    [("torch.autograd.profiler", "record_function"), ("torch.optim.optimizer", "chain")],
)
def test_what_somebody_patches_on_top_stays_and_is_called(
    home: str, name: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, called = sys.modules[home], []
    # puts the unpatched object back at the end
    monkeypatch.setattr(module, name, getattr(module, name))

    def patch() -> None:
        saved = getattr(module, name)

        def on_top(*args: Any) -> Any:
            called.append(args)
            return saved(*args)

        setattr(module, name, on_top)

    known = stepped(OutOfPlace, nullcontext())
    with policy_region(O2) if inside else nullcontext():
        patch()
    for _ in range(2):
        called.clear()
        assert same(stepped(OutOfPlace, policy_region(O2)), known)
        assert called


def test_a_profile_has_the_step_and_a_trace_what_the_step_has_outside() -> None:
    with torch.profiler.profile() as profile:
        stepped(OutOfPlace, policy_region(O2))
    assert "Optimizer.step#OutOfPlace.step" in {event.name for event in profile.events()}
    seen = []
    for region in (policy_region(O2), nullcontext()):
        with unamp.trace() as trace:
            stepped(OutOfPlace, region)
        seen.append([(record.op, record.rule, record.compute) for record in trace.records])
    assert seen[0] == seen[1]
    assert "matmul" in str(seen[0])
    assert "bfloat16" not in str(seen[0])


OTHER_STEPS = """
import inspect, os, sys, textwrap, torch, unamp
module, original = sys.modules["torch.optim.optimizer"], torch.optim.Optimizer.profile_hook_step
source = textwrap.dedent(inspect.getsource(original))
for name in ("record_function", "chain"):
    if not os.fork():  # for each name, unamp meets PyTorch for the first time
        exec("from __future__ import annotations\\n" + source.replace(name, name + "_2"), vars(module))
        torch.optim.Optimizer.profile_hook_step = staticmethod(module.profile_hook_step)
        try:
            unamp.autocast("cpu", dtype="bfloat16").__enter__()
        except unamp.FrameworkNotSupported as error:
            print(error, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""  # noqa: E501


# asked before either kernels are
@pytest.mark.beside_kernels
def test_a_torch_whose_steps_do_not_ask_for_it_is_refused() -> None:
    where = "in torch.optim.Optimizer.profile_hook_step, which unamp needs"
    assert forked("torch", OTHER_STEPS).splitlines() == [
        f"torch {torch.__version__} has no {name} {where}" for name in ("record_function", "chain")
    ]


# --- compiled -------------------------------------------------------------------------------------


def compiled_step(optimizer: torch.optim.Optimizer, **words: Any) -> Callable[..., Any]:
    return torch.compile(optimizer.step, backend="aot_eager", **words)


def called_inside(optimizer: torch.optim.Optimizer, **words: Any) -> Callable[..., Any]:
    def step() -> None:
        optimizer.step()

    return torch.compile(step, backend="aot_eager", **words)


ALLOWING = Policy("O1", "bfloat16", allow=["add", "mul", "sqrt"])
COMPILED = [
    pytest.param(partial(torch.optim.RMSprop, foreach=False), {}, id="RMSprop"),
    pytest.param(partial(torch.optim.AdamW, foreach=True), {}, id="AdamW"),
    pytest.param(OutOfPlace, {"fullgraph": True}, id="users, whole"),
]


# regions in compiled functions are test_compile's; the wrapper around a step is in Python
@pytest.mark.beside_kernels
@pytest.mark.parametrize("how", [compiled_step, called_inside])
@pytest.mark.parametrize(("make", "words"), COMPILED)
def test_a_compiled_step_in_a_region_comes_to_the_same_bits_as_outside(
    make: Make, words: dict[str, Any], how: Callable[..., Any]
) -> None:
    torch.compiler.reset()
    step = partial(how, **words)
    known = stepped(make, nullcontext(), step)
    for policy in (ALLOWING, O2):
        assert same(stepped(make, policy_region(policy), step), known), policy
    torch.compiler.reset()
    for policy in (O2, ALLOWING):  # compiled in regions first
        assert same(stepped(make, policy_region(policy), step), known), policy
    assert same(stepped(make, nullcontext(), step), known)


@pytest.mark.beside_kernels
@pytest.mark.parametrize(
    ("before", "policies"),
    [("nothing", (ALLOWING, O2)), ("a record", (O2,)), ("a step", (ALLOWING,))],
    ids=str,
)
@pytest.mark.parametrize(("make", "words"), COMPILED)
def test_a_step_in_a_region_that_the_compiled_function_opens_is_one_too(
    make: Make, words: dict[str, Any], before: str, policies: tuple[Policy, ...]
) -> None:
    """Dynamo keeps functions that it has met: some or all of PyTorch's wrappers of a step."""

    def of(
        region: Callable[[], AbstractContextManager[Any]], optimizer: torch.optim.Optimizer
    ) -> Callable[..., Any]:
        def step() -> None:
            if before == "a step":
                optimizer.step()
            elif before == "a record":
                with torch.autograd.profiler.record_function("mine"):
                    pass
            with region():
                optimizer.step()

        return torch.compile(step, backend="aot_eager", **words)

    torch.compiler.reset()
    known = stepped(make, nullcontext(), partial(of, lambda: policy_region(Policy(enabled=False))))
    for policy in policies:
        torch.compiler.reset()
        step = partial(of, partial(policy_region, policy))
        assert same(stepped(make, nullcontext(), step), known), policy


@pytest.mark.beside_kernels
@pytest.mark.parametrize(
    "make", [partial(torch.optim.Adam, foreach=False), OutOfPlace], ids=["Adam", "users"]
)
def test_a_closure_in_a_compiled_function_is_followed_by_python_or_refused(make: Make) -> None:
    def call(step: Any, closure: Any, **words: Any) -> Any:
        return torch.compile(lambda: step(closure), backend="aot_eager", **words)()

    torch.compiler.reset()
    region = partial(policy_region, O2)
    found, seen = with_closure(make, region, nullcontext, call)
    assert seen == {torch.bfloat16}
    torch.testing.assert_close(found, with_closure(make, nullcontext, region, call)[0])
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"call step\(closure\) outside of the compiled function"):
        with_closure(make, region, nullcontext, partial(call, fullgraph=True))
    assert in_force() is torch.float32
