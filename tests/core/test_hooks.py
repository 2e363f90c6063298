"""Each private name of a framework that an adapter uses is in its table of hooks.

The table's names are probed before one is used.
"""

from __future__ import annotations

import dataclasses
import sys
import tomllib
import types
from pathlib import Path

import pytest
from private_names import FAMILY, Source

import unamp
from unamp.adapter.hooks import Hooks, HookTable, read_hooks

ADAPTERS = Path(__file__).parents[2] / "adapters"
FRAMEWORKS = sorted(
    name for name in FAMILY if (ADAPTERS / f"unamp_{name}" / "data" / "hooks.toml").exists()
)


def _source(framework: str) -> Source:
    folder = ADAPTERS / f"unamp_{framework}"
    data = tomllib.loads((folder / "data" / "hooks.toml").read_text("utf-8"))
    return Source(
        folder,
        framework,
        HookTable(**{f.name: data[f.name] for f in dataclasses.fields(HookTable)}),
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_private_name_that_an_adapter_uses_is_probed(framework: str) -> None:
    unlisted = [f"{use.file}:{use.line} {use.name}" for use in _source(framework).unlisted()]
    assert not unlisted, f"not in adapters/unamp_{framework}/data/hooks.toml:\n" + "\n".join(
        unlisted
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_name_is_probed_that_nothing_uses(framework: str) -> None:
    assert not _source(framework).unused()


# --- that the reader of sources sees --------------------------------------------------------------

_TABLE = HookTable("1.0", ("jax.core",), {"jax._src.api": ("jit",)}, {}, {}, {})


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import jax._src.core", "jax._src.core"),
        ("from jax._src import core", "jax._src.core"),
        ("from jax.numpy import _where", "jax.numpy._where"),
        ("import jax\njax._src.api.vmap", "jax._src.api.vmap"),
        ("import jax.numpy as jnp\njnp.ndarray._npy_value.x", "jax.numpy.ndarray._npy_value.x"),
        ("from jax import core\ncore.Tracer", "jax.core.Tracer"),
        ("def f(tensor):\n    return tensor._version", "_version"),
        ("def f(tensor):\n    return tensor.value()._version.big", "_version"),
        ("getattr(x, '_trace')", "_trace"),
        ("HOOK = ('jax.interpreters', 'ad._jvp')", "_jvp"),
    ],
)
def test_a_private_name_is_seen(line: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line, "utf-8")
    assert name in [use.name for use in Source(tmp_path, "jax", _TABLE).unlisted()]


@pytest.mark.parametrize(
    "line",
    [
        "import jax\njax.numpy.exp",
        "from jax._src.api import jit",
        "import jax\njax._src.api.jit.lower",
        "class A:\n    def f(self):\n        self._mine = 1\ndef g(a):\n    return a._mine",
        "def _mine():\n    pass\nimport module\nmodule._mine",
        "def f(x):\n    return x.__class__.__name__, x._unamp_plan, x._fields",
        "WORDS = 'a sentence with _words in it'",
    ],
)
def test_nothing_else_is_seen(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line, "utf-8")
    assert Source(tmp_path, "jax", _TABLE).unlisted() == []


# --- the probe ------------------------------------------------------------------------------------


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    """Return the hooks of a framework with two modules; few programs need the second."""
    framework, inner = types.ModuleType("somebodys"), types.ModuleType("somebodys.inner")

    class Layer:
        def __init__(self) -> None:
            self._children = ()

    vars(framework).update(__version__="1.5", _hook=1, Layer=Layer, inner=inner)
    vars(inner).update(_late=2)
    monkeypatch.setitem(sys.modules, "somebodys", framework)
    monkeypatch.setitem(sys.modules, "somebodys.inner", inner)
    table = HookTable(
        "1.5",
        (),
        {"somebodys": ("_hook",), "somebodys.Layer()": ("_children",)},
        {"somebodys.inner": ("_late",)},
        {},
        {},
    )
    return Hooks("somebodys", table)


def test_names_that_are_there_pass(hooks: Hooks) -> None:
    hooks.probe()
    assert hooks.load("somebodys.inner") is sys.modules["somebodys.inner"]


def test_a_module_is_meant_where_its_package_has_a_function_of_that_name(hooks: Hooks) -> None:
    sys.modules["somebodys"].inner = lambda: None  # type: ignore[attr-defined]
    assert hooks.load("somebodys.inner")._late == 2


def test_a_missing_name_is_told_with_the_version(hooks: Hooks) -> None:
    del vars(sys.modules["somebodys"])["_hook"]
    with pytest.raises(
        unamp.FrameworkNotSupported,
        match=r"somebodys 1\.5 has no somebodys\._hook, which unamp needs",
    ):
        hooks.probe()


def test_a_name_that_only_instances_have_is_looked_for_in_one(hooks: Hooks) -> None:
    sys.modules["somebodys"].Layer = type("Layer", (), {})  # type: ignore[attr-defined]
    with pytest.raises(unamp.FrameworkNotSupported, match=r"no somebodys\.Layer\(\)\._children"):
        hooks.probe()


def test_a_module_that_few_programs_need_is_looked_at_when_it_is_loaded(hooks: Hooks) -> None:
    del vars(sys.modules["somebodys.inner"])["_late"]
    hooks.probe()
    with pytest.raises(unamp.FrameworkNotSupported, match=r"no somebodys\.inner\._late"):
        hooks.load("somebodys.inner")


def test_of_a_version_that_nobody_examined_every_module_is_looked_at(hooks: Hooks) -> None:
    del vars(sys.modules["somebodys.inner"])["_late"]
    sys.modules["somebodys"].__version__ = "1.6.0"  # type: ignore[attr-defined]
    with pytest.raises(
        unamp.FrameworkNotSupported, match=r"somebodys 1\.6\.0 has no somebodys\.inner\._late"
    ):
        hooks.probe()


def test_an_attribute_that_an_object_lacks_is_told_with_the_version(hooks: Hooks) -> None:
    assert hooks.attribute(types.SimpleNamespace(_slot=3), "_slot") == 3
    with pytest.raises(
        unamp.FrameworkNotSupported, match=r"somebodys 1\.5 has no SimpleNamespace\._slot"
    ):
        hooks.attribute(types.SimpleNamespace(), "_slot")


def test_the_table_is_read_strictly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "unamp_somebodys"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "data" / "hooks.toml").write_text(
        'schema = 1\nversion = "1.5"\nprivat = []\n', "utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(unamp.AdapterError, match="unknown key 'privat'"):
        read_hooks("somebodys", "unamp_somebodys")
