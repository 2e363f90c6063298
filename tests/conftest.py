"""Fixtures of all tests."""

import gc
import importlib
import random
import sys
from pathlib import Path

import pytest
from hypothesis import settings

gc.disable()  # until the tests are collected: imports leave little garbage
sys.path.insert(0, str(Path(__file__).parent))  # the modules that the folders share

# pytest then also explains a failed assertion in these modules
pytest.register_assert_rewrite(
    *(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "conftest")
)

# The machines that run the tests are slow and busy, and a failure must be repeatable.
settings.register_profile("unamp", deadline=None, derandomize=True)
settings.load_profile("unamp")


@pytest.fixture(scope="module")
def framework(request):
    """Return the framework of the folder that a test is in.

    Tests use it that the folders import from the shared modules.
    """
    return request.path.parent.name


@pytest.fixture(params=["float16", "bfloat16"])
def low(request, framework):
    """Return a low dtype of the folder's framework."""
    return getattr(
        importlib.import_module("jax.numpy" if framework == "jax" else framework), request.param
    )


@pytest.fixture(scope="module")
def chromium():
    """Return the browser in which tests open pages."""
    import browser
    from playwright.sync_api import sync_playwright

    path = browser.find()
    assert path is not None, browser.ADVICE
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=browser.FLAGS)
        yield started
        started.close()


def pytest_generate_tests(metafunc):
    """Parametrize a test that folders import from a shared module.

    Its parameters are the promises of that module for the folder's framework.
    """
    if promises := getattr(metafunc.function, "promises", None):
        metafunc.parametrize("promise", promises(Path(metafunc.module.__file__).parent.name))


def pytest_configure(config):
    # Many tests do on purpose what unamp warns of. The tests of warnings
    # look for them in another way.
    config.addinivalue_line("filterwarnings", "ignore::unamp.errors.AmpWarning")


def pytest_addoption(parser):
    parser.addoption(
        "--draw", type=int, default=0, help="run so many of the tests only, drawn by lot"
    )
    parser.addoption("--seed", type=int, default=0, help="of the draw")


def pytest_collection_modifyitems(config, items):
    if number := config.getoption("draw"):
        seed = config.getoption("seed")
        lots = sorted(items, key=lambda item: random.Random(f"{seed} {item.nodeid}").random())
        config.hook.pytest_deselected(items=lots[number:])
        chosen = {item.nodeid for item in lots[:number]}
        items[:] = [item for item in items if item.nodeid in chosen]


def pytest_collection_finish():
    # What is imported stays. MindSpore and Keras collect garbage themselves, for each graph or
    # weight, and would look through it every time.
    gc.collect()
    gc.freeze()
    gc.enable()
