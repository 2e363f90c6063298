"""The folders of frameworks that tests read without importing them."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))

from wheels import without_wheels

#: Keras is read where TensorFlow is installed, which brings it.
_COMES_WITH = {"keras": "tensorflow"}


def place(framework: str) -> Path:
    """Return the folder of an installed framework.

    A framework that is missing is a failure, since nothing would be compared, unless it offers no
    wheel.
    """
    spec = importlib.util.find_spec(framework)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        # not found here: a folder of tests with the framework's name
        if _COMES_WITH.get(framework, framework) in without_wheels():
            pytest.skip(f"{framework} offers no wheel for this Python")
        pytest.fail(
            f"{framework} is not installed, so nothing can be compared with it: "
            f"pip install 'unamp[{framework}]'"
        )
    return Path(next(iter(spec.submodule_search_locations)))
