"""Where the frameworks are that the tests read without importing them."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))

from wheels import without_wheels

#: Keras comes with TensorFlow.
_COMES_WITH = {"keras": "tensorflow"}


def place(framework: str) -> Path:
    """Return where a framework is installed.

    A missing one is a failure, since nothing would be compared, unless there is no wheel of it.
    """
    spec = importlib.util.find_spec(framework)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        # a folder of tests is no framework
        if _COMES_WITH.get(framework, framework) in without_wheels():
            pytest.skip(f"{framework} offers no wheel for this Python")
        pytest.fail(
            f"{framework} is not installed, so nothing can be compared with it: "
            f"pip install 'unamp[{framework}]'"
        )
    return Path(next(iter(spec.submodule_search_locations)))
