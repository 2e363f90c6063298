"""Python environments on a processor that qemu emulates.

The settings of ``machines.toml`` that name a processor use them. The ``bin/python`` of such an
environment starts Python in the emulator and names itself as the program: a process that starts
``sys.executable`` again starts it in the emulator, too. An environment for another model of this
machine's architecture shares the packages of the running environment. One for Arm has Debian's
Python and the frameworks' own wheels, unpacked into folders.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

from machine_settings import Emulated
from rows import ROOT

__all__ = ["NotHere", "environment"]

ENVIRONMENTS = ROOT / ".venv-emulated"

#: The oldest version of the emulator. Version 7.2 computes wrong float16 products, and may die.
_OLDEST = 10

_PYTHON = f"python3.{sys.version_info[1]}"
_LIBRARIES = ("libstdc++6", "libgomp1", "libgcc-s1", "zlib1g")

#: The packages that the suite and the tests need on Arm. Newer wheels of PyTorch for Arm need
#: CUDA's libraries; Paddle offers none.
_WHEELS = (
    "torch==2.10.0",
    "tensorflow",
    "mindspore",
    "jax",
    "flax",
    "optax",
    "equinox",
    "dm-haiku",
    "numpyro",
    "diffrax",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "onnxconverter-common",
    "safetensors",
    "numpy",
    "typer",
    "rich",
    "jinja2",
    "tomlkit",
    "pytest",
    "hypothesis",
    "ml_dtypes",
    "libcst",
    "expecttest",
)
_TAGS = (
    "manylinux_2_28_aarch64",
    "manylinux_2_27_aarch64",
    "manylinux_2_17_aarch64",
    "manylinux2014_aarch64",
    "any",
)

#: A pip that evaluates requirements for a machine with Arm.
_PIP_FOR_ARM = (
    "import platform, runpy, sys; platform.machine = lambda: 'aarch64'; sys.argv[0] = 'pip'; "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


#: A compiler that compiles for AVX2 where it is told to compile for its own processor.
_COMPILER = """#!/bin/sh
for word do
  shift
  case "$word" in -march=native|-mtune=native) word=-march=x86-64-v3 ;; esac
  set -- "$@" "$word"
done
exec {compiler} "$@"
"""


class NotHere(Exception):
    """A processor cannot be emulated here; the message says what is missing and how to get it."""


def environment(emulated: Emulated) -> Path:
    """Return the Python of an environment with an emulated processor; make the environment first.

    Raises:
        NotHere: where the environment cannot be made.
    """
    return _environment(emulated.architecture, emulated.model, emulated.has)


@cache
def _environment(architecture: str, model: str, has: tuple[str, ...]) -> Path:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise NotHere(
            f"processors are emulated on Linux on x86_64, and this is {platform.system()} "
            f"{platform.machine()}"
        )
    emulator, home = _emulator(architecture), ENVIRONMENTS / f"{architecture}-{model}"
    system = home / "system"
    _write_cpuinfo(system / "proc/cpuinfo", architecture, model, has)
    if architecture == "x86_64":
        real, packages = Path(sys.executable).resolve(), Path(sysconfig.get_path("purelib"))
        path = f'{shlex.quote(str(_compilers(home)))}:"$PATH"'
    else:  # the machine's own compilers do not compile for Arm
        real, packages = _arm_python(system), home / "packages"
        path = shlex.quote(str(home / "bin"))
        if not packages.exists():
            _install_wheels(packages)
    return _written(home, real, packages, f"PATH={path} {_command(emulator, model, system, real)}")


def _compilers(home: Path) -> Path:
    """Return a folder of compilers that compile for the emulated processor.

    They run on the real processor, and would otherwise compile for it.
    """
    folder = home / "compilers"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cc", "c++", "gcc", "g++", "clang", "clang++"):
        if found := shutil.which(name):
            (folder / name).write_text(_COMPILER.format(compiler=shlex.quote(found)), "utf-8")
            (folder / name).chmod(0o755)
    return folder


def _written(home: Path, real: Path, packages: Path, command: str) -> Path:
    """Write the files of a virtual environment that starts Python by a command."""
    site = home / f"lib/{_PYTHON}/site-packages"
    site.parent.mkdir(parents=True, exist_ok=True)
    site.unlink(missing_ok=True)
    site.symlink_to(packages)
    (home / "pyvenv.cfg").write_text(
        f"home = {real.parent}\ninclude-system-site-packages = false\n", "utf-8"
    )
    python = home / "bin/python"
    python.parent.mkdir(exist_ok=True)
    # PyTorch keeps code that is compiled for one processor: another one needs its own folder.
    kept = f"export TORCHINDUCTOR_CACHE_DIR={shlex.quote(str(home / 'inductor'))}"
    python.write_text(f'#!/bin/sh\n{kept}\n{command} "$@"\n', "utf-8")
    python.chmod(0o755)
    return python


def _command(emulator: str, model: str, system: Path, real: Path) -> str:
    """Return the shell command that runs an emulated Python.

    The emulator finds the files of `system` instead of the machine's own.
    """
    words = (
        "exec",
        emulator,
        "-cpu",
        _without_warnings(emulator, model, system, real),
        "-L",
        str(system),
        "-0",
    )
    return f'{shlex.join(words)} "$0" {shlex.quote(str(real))}'


def _without_warnings(emulator: str, model: str, system: Path, real: Path) -> str:
    """Return a model without the features that the emulator lacks.

    It would warn of them at every start.
    """
    tried = subprocess.run(
        [emulator, "-cpu", model, "-L", system, real, "-c", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    return ",".join(
        (
            model,
            *(
                f"{feature}=off"
                for feature in re.findall(r"feature: \S+\.(\S+) \[bit", tried.stderr)
            ),
        )
    )


def _write_cpuinfo(path: Path, architecture: str, model: str, has: Sequence[str]) -> None:
    """Write the emulated processor's instruction sets to the file that programs read.

    The emulator would show the real processor's.
    """
    name = f"{model}, emulated by qemu"
    lines = [f"model name\t: {name}", f"flags\t\t: {' '.join(has)}"]
    if architecture == "aarch64":  # programs for Arm read these, too; the numbers are a Neoverse's
        lines = [f"model name\t: {name}", f"Features\t: {' '.join(has)}", "CPU implementer\t: 0x41"]
        lines += [
            "CPU architecture: 8",
            "CPU variant\t: 0x1",
            "CPU part\t: 0xd40",
            "CPU revision\t: 1",
        ]
    cores = ("\n".join((f"processor\t: {number}", *lines)) for number in range(os.cpu_count() or 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(cores) + "\n", "utf-8")


# --- installation ---------------------------------------------------------------------------------


def _emulator(architecture: str) -> str:
    """Return the path of the emulator.

    It is the machine's own if that is new enough, else Debian's newest, unpacked into a folder.
    """
    name = f"qemu-{architecture}"
    unpacked = ENVIRONMENTS / "emulator"
    newest = str(unpacked / "usr/bin" / name)
    for found in (newest, shutil.which(name)):
        if _is_new_enough(found):
            return str(found)
    advice = (
        f"{name} {_OLDEST} or newer is missing (on Debian in the package qemu-user, "
        "or in that of the backports)"
    )
    try:
        _unpack(unpacked, "amd64", ("qemu-user",), newer=True)
    except NotHere as missing:
        raise NotHere(f"{advice}: {missing}") from None
    if not _is_new_enough(newest):
        raise NotHere(advice)
    return newest


def _is_new_enough(emulator: str | None) -> bool:
    if emulator is None or not Path(emulator).exists():
        return False
    said = subprocess.run(
        [emulator, "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"version (\d+)", said)
    return found is not None and int(found[1]) >= _OLDEST


def _arm_python(system: Path) -> Path:
    """Return Debian's Python for Arm, unpacked with the libraries that wheels need."""
    python = system / f"usr/bin/{_PYTHON}"
    if not python.exists():
        _unpack(system, "arm64", (_PYTHON, *_LIBRARIES))
    return python


def _unpack(
    folder: Path, architecture: str, packages: Sequence[str], *, newer: bool = False
) -> None:
    """Unpack Debian's packages, and the packages that they require, into a folder.

    The machine's own installation is not changed.

    Args:
        folder: the folder.
        architecture: the architecture of the packages, by Debian's name.
        packages: the names of the packages.
        newer: take packages from the backports if the machine's Debian has some.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NotHere(
            f"Debian's packages {' '.join(packages)} are unpacked with apt-get and dpkg, "
            "which are not here"
        )
    work = folder.with_name(f"{folder.name}-{architecture}-packages")
    for inner in ("lists/partial", "cache/archives/partial"):
        (work / inner).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    sources = _debian_sources(architecture)
    backports = sorted(
        {
            line.replace(suite, f"{suite}-backports")
            for line, suite in sources.items()
            if "-" not in suite
        }
    )
    (work / "sources.list").write_text("".join([*sources, *(backports if newer else ())]), "utf-8")
    named = {
        "Dir::Etc::sourcelist": work / "sources.list", "Dir::Etc::sourceparts": "-",
        "APT::Architecture": architecture, "APT::Architectures": architecture,
        "Dir::State::Lists": work / "lists", "Dir::Cache": work / "cache",
        "Dir::State::status": work / "status",
    }  # fmt: skip
    apt = (
        "apt-get",
        "-qq",
        *(word for name, value in named.items() for word in ("-o", f"{name}={value}")),
    )
    with suppress(NotHere) if newer else nullcontext():
        # a Debian without backports has new enough packages itself
        _run((*apt, "update"))
    suites = [line.split()[-2] for line in backports] if newer else []
    chosen = ("--target-release", suites[0]) if suites else ()
    _run(
        (*apt, "--yes", "--download-only", "--no-install-recommends", *chosen, "install", *packages)
    )
    for package in sorted((work / "cache/archives").glob("*.deb")):
        _run(("dpkg", "-x", str(package), str(folder)))


def _debian_sources(architecture: str) -> dict[str, str]:
    """Return the machine's own sources of Debian's main packages as lines, each with its suite."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    asked = (
        "apt-get",
        "indextargets",
        "--format",
        form,
        "Created-By: Packages",
        "Origin: Debian",
        "Component: main",
    )
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    if not found:
        raise NotHere("apt-get knows no source of Debian's packages; try apt-get update")
    return {f"deb [arch={architecture}] {line}\n": line.split()[1] for line in sorted(set(found))}


def _install_wheels(packages: Path) -> None:
    """Unpack the frameworks' wheels for Arm, and the wheels that they require, into a folder."""
    held = [
        line
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if not line.startswith("torch==")
    ]
    packages.parent.mkdir(parents=True, exist_ok=True)
    constraints = packages.with_name("constraints.txt")
    constraints.write_text(
        "\n".join(held).replace("tensorflow-cpu==", "tensorflow==") + "\n", "utf-8"
    )
    unfinished = packages.with_name("packages-unfinished")
    tags = [word for tag in _TAGS for word in ("--platform", tag)]
    where = (
        "--target",
        str(unfinished),
        "--python-version",
        f"3.{sys.version_info[1]}",
        "--implementation",
        "cp",
        *tags,
    )
    command = (
        sys.executable,
        "-c",
        _PIP_FOR_ARM,
        "install",
        "-q",
        "--ignore-installed",
        "--no-compile",
    )
    _run((*command, "--only-binary=:all:", *where, "--constraint", str(constraints), *_WHEELS))
    unfinished.rename(packages)


def _run(command: Sequence[str]) -> None:
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise NotHere(f"{shlex.join(command[:3])} …: exit status {done.returncode}: {last}")
