"""The sdist, the pure wheel and the wheel for this platform, in dist/: ``make dist``.

The pure wheel works everywhere. The wheel for the platform has the same files and PyTorch's
kernels, for each Python and minor version of PyTorch that they are built with here: those of the
running interpreter, and of the interpreters that ``--python`` names, in environments with torch,
ninja and setuptools.

Pip takes the wheel for the platform where it fits: its tag names the oldest glibc that has the
functions that the kernels use. The contents and the sizes of the wheels are checked.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

#: The most bytes of one library of kernels: half as many again as it has.
LARGEST = 450_000

#: The most bytes of a wheel without kernels.
LARGEST_PURE = 2_000_000

_KERNELS = """
import sys
from pathlib import Path
from unamp_torch import compiled
place = compiled.place_in_wheel()
if place is None:
    sys.exit("this PyTorch is no release, or has another C++ ABI: its kernels are no good \
to others")
compiled.build(target=Path(sys.argv[1], "unamp_torch/compiled", *place.parts[-2:]))
"""


class Wheels(NamedTuple):
    """The wheel without kernels, the wheel with kernels, and its libraries' sizes by path."""

    pure: Path
    platform: Path
    kernels: Mapping[str, int]


def build(out: Path, interpreters: Sequence[str]) -> Wheels:
    """Build everything into a folder, remove older wheels from it, and check the results.

    Args:
        out: the folder.
        interpreters: the interpreters for whose PyTorch kernels are built.

    Raises:
        ValueError: where a wheel is not as it should be.
        subprocess.CalledProcessError: where a compiler or the build failed; the terminal shows why.
    """
    pure = build_pure(out)
    with tempfile.TemporaryDirectory(prefix="unamp-kernels-") as folder:
        for interpreter in interpreters:
            _run(interpreter, "-c", _KERNELS, folder, UNAMP_TORCH_COMPILED="0")
        return build_for_platform(pure, Path(folder))


def build_for_platform(pure: Path, folder: Path) -> Wheels:
    """Build the wheel for this platform, with the libraries of a folder, and check both wheels.

    It is built beside the pure wheel.

    Args:
        pure: the pure wheel.
        folder: the folder of the libraries, at their paths in a wheel.

    Raises:
        ValueError: where one of the wheels is not as it should be.
        subprocess.CalledProcessError: where the build failed.
    """
    out, libraries = pure.parent, sorted(folder.rglob("*.so"))
    # A library's name contains the Python that it is for.
    hook = {
        "UNAMP_COMPILED_PARTS": str(folder),
        "UNAMP_WHEEL_TAG": f"py3-none-{platform_tag(libraries)}",
    }
    _run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(out),
        str(ROOT),
        **hook,
    )
    (compiled,) = set(out.glob("unamp-*.whl")) - {pure}
    wheels = Wheels(
        pure, compiled, {str(path.relative_to(folder)): path.stat().st_size for path in libraries}
    )
    check(wheels)
    return wheels


def build_pure(out: Path) -> Path:
    """Build the sdist, and from it the pure wheel, into a folder; return the wheel.

    Older ones are removed from the folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("unamp-*.whl"), *out.glob("unamp-*.tar.gz")):
        old.unlink()
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    (pure,) = out.glob("unamp-*.whl")
    return pure


def platform_tag(libraries: Iterable[Path]) -> str:
    """Return the platform's part of a wheel's tag.

    On Linux it names the oldest glibc that has all functions that the libraries use.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return re.sub(r"[-.]", "_", sysconfig.get_platform())
    used = (
        number
        for path in libraries
        for number in re.findall(rb"\0GLIBC_2\.(\d+)", path.read_bytes())
    )
    return f"manylinux_2_{max(17, *map(int, used))}_{platform.machine()}"


def check(wheels: Wheels) -> None:
    """Check the contents of the wheels, and their sizes.

    Raises:
        ValueError: where something is not as it should be; the message names it.
    """
    if (size := wheels.pure.stat().st_size) > LARGEST_PURE:
        raise ValueError(
            f"{wheels.pure.name} has {size} bytes, more than {LARGEST_PURE}: what has come into it?"
        )
    with zipfile.ZipFile(wheels.pure) as pure, zipfile.ZipFile(wheels.platform) as compiled:
        ours, theirs = _contents(pure), _contents(compiled)
        if libraries := [name for name in ours if name.endswith((".so", ".pyd", ".dylib"))]:
            raise ValueError(f"{wheels.pure.name} is for every platform, but has {libraries[0]}")
        if (more := theirs.keys() - ours.keys()) != wheels.kernels.keys():
            raise ValueError(
                f"{wheels.platform.name} has {sorted(more)} beside the pure wheel's files, not "
                f"{sorted(wheels.kernels)}"
            )
        if different := [name for name, number in ours.items() if theirs.get(name) != number]:
            raise ValueError(
                f"{wheels.platform.name} has another {different[0]} than the pure wheel"
            )
        for name, size in wheels.kernels.items():
            if size > LARGEST:
                raise ValueError(f"{name} has {size} bytes, more than {LARGEST}: is it stripped?")
            held = compiled.read(name)
            if wrong := [
                text for text in ("libpython", str(ROOT), sys.prefix) if text.encode() in held
            ]:
                raise ValueError(f"{name} names {wrong[0]}, which is on this machine alone")


def _contents(wheel: zipfile.ZipFile) -> dict[str, int]:
    """Return the checksums of the files in a wheel, without the files that describe the wheel."""
    about = (".dist-info/WHEEL", "/RECORD", "/unamp.cdx.json")
    return {
        file.filename: file.CRC for file in wheel.infolist() if not file.filename.endswith(about)
    }


def with_torch(interpreters: Sequence[str]) -> list[str]:
    """Return the interpreters that kernels are built for.

    They are the given ones, and the running one if it has PyTorch.
    """
    seek = [sys.executable, "-c", "import torch, ninja, setuptools"]
    here = subprocess.run(seek, capture_output=True, check=False).returncode == 0
    if not here:
        print("without kernels for this Python: torch, ninja or setuptools is not installed")
    return [*([sys.executable] if here else []), *interpreters]


def main(arguments: Sequence[str]) -> int:
    """Build everything, and print the results."""
    parser = argparse.ArgumentParser(
        description="Build the sdist, the pure wheel and the wheel for this platform."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist",
        metavar="FOLDER",
        help="where to; dist/ where none is named",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an environment with a torch; repeat for more",
    )
    options = parser.parse_args(arguments)
    interpreters = with_torch(options.python)
    if not interpreters or shutil.which("c++") is None:
        sys.exit(
            "a wheel with kernels needs a C++ compiler (c++) and an environment with torch, ninja "
            "and setuptools: this one, or one named with --python; for the pure wheel: "
            "python -m build"
        )
    wheels = build(options.out, interpreters)
    for path in sorted(options.out.glob("unamp-*")):
        print(f"{path.stat().st_size:>9,} {path.name}")
    for name, size in sorted(wheels.kernels.items()):
        print(f"{size:>9,}   {name}")
    return 0


def _run(*command: str, **variables: str) -> None:
    """Run a command with the checkout's packages; show its output where it fails."""
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "adapters", "conformance"))
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(
        command,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    done.check_returncode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
