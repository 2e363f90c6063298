"""In an environment with an emulated processor, every program that it starts is emulated.

Environments that cannot be emulated are not run.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CONFORMANCE = Path(__file__).parents[2] / "conformance"

#: A stand-in for qemu: it logs its arguments, warns as qemu does, and runs the program.
EMULATOR = """#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "qemu-x86_64 version {version}.0.2 (Debian)"; exit; fi
echo "$0 $*" >> {log}
if [ "$2" = Slow ]; then echo "qemu: warning: TCG doesn't support requested feature: CPUID.01H:ECX.pcid [bit 17]" >&2; fi
name=python3
while [ $# -gt 0 ]; do
  case "$1" in
    -cpu|-L) shift 2 ;;
    -0) name="$2"; shift 2 ;;
    *) break ;;
  esac
done
exec -a "$name" "$@"
"""  # noqa: E501


@pytest.fixture(scope="module")
def emulation():
    sys.path.insert(0, str(CONFORMANCE))  # a script finds the modules beside it
    spec = importlib.util.spec_from_file_location(
        "conformance_emulation", CONFORMANCE / "emulation.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def version():
    """Return the major version of the emulator."""
    return 10


@pytest.fixture
def slow(emulation, tmp_path, monkeypatch, version):
    """Return an emulated processor; the stand-in for qemu is on the path, its log in the folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "qemu-x86_64").write_text(EMULATOR.format(log=tmp_path / "log", version=version))
    (folder / "qemu-x86_64").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(emulation, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(emulation.platform, "system", lambda: "Linux")
    monkeypatch.setattr(emulation.platform, "machine", lambda: "x86_64")
    emulation._environment.cache_clear()
    yield emulation.Emulated("x86_64", "Slow", ("sse4_1", "avx2"), {}, {})
    emulation._environment.cache_clear()


ASKED = """
import subprocess, sys, numpy
print(sys.executable, numpy.__file__)
sys.stdout.flush()
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "again"], check=True)
"""


def test_what_an_emulated_python_starts_is_emulated_and_has_the_same_packages(
    emulation, slow, tmp_path
):
    import numpy

    python = emulation.environment(slow)
    (tmp_path / "asked.py").write_text(ASKED)
    before = len((tmp_path / "log").read_text().splitlines())
    said = subprocess.run(
        [python, tmp_path / "asked.py"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split()[0] for line in said] == [str(python)] * 2
    assert {Path(line.split()[1]).resolve() for line in said} == {Path(numpy.__file__).resolve()}
    calls = (tmp_path / "log").read_text().splitlines()[before:]
    assert len(calls) == 2
    assert all(
        f"-cpu Slow,pcid=off -L {python.parents[1] / 'system'} -0 {python} " in call
        for call in calls
    )


def test_programs_are_shown_the_emulated_processor(emulation, slow):
    told = (emulation.environment(slow).parents[1] / "system/proc/cpuinfo").read_text()
    assert "model name\t: Slow, emulated by qemu\nflags\t\t: sse4_1 avx2\n" in told


def test_without_an_emulator_it_says_how_to_get_one(emulation, slow, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        emulation.NotHere,
        match=r"qemu-x86_64 10 or newer is missing \(on Debian in the package qemu-user",
    ):
        emulation.environment(slow)


@pytest.mark.parametrize("version", [7])
def test_an_emulator_that_computes_wrong_is_not_used(emulation, slow, monkeypatch):
    which = emulation.shutil.which
    monkeypatch.setattr(
        emulation.shutil, "which", lambda name: None if name == "apt-get" else which(name)
    )
    with pytest.raises(emulation.NotHere, match="qemu-x86_64 10 or newer is missing"):
        emulation.environment(slow)


def test_a_compiler_is_asked_for_the_emulated_processor(emulation, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/g++").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "bin/g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    compiler = emulation._compilers(tmp_path) / "g++"
    said = subprocess.run(
        [compiler, "-O3", "-march=native", "a file.cpp"], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["-O3", "-march=x86-64-v3", "a file.cpp"]


def test_elsewhere_nothing_is_emulated(emulation, slow, monkeypatch):
    monkeypatch.setattr(emulation.platform, "machine", lambda: "arm64")
    with pytest.raises(
        emulation.NotHere,
        match="processors are emulated on Linux on x86_64, and this is Linux arm64",
    ):
        emulation.environment(slow)
