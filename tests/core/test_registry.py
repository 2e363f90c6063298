"""Adapters are checked when they are registered, and found when they are needed."""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest

import unamp
from unamp.adapter import Adapter, check_version, registry


def test_a_registered_adapter_is_in_use(fake: Any) -> None:
    assert fake in registry.adapters_in_use()
    assert registry.adapter_for("fake") is fake


def test_registering_again_replaces(make_adapter: Callable[..., Any]) -> None:
    _, second = make_adapter(), make_adapter()
    assert registry.adapter_for("fake") is second
    assert [a for a in registry.adapters_in_use() if a.framework == "fake"] == [second]


@pytest.mark.parametrize(
    "name", [n for n in vars(Adapter) if callable(vars(Adapter)[n]) and n[0] != "_"]
)
def test_a_missing_method_is_named(fake_class: Any, name: str) -> None:
    adapter = type("Partial", (fake_class,), {name: None})()
    with pytest.raises(
        unamp.AdapterError, match=rf"adapter Partial \(fake\) has no method '{name}'"
    ):
        registry.register(adapter)
    assert adapter not in registry.adapters_in_use()


def test_a_wrong_signature_is_named_with_the_right_one(fake_class: Any) -> None:
    class Wrong(fake_class):
        def cast(self, tensor: Any) -> Any: ...

    with pytest.raises(
        unamp.AdapterError,
        match=r"adapter Wrong \(fake\): cast\(tensor\) must take \(tensor, dtype\)",
    ):
        registry.register(Wrong())


@pytest.mark.parametrize("attribute", ["framework", "requires"])
@pytest.mark.parametrize("value", [None, 3])
def test_a_wrong_attribute_is_named(fake_class: Any, attribute: str, value: object) -> None:
    adapter = fake_class()
    setattr(adapter, attribute, value)
    with pytest.raises(unamp.AdapterError, match=f"attribute '{attribute}' must be a string"):
        registry.register(adapter)


def test_anything_else_is_no_adapter() -> None:
    with pytest.raises(
        unamp.AdapterError, match="adapter str: attribute 'framework' must be a string"
    ):
        registry.register("torch")  # type: ignore[arg-type]


def test_an_adapter_that_does_not_suit_its_framework_is_not_registered(fake_class: Any) -> None:
    class TooNew(fake_class):
        def probe(self) -> None:
            raise unamp.FrameworkNotSupported("fake 9.0: hook gone")

    before = registry.adapters_in_use()
    with pytest.raises(unamp.FrameworkNotSupported, match="hook gone"):
        registry.register(TooNew())
    assert registry.adapters_in_use() is before


@pytest.mark.parametrize("version", ["0.9", "2.0", "2.1.3+cpu"])
def test_a_framework_of_another_version_is_refused_before_it_is_probed(
    fake_class: Any, version: str
) -> None:
    class Probed(fake_class):
        def version(self) -> str:
            return version

        def probe(self) -> None:
            raise AssertionError("probed")

    with pytest.raises(
        unamp.FrameworkNotSupported,
        match=rf"fake {re.escape(version)} is installed.* fake >=1\.0,<2",
    ):
        registry.register(Probed())


def test_an_older_version_is_told_why() -> None:
    with pytest.raises(
        unamp.FrameworkNotSupported,
        match=r"fake 0\.9 is installed; .* fake >=1\.0,<2: it has no casts",
    ):
        check_version("fake", "0.9", ">=1.0,<2", older="it has no casts")
    with pytest.raises(
        unamp.FrameworkNotSupported, match=r"fake 2\.0 is installed; .* fake >=1\.0,<2$"
    ):
        check_version("fake", "2.0", ">=1.0,<2", older="it has no casts")


def test_versions_that_cannot_be_read_are_the_adapters_mistake(fake_class: Any) -> None:
    class Vague(fake_class):
        requires = "1.0 or so"

    with pytest.raises(
        unamp.AdapterError, match="requires is '1.0 or so', not of the form '>=1.2,<2'"
    ):
        registry.register(Vague())


def test_an_unknown_framework_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"unknown framework 'mxnet'; adapters are installed for: .*torch"
    ):
        registry.adapter_for("mxnet")


def test_a_framework_that_is_not_imported_is_not_imported_for_you() -> None:
    assert "torch" not in sys.modules
    with pytest.raises(
        unamp.FrameworkNotSupported, match="torch is not imported; import it before"
    ):
        registry.adapter_for("torch")
    assert "torch" not in sys.modules


@pytest.fixture
def entry_point(
    make_adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Return a function that installs an adapter's entry point, as another distribution would.

    Its framework is not imported yet.
    """

    def install(framework: str, value: str) -> None:
        point = metadata.EntryPoint(framework, value, "unamp.adapters")
        monkeypatch.setattr(registry, "installed", lambda: {framework: point})
        monkeypatch.setattr(registry, "_waiting", None)

    return install


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_strangers_adapter_is_loaded_once_its_framework_is_imported(
    entry_point: Callable[..., None], fake_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = fake_class("strange")
    _module(monkeypatch, "unamp_strange", adapter=adapter)
    entry_point("strange", "unamp_strange:adapter")
    assert adapter not in registry.adapters_in_use()
    _module(monkeypatch, "strange")
    assert adapter in registry.adapters_in_use()
    with unamp.policy_region(unamp.Policy()):
        assert adapter.in_force == [unamp.Policy()]
    assert adapter.in_force == []


def test_a_framework_in_the_middle_of_its_own_import_is_left_for_later(
    entry_point: Callable[..., None], fake_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = fake_class("strange")
    _module(monkeypatch, "unamp_strange", adapter=adapter)
    entry_point("strange", "unamp_strange:adapter")
    spec = types.SimpleNamespace(_initializing=True)
    _module(monkeypatch, "strange", __spec__=spec)
    assert adapter not in registry.adapters_in_use()
    spec._initializing = False
    assert adapter in registry.adapters_in_use()


def test_an_adapter_that_cannot_be_loaded_is_named(
    entry_point: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_point("strange", "unamp_no_such_module:adapter")
    _module(monkeypatch, "strange")
    with pytest.raises(
        unamp.AdapterError,
        match=r"the adapter for strange \(unamp_no_such_module:adapter\) could not be loaded",
    ):
        unamp.autocast("cpu", framework="strange")


@pytest.fixture
def too_old(
    entry_point: Callable[..., None], fake_class: Any, monkeypatch: pytest.MonkeyPatch
) -> types.ModuleType:
    """Return a framework that is imported, and too old for its adapter."""
    adapter = fake_class("strange")
    adapter.probe = lambda: (_ for _ in ()).throw(
        unamp.FrameworkNotSupported("strange 0.1 is too old")
    )
    _module(monkeypatch, "unamp_strange", adapter=adapter)
    entry_point("strange", "unamp_strange:adapter")
    return _module(
        monkeypatch, "strange", Value=type("Value", (), {"__module__": "strange.values"})
    )


def test_an_unsuitable_framework_does_not_cost_the_others(
    too_old: types.ModuleType, fake: Any
) -> None:
    left_out = "strange is imported, and no policy is in force on it: strange 0.1 is too old"
    with pytest.warns(unamp.AmpWarning, match=left_out), unamp.autocast("cpu"):
        assert [policy.level for policy in fake.in_force] == ["O1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning comes once
        with unamp.autocast("cpu"), unamp.autocast("cpu", framework="fake"):
            assert len(fake.in_force) == 2
        assert [answer.framework for answer in unamp.check(unamp.Policy()).answers] == ["fake"]


def test_an_unsuitable_framework_is_not_warned_of_where_nothing_would_be_in_force(
    too_old: types.ModuleType, fake: Any, recwarn: pytest.WarningsRecorder
) -> None:
    with unamp.autocast("cpu", enabled=False), unamp.autocast("cpu", framework="fake"):
        pass
    assert list(recwarn) == []


def test_a_region_that_covers_nothing_but_an_unsuitable_framework_raises(
    too_old: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_in_use", ())
    for ask in (unamp.autocast("cpu").__enter__, lambda: unamp.check(unamp.Policy())):
        with pytest.raises(unamp.FrameworkNotSupported, match=r"strange 0\.1 is too old"):
            ask()
    assert unamp.current_policy() is None


def test_an_error_that_is_raised_again_does_not_keep_who_got_it_before(
    too_old: types.ModuleType, fake: Any
) -> None:
    lengths = []
    for _ in range(3):
        with pytest.raises(unamp.FrameworkNotSupported) as error:
            registry.adapter_for("strange")
        lengths.append(len(traceback.extract_tb(error.value.__traceback__)))
    assert len({*lengths}) == 1


def test_an_unsuitable_framework_raises_where_it_is_asked_for_or_comes_in(
    too_old: types.ModuleType, fake: Any
) -> None:
    value = type(
        "OfAUser", (too_old.Value,), {"__module__": "somebodys.code", "step": lambda self: None}
    )()
    scaler = unamp.GradScaler()
    for ask in (
        lambda: unamp.autocast("cpu", framework="strange"),
        lambda: unamp.check(unamp.Policy(), framework="strange"),
        lambda: unamp.auto_mixed_precision(value, "O1"),
        lambda: unamp.decorate(value, level="O2"),
        lambda: unamp.default_region(unamp.Policy(), like=[value]),
        lambda: scaler.scale(value),
        lambda: scaler.step(value),
    ):
        with pytest.raises(unamp.FrameworkNotSupported, match=r"strange 0\.1 is too old"):
            ask()


def _tensor_of(framework: types.ModuleType) -> Any:
    return type(
        "Tensor", (framework.Value,), {"__module__": "strange", "dtype": "float32", "shape": (2,)}
    )()


async def _awaited(*values: Any, **named: Any) -> int:
    return len(values)


async def _several(*values: Any, **named: Any) -> Any:
    yield len(values)


def _yielding(*values: Any, **named: Any) -> Any:
    yield len(values)


DECORATED: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "function": (lambda *values, **named: len(values), lambda called: called),
    "generator": (_yielding, next),
    "coroutine": (_awaited, lambda called: asyncio.run(called)),
    "asynchronous generator": (_several, lambda called: asyncio.run(anext(called))),
}


@pytest.mark.parametrize("kind", DECORATED)
@pytest.mark.filterwarnings("ignore:strange is imported")
def test_a_decorated_function_raises_where_tensors_of_an_unsuitable_framework_come_in(
    too_old: types.ModuleType, fake: Any, kind: str
) -> None:
    function, run = DECORATED[kind]
    tensor, calls = _tensor_of(too_old), unamp.autocast("cpu")(function)
    for args, kwargs in (((tensor,), {}), ((1, [{"x": (tensor,)}]), {}), ((), {"x": tensor})):
        with pytest.raises(unamp.FrameworkNotSupported, match=r"strange 0\.1 is too old"):
            run(calls(*args, **kwargs))
        assert unamp.current_policy() is None
    assert run(calls(1, too_old.Value())) == 2  # a data set, for example: no policy is about it
    for region in (unamp.autocast("cpu", framework="fake"), unamp.autocast("cpu", enabled=False)):
        assert run(region(function)(tensor)) == 1


@pytest.mark.filterwarnings("ignore:strange is imported")
def test_a_function_that_is_decorated_before_an_unsuitable_framework_is_imported(
    too_old: types.ModuleType, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = _tensor_of(too_old)
    monkeypatch.delitem(sys.modules, "strange")
    calls = unamp.autocast("cpu")(len)
    assert calls([1]) == 1
    monkeypatch.setitem(sys.modules, "strange", too_old)
    with pytest.raises(unamp.FrameworkNotSupported, match=r"strange 0\.1 is too old"):
        calls([tensor])


def test_the_dialect_of_torch_leaves_an_unsuitable_framework_out_as_regions_do(
    too_old: types.ModuleType, fake: Any
) -> None:
    from unamp.dialects.torch import amp

    left_out = "strange is imported, and no policy is in force on it: strange 0.1 is too old"
    with pytest.warns(unamp.AmpWarning, match=left_out), amp.autocast("cpu"):
        assert [policy.preset for policy in fake.in_force] == ["torch-cpu"]
    tensor = _tensor_of(too_old)
    with pytest.raises(unamp.FrameworkNotSupported, match=r"strange 0\.1 is too old"):
        amp.autocast("cpu")(len)([tensor])
    assert amp.autocast("cpu", enabled=False)(len)([tensor]) == 1


def test_what_is_no_value_of_an_unsuitable_framework_is_told_what_it_is(
    too_old: types.ModuleType, fake: Any
) -> None:
    with pytest.raises(TypeError, match="scale.. takes tensors, .* not float"):
        unamp.GradScaler().scale(1.0)


def test_a_framework_with_an_adapter_that_is_not_installed_says_how_to_install_it(
    entry_point: Callable[..., None],
) -> None:
    entry_point("strange", "unamp_strange:adapter")
    with pytest.raises(
        unamp.FrameworkNotSupported,
        match=r"strange is not installed; pip install 'unamp\[strange\]'",
    ):
        registry.adapter_for("strange")


def test_a_frameworks_own_function_is_an_operation(fake: Any, tensor: Any) -> None:
    assert unamp.Policy(deny=[tensor.__init__]).deny == ("linear",)
    with pytest.raises(
        TypeError,
        match="deny takes operation names, or a framework's functions, .*; got builtin_function",
    ):
        unamp.Policy(deny=[print])
