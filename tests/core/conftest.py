"""A fake framework that needs no installation; its adapter keeps the whole contract.

The adapter records the calls that the core makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest

import unamp
from unamp import amp_warnings
from unamp.adapter import Decoration, Fact, Gap, How, OpRecord, Support, registry
from unamp.adapter.wrapping import with_method
from unamp.networks import call_under
from unamp.policy import Policy
from unamp.regions import Region


class FakeTensor:
    def __init__(self, dtype: str, value: float = 0.0) -> None:
        self.dtype = dtype
        self.value = value


class FakeOptimizer:
    """Add up its parameters' gradients; a parameter is a name with a gradient or None."""

    def __init__(self, **gradients: FakeTensor | None) -> None:
        self.gradients = gradients
        self.total = 0.0
        self.steps: list[tuple[object, ...]] = []

    def step(self, *args: object, **kwargs: object) -> None:
        self.steps.append((*args, *kwargs.items()))
        self.total += sum(g.value for g in self.gradients.values() if g is not None)


class FakeGradients:
    """The gradients in the optimizer's parameters, or in a dictionary that the caller gives."""

    def __init__(self, optimizer: FakeOptimizer, values: dict[str, FakeTensor] | None) -> None:
        self.optimizer, self.values = optimizer, values
        self.found: bool | None = None

    def _named(self) -> dict[str, FakeTensor]:
        named = self.optimizer.gradients if self.values is None else self.values
        return {name: gradient for name, gradient in named.items() if gradient is not None}

    def dtypes(self) -> frozenset[str]:
        return frozenset(gradient.dtype for gradient in self._named().values())

    def unscale(self, scale: float) -> None:
        named = self._named()
        if named:
            self.found = not all(math.isfinite(g.value) for g in named.values())
        unscaled = {name: FakeTensor(g.dtype, g.value / scale) for name, g in named.items()}
        if self.values is None:
            self.optimizer.gradients.update(unscaled)
        else:
            self.values = unscaled

    def overflow(self) -> bool | None:
        return self.found

    def first_nonfinite(self, network: Any) -> str | None:
        found = next(
            (name for name, g in self._named().items() if not math.isfinite(g.value)), None
        )
        return found if found is None or network is None else network[found]

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        if self.values is not None:
            self.optimizer.gradients.update(self.values)
        return self.optimizer.step(*args, **kwargs)


class FakeNetwork:
    """Keep the tensors of each call, and return one of their dtype."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Policy | None]] = []

    def forward(self, *tensors: FakeTensor, scale: FakeTensor | None = None) -> Any:
        self.seen += [
            (tensor.dtype, unamp.current_policy())
            for tensor in (*tensors, *([scale] if scale else ()))
        ]
        return {"out": [FakeTensor(tensor.dtype) for tensor in tensors]}


class FakeRealisation:
    """Put a policy on its adapter's stack; raise the errors that the adapter was told to."""

    def __init__(self, adapter: FakeAdapter, policy: Policy, device: str | None) -> None:
        self.adapter, self.policy, self.device = adapter, policy, device

    def enter(self) -> object:
        if self.adapter.fails_on_enter:
            raise self.adapter.fails_on_enter
        self.adapter.in_force.append(self.policy)
        self.adapter.events.append(("enter", self.policy))
        return len(self.adapter.in_force)

    def exit(self, token: object) -> None:
        assert token == len(self.adapter.in_force), "regions were left in the wrong order"
        self.adapter.events.append(("exit", self.adapter.in_force.pop()))
        if self.adapter.fails_on_exit:
            raise self.adapter.fails_on_exit


class FakeAdapter:
    requires = ">=1.0,<2"
    holds_gradients = True

    def __init__(self, framework: str = "fake") -> None:
        self.framework = framework
        self.in_force: list[Policy] = []
        self.events: list[tuple[str, Policy]] = []
        self.prepared: list[tuple[Policy, str | None]] = []
        self.sinks: list[Callable[[OpRecord], None]] = []
        self.wants_values: list[bool] = []
        self.slow: dict[str, float] = {}
        self.fails_on_enter: BaseException | None = None
        self.fails_on_exit: BaseException | None = None
        self.fails_on_prepare: BaseException | None = None
        self.fails_on_compile: BaseException | None = None
        self.places: dict[int, str] = {}  # devices other than the CPU, by a tensor's id
        self.native: dict[str, Policy] = {}  # the framework's own AMP, by device
        self.has_gpu = False
        self.tensor, self.optimizer = FakeTensor, FakeOptimizer
        self.scaled_under: list[bool] = []
        self.is_compiling = False
        self.decorated: list[tuple[list[Any], list[Any], Decoration]] = []
        self.captured: list[tuple[str, Region]] = []
        self.capturable: list[Region] = []

    def version(self) -> str:
        return "1.0"

    def probe(self) -> None:
        pass

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "gpu") if self.has_gpu else ("cpu",)

    def support(self, device: str, dtype: str) -> Support:
        return Support.EMULATED if (device, dtype) == ("cpu", "float16") else Support.NATIVE

    def runtime(self) -> Mapping[str, Fact]:
        return {"threads": 1}

    def gaps(self) -> tuple[Gap, ...]:
        return ()

    def prepare(self, policy: Policy, device: str | None) -> FakeRealisation:
        if self.fails_on_prepare:
            raise self.fails_on_prepare
        self.prepared.append((policy, device))
        return FakeRealisation(self, policy, device)

    def how(self, op: str, policy: Policy, device: str) -> How:
        return How.INTERCEPTED if policy.active else How.NATIVE

    def slowdown(self, device: str, dtype: str) -> float:
        return self.slow.get(dtype, 1.0) if device == "cpu" else 1.0

    def observe(
        self, sink: Callable[[OpRecord], None], values: bool
    ) -> AbstractContextManager[None]:
        @contextmanager
        def observing() -> Iterator[None]:
            self.sinks.append(sink)
            self.wants_values.append(values)
            try:
                yield
            finally:
                self.sinks.pop()  # the innermost: a trace may be open twice

        return observing()

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, self.tensor)

    def cast(self, tensor: Any, dtype: str) -> Any:
        return FakeTensor(dtype)

    def dtype_of(self, tensor: Any) -> str:
        return tensor.dtype

    def device_of(self, tensor: Any) -> str:
        return self.places.get(id(tensor), "cpu")

    def native_policy(self, device: str) -> Policy | None:
        return self.native.get(device)

    def check_compiled(self, policy: Policy, device: str) -> None:
        if self.fails_on_compile:
            raise self.fails_on_compile

    def make_network(self) -> FakeNetwork:
        return FakeNetwork()

    def is_network(self, value: object) -> bool:
        return isinstance(value, FakeNetwork)

    def wrap(self, network: FakeNetwork, policy: Policy) -> Any:
        return with_method(
            network, "forward", partial(call_under, self, policy), partial(self.wrap, policy=policy)
        )

    def is_optimizer(self, value: object) -> bool:
        return isinstance(value, self.optimizer)

    def scale_loss(self, loss: Any, scale: float) -> Any:
        self.scaled_under.append(unamp.is_autocast_enabled())
        return FakeTensor("float32", loss.value * scale)

    def backward(
        self, compute: Callable[[], tuple[Any, Any]], network: Any, optimizer: FakeOptimizer
    ) -> tuple[Any, Any]:
        scaled, loss = compute()
        optimizer.gradients = dict.fromkeys(optimizer.gradients, scaled)
        return loss, None

    def all_finite(self, tensors: Sequence[FakeTensor]) -> bool:
        return all(math.isfinite(tensor.value) for tensor in tensors)

    def gradients(self, optimizer: Any, given: Any) -> FakeGradients:
        return FakeGradients(optimizer, given)

    def decorate(self, networks: Any, optimizers: Any, decoration: Decoration) -> None:
        self.decorated.append((list(networks), list(optimizers), decoration))

    def spelling(self, value: object) -> str | None:
        return "torch.nn.Linear" if value is FakeTensor.__init__ else None

    def compiling(self) -> bool:
        return self.is_compiling

    def make_capturable(self, region: Region) -> int:
        self.capturable.append(region)
        return len(self.capturable) - 1

    def enter_captured(self, key: int) -> None:
        self.captured.append(("enter", self.capturable[key]))

    def leave_captured(self, key: int) -> None:
        self.captured.append(("leave", self.capturable[key]))

    def operations(self) -> Any:
        raise NotImplementedError


@pytest.fixture
def make_adapter(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeAdapter]:
    """Return a function that registers a fake adapter until the end of the test."""
    registry.adapters_in_use()  # reads all entry points now, so that the registry is complete
    for name in ("_loaded", "_in_use", "_waiting", "_unsuitable"):
        value = getattr(registry, name)
        monkeypatch.setattr(registry, name, dict(value) if isinstance(value, dict) else value)

    def make(framework: str = "fake", **settings: Any) -> FakeAdapter:
        adapter = FakeAdapter(framework)
        vars(adapter).update(settings)
        registry.register(adapter)
        return adapter

    return make


@pytest.fixture
def fake(make_adapter: Callable[..., FakeAdapter]) -> FakeAdapter:
    """Return one registered fake adapter."""
    return make_adapter()


@pytest.fixture
def fake_class() -> type[FakeAdapter]:
    """Return the fake adapter's class, for a test to change."""
    return FakeAdapter


@pytest.fixture
def tensor() -> type[FakeTensor]:
    """Return the class of the fake framework's tensors."""
    return FakeTensor


@pytest.fixture
def optimizer() -> type[FakeOptimizer]:
    """Return the class of the fake framework's optimizers."""
    return FakeOptimizer


@pytest.fixture(autouse=True)
def no_warning_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test with no warning given: some are given once in a process."""
    monkeypatch.setattr(amp_warnings, "_given", set())


@pytest.fixture(autouse=True)
def no_region_is_left_open() -> Iterator[None]:
    """Check that each test closes its regions."""
    yield
    assert unamp.current_policy() is None
