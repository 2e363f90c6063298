"""`import unamp` is cheap and imports no other package."""

from __future__ import annotations

import sys
from pathlib import Path

from documents import ROOT
from elsewhere import python

import unamp


def test_import_brings_the_standard_library_and_nothing_else() -> None:
    # Modules that the environment's own start-up files import are there before.
    code = """
import sys
before = set(sys.modules)
import unamp
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""
    assert set(python("-c", code).split()) - sys.stdlib_module_names == {"unamp"}


def test_import_leaves_the_slow_parts_of_the_standard_library_alone() -> None:
    slow = set(
        "dataclasses inspect json tomllib importlib.metadata difflib subprocess asyncio".split()
    )
    assert slow & set(python("-c", "import sys, unamp; print(*sys.modules)").split()) == set()


def test_the_data_is_read_when_first_needed() -> None:
    code = """
import sys, unamp
assert "tomllib" not in sys.modules
unamp.Policy(deny="linear").decide("linear")
assert "tomllib" in sys.modules
"""
    python("-c", code)


def test_a_region_imports_no_framework() -> None:
    code = """
import sys, unamp
with unamp.autocast(), unamp.auto_cast(), unamp.trace():
    unamp.explain(unamp.Policy())
print(*{"torch", "paddle", "mindspore", "tensorflow", "jax", "numpy"} & set(sys.modules))
"""
    assert python("-c", code).strip() == ""


def test_threads_that_are_the_first_to_ask_get_one_vocabulary() -> None:
    code = """
import sys, threading, time
import unamp
module, found, asked = sys.modules["unamp.vocabulary"], [], threading.Event()
load = module.load_table

def loaded(name):
    if not asked.is_set():
        other.start()
        asked.wait()
        for _ in range(1000):  # the other has all the time that it wants
            time.sleep(0)
    return load(name)

def ask():
    asked.set()
    found.append(unamp.vocabulary())

other, module.load_table = threading.Thread(target=ask), loaded
found.append(unamp.vocabulary())
other.join()
assert found[0] is found[1] is unamp.vocabulary()
"""
    python("-c", code)


def test_a_library_on_unamp_imports_no_framework() -> None:
    code = """
import sys, library
library.DEFAULT.decide("softmax")
print(*{"torch", "paddle", "mindspore", "tensorflow", "jax", "keras", "numpy"} & set(sys.modules))
"""
    assert python("-c", code, path=ROOT / "docs" / "examples").strip() == ""


def test_public_names() -> None:
    promised = set(
        (
            "Policy Rule autocast auto_cast amp_guard policy_region custom_fwd custom_bwd "
            "current_policy is_autocast_enabled get_autocast_dtype trace OpRecord explain "
            "GradScaler"
        ).split()
    )
    assert promised <= set(unamp.__all__)
    assert len(set(unamp.__all__)) == len(unamp.__all__)
    for name in unamp.__all__:
        assert hasattr(unamp, name), name


def test_an_import_is_waited_for_whoever_looks_for_the_module_before(tmp_path: Path) -> None:
    (tmp_path / "awaited.py").write_text(
        "import os\nif 'FAIL' in os.environ:\n    raise ImportError('not yet')\n"
    )
    code = """
import importlib.util, os, sys
from unamp._on_import import _Waiting, when_imported
came = []
when_imported("awaited", lambda: came.append(sys.modules["awaited"]))
sys.meta_path.insert(0, _Waiting("awaited", lambda: came.append(None)))  # of an unamp that was imported a second time
spec = importlib.util.find_spec("awaited")
assert spec.loader.is_package("awaited") is False
os.environ["FAIL"] = "1"
try:
    import awaited
except ImportError:
    del os.environ["FAIL"]
assert came == []
import awaited
assert came == [awaited, None] and type(awaited.__loader__).__name__ == "SourceFileLoader"
waiting = len(sys.meta_path)
when_imported("awaited", lambda: None)
assert len(sys.meta_path) == waiting and importlib.util.find_spec("awaited") is awaited.__spec__
"""  # noqa: E501
    python("-c", code, path=tmp_path)
