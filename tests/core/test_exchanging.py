"""The loops of `PatchGroup` in C, and how compiled parts are built, found and refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unamp import FrameworkNotSupported
from unamp.adapter import building, exchanging

CAN_BUILD = shutil.which("cc") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()

needs_compiler = pytest.mark.skipif(not CAN_BUILD, reason="there is no C compiler, or Python came without its headers")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing is built, and an environment that asks for nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("UNAMP_SOMEBODYS_COMPILED", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The loops in C as a wheel brings them: for every Python, and found beside their source."""
    if not CAN_BUILD:
        pytest.skip("there is no C compiler, or Python came without its headers")
    part = in_a_wheel(tmp_path_factory.mktemp("wheel"))
    part.compile_extension("-DPy_LIMITED_API=0x030b0000", target=part.in_wheel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("empty")))
        return part.module()


@pytest.fixture(params=["for this Python", "for every Python"])
def exchange(request: pytest.FixtureRequest, exchange: Any) -> Any:
    """The loops in C, in both forms."""
    return exchange if request.param == "for this Python" else request.getfixturevalue("stable")


def in_a_wheel(folder: Path) -> building.CompiledPart:
    """The loops as a part whose source, and what a wheel brings, is in a folder."""
    source = shutil.copy(exchanging._SOURCE, folder)
    return building.CompiledPart.extension("somebodys", "the compiled exchange", "unamp_exchanging", Path(source))


def functions(count: int) -> tuple[Any, ...]:
    def numbered(n: int) -> Callable[[], int]:
        source: dict[str, Any] = {}
        exec(f"def number():\n return {n}", source)
        return source["number"]  # type: ignore[no-any-return]

    return tuple(numbered(n) for n in range(count))


def codes(*of: Any) -> tuple[Any, ...]:
    return tuple(function.__code__ for function in of)


def test_functions_run_other_code_at_once_however_often_they_ran(exchange: Any) -> None:
    one, two = functions(2)
    own, other = codes(one), codes(two)
    seen = set()
    for _ in range(50):
        exchange.codes((one,), other, None)
        seen.add(tuple(one() for _ in range(20)))  # so often that Python specialises the call
        exchange.codes((one,), own, other)
        seen.add(tuple(one() for _ in range(20)))
    assert seen == {(1,) * 20, (0,) * 20}


def test_only_functions_that_run_what_is_expected_are_exchanged(exchange: Any) -> None:
    one, two, three = functions(3)
    own = codes(one, two)
    exchange.codes((one, two), codes(three, three), None)
    two.__code__ = codes(*functions(8))[7]
    exchange.codes((one, two), own, codes(three, three))
    assert (one(), two()) == (0, 7)


def test_an_exchange_is_an_assignment_with_what_python_checks(exchange: Any) -> None:
    one, two = functions(2)

    def closed_over() -> Any:
        return one

    with pytest.raises(ValueError, match="free vars"):
        exchange.codes((two, one), codes(one, closed_over), None)
    assert (one(), two()) == (0, 0)
    audited = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("unamp_exchanging", sys.argv[1])
exchange = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exchange)
seen = []
sys.addaudithook(lambda event, args: event == "object.__setattr__" and seen.append(args[1]))
one, two = lambda: 1, lambda: 2
exchange.codes((one,), (two.__code__,), None)
print(one(), seen)
"""
    command = [sys.executable, "-c", audited, exchange.__file__]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "2 ['__code__']", found.stderr


def test_names_are_exchanged_together_or_not_at_all(exchange: Any) -> None:
    space = {"first": 1, "second": 2, "third": 3}
    names = ("first", "second")
    assert exchange.names(space, names, (-1, -2), (1, 2)) is True
    assert exchange.names(space, names, (1, 2), (-1, 2)) is False
    assert space == {"first": -1, "second": -2, "third": 3}
    del space["second"]
    assert exchange.names(space, names, (1, 2), (-1, -2)) is False
    assert space == {"first": -1, "third": 3}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda e: e.codes((), ()), "takes 3 arguments, 2 given"),
        (lambda e: e.codes([], (), None), "tuples of one length"),
        (lambda e: e.codes((codes,), (), None), "tuples of one length"),
        (lambda e: e.codes((print,), (codes.__code__,), None), "no function of Python code"),
        (lambda e: e.names({}, ()), "takes 4 arguments, 2 given"),
        (lambda e: e.names([], (), (), ()), "is no dictionary"),
        (lambda e: e.names({}, ("a",), (), ()), "tuples of one length"),
        (lambda e: e.names({}, ([],), (1,), (1,)), "unhashable"),
    ],
)
def test_what_cannot_be_exchanged_is_an_error(call: Callable[[Any], Any], said: str, exchange: Any) -> None:
    with pytest.raises(TypeError, match=said):
        call(exchange)


@needs_compiler
def test_a_part_is_used_once_it_is_built(cache: Path) -> None:
    part = exchanging.part("somebodys")
    assert part.module() is None
    assert part.can_be_built()
    built = part.compile_extension()
    assert built == part.place()
    assert built.is_relative_to(cache)
    assert os.listdir(built.parent) == [built.name]
    assert not part.can_be_built()
    assert hasattr(part.module(), "codes")


def test_the_environment_decides(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = exchanging.part("somebodys")
    monkeypatch.setenv("UNAMP_SOMEBODYS_COMPILED", "1")
    with pytest.raises(FrameworkNotSupported, match="exchange of functions is not built .* run: python -m unamp_somebodys"):
        part.module()
    part.place().parent.mkdir(parents=True)
    part.place().write_bytes(b"\x7fELF and nothing more")
    with pytest.raises(ImportError, match=r"run python -m unamp_somebodys again, or delete .*unamp_exchanging"):
        part.module()
    monkeypatch.setenv("UNAMP_SOMEBODYS_COMPILED", "0")
    assert part.module() is None
    assert not part.can_be_built()


def test_without_a_compiler_or_headers_nothing_is_built(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = exchanging.part("somebodys")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not part.can_be_built()
    if CAN_BUILD:
        with pytest.raises(OSError, match="no-such-compiler"):
            part.compile_extension()
    monkeypatch.delenv("CC")
    monkeypatch.setattr(building, "_header", lambda: tmp_path / "Python.h")
    assert not part.can_be_built()
    with pytest.raises(FileNotFoundError, match="needs its headers"):
        part.compile_extension()
    assert not part.place().exists()


@needs_compiler
def test_what_a_wheel_brings_is_used_until_the_user_builds_another(cache: Path, tmp_path: Path) -> None:
    part = in_a_wheel(tmp_path)
    assert part.module() is None
    part.compile_extension("-DPy_LIMITED_API=0x030b0000", target=part.in_wheel)
    assert not part.can_be_built()
    assert part.module().__file__ == str(tmp_path / "unamp_exchanging.abi3.so")
    part.compile_extension()
    assert part.module().__file__ == str(part.place())


def test_what_a_wheel_brings_and_does_not_load_is_left_alone_unless_it_must_be_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = in_a_wheel(tmp_path)
    assert part.in_wheel is not None
    part.in_wheel.write_bytes(b"\x7fELF and nothing more")
    monkeypatch.setenv("UNAMP_SOMEBODYS_COMPILED", "1")
    with pytest.raises(ImportError, match=r"run python -m unamp_somebodys again, or delete .*abi3"):
        part.module()
    monkeypatch.delenv("UNAMP_SOMEBODYS_COMPILED")
    assert part.module() is None
    assert part.refusal is not None
    assert "unamp_exchanging.abi3.so" in part.refusal
    assert part.can_be_built() is CAN_BUILD


def test_a_python_without_the_gil_takes_nothing_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.machinery.EXTENSION_SUFFIXES", [".cpython-313t-x86_64-linux-gnu.so", ".so"])
    assert in_a_wheel(tmp_path).in_wheel is None
