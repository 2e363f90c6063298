"""Fixtures of all tests."""

import importlib
import random
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # for `documents` and what else the folders share

# A failed assertion there says what it compared, too.
pytest.register_assert_rewrite(
    *(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "conftest")
)

# The machines that run the tests are slow and busy, and a red run must be red again tomorrow.
settings.register_profile("unamp", deadline=None, derandomize=True)
settings.load_profile("unamp")


@pytest.fixture(scope="module")
def framework(request):
    """Return the framework whose folder a test stands in.

    It is for tests that the folders import from the modules beside them.
    """
    return request.path.parent.name


@pytest.fixture(params=["float16", "bfloat16"])
def low(request, framework):
    """A low dtype of the folder's framework."""
    return getattr(
        importlib.import_module("jax.numpy" if framework == "jax" else framework), request.param
    )


@pytest.fixture(scope="module")
def chromium():
    """The browser in which tests look at pages."""
    import browser
    from playwright.sync_api import sync_playwright

    path = browser.find()
    assert path is not None, browser.ADVICE
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=browser.FLAGS)
        yield started
        started.close()


def pytest_generate_tests(metafunc):
    """Parametrize a test that folders import from a module beside them.

    It gets what that module promises of the folder's framework.
    """
    if promises := getattr(metafunc.function, "promises", None):
        metafunc.parametrize("promise", promises(Path(metafunc.module.__file__).parent.name))


def pytest_configure(config):
    # Tests write on purpose what a user is warned of;
    # those of the warnings themselves look for them.
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
