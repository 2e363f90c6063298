"""The sdist, the pure wheel and the wheel for this platform, in dist/: ``make dist``.

The pure wheel works everywhere. The other one has the same files, and compiled parts besides:

- the loops in C that Paddle's and MindSpore's adapters use, one file for every Python, against Python's stable ABI;
- PyTorch's kernels, for each Python and minor version of PyTorch that they are built with here: those of the interpreter that
  runs this, and of those named with ``--python``, environments that have torch, ninja and setuptools.

Pip takes the wheel for the platform where it fits: it is tagged with the oldest glibc that has what the parts use. What is in
the wheels and how large it is, is checked; an error where it is not as it should be.
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

#: The oldest Python that is supported, whose stable ABI the loops in C keep to.
OLDEST = (3, 11)

#: The bytes that a part may have, by the name of its module: half as many again as it has.
LARGEST = {"unamp_exchanging": 24_000, "unamp_torch_kernels": 450_000}

#: The bytes that a wheel may have without compiled parts.
LARGEST_PURE = 2_000_000

_LOOPS = """
import sys
from pathlib import Path
from unamp.adapter import exchanging
part = exchanging.part("paddle")
part.compile_extension("-s", f"-DPy_LIMITED_API={sys.argv[2]}", target=Path(sys.argv[1], "unamp/adapter", part.in_wheel.name))
"""

_KERNELS = """
import sys
from pathlib import Path
from unamp_torch import compiled
place = compiled.place_in_wheel()
if place is None:
    sys.exit("this PyTorch is no release, or has another C++ ABI: its kernels are no good to others")
compiled.build(target=Path(sys.argv[1], "unamp_torch/compiled", *place.parts[-2:]))
"""


class Wheels(NamedTuple):
    """The wheel without compiled parts, the one with them, and the sizes of those parts by their paths in it."""

    pure: Path
    platform: Path
    parts: Mapping[str, int]


def build(out: Path, interpreters: Sequence[str]) -> Wheels:
    """Build everything into a folder, which is emptied of older wheels, and check it.

    Args:
        out: the folder.
        interpreters: those for whose PyTorch kernels are built.

    Raises:
        ValueError: what was built is not as it should be.
        subprocess.CalledProcessError: a compiler or the build failed; what it has to say is on the terminal.
    """
    pure = build_pure(out)
    with tempfile.TemporaryDirectory(prefix="unamp-parts-") as folder:
        parts = compile_parts(Path(folder), interpreters)
        hook = {
            "UNAMP_COMPILED_PARTS": folder,
            "UNAMP_WHEEL_TAG": f"cp{OLDEST[0]}{OLDEST[1]}-abi3-{platform_tag(parts)}",
        }
        _run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(ROOT), **hook)
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in parts}
    (compiled,) = set(out.glob("unamp-*.whl")) - {pure}
    wheels = Wheels(pure, compiled, sizes)
    check(wheels)
    return wheels


def build_pure(out: Path) -> Path:
    """Build the sdist, and from it the pure wheel, into a folder, which is emptied of older ones; return the wheel."""
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("unamp-*.whl"), *out.glob("unamp-*.tar.gz")):
        old.unlink()
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    (pure,) = out.glob("unamp-*.whl")
    return pure


def compile_parts(folder: Path, interpreters: Iterable[str]) -> list[Path]:
    """Compile all parts into a folder, at their paths in a wheel, and return the files."""
    _run(sys.executable, "-c", _LOOPS, str(folder), f"0x{OLDEST[0]:02x}{OLDEST[1]:02x}0000")
    for interpreter in interpreters:
        _run(interpreter, "-c", _KERNELS, str(folder), UNAMP_TORCH_COMPILED="0")
    return sorted(folder.rglob("*.so"))


def platform_tag(parts: Iterable[Path]) -> str:
    """Return the platform's part of a wheel's tag: on Linux with the oldest glibc that has all that some libraries use."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return re.sub(r"[-.]", "_", sysconfig.get_platform())
    used = (number for path in parts for number in re.findall(rb"\0GLIBC_2\.(\d+)", path.read_bytes()))
    return f"manylinux_2_{max(17, *map(int, used))}_{platform.machine()}"


def check(wheels: Wheels) -> None:
    """Check what is in the wheels, and how large it is.

    Raises:
        ValueError: something is not as it should be; the message says what.
    """
    if (size := wheels.pure.stat().st_size) > LARGEST_PURE:
        raise ValueError(f"{wheels.pure.name} has {size} bytes, more than {LARGEST_PURE}: what has come into it?")
    with zipfile.ZipFile(wheels.pure) as pure, zipfile.ZipFile(wheels.platform) as compiled:
        ours, theirs = _contents(pure), _contents(compiled)
        if libraries := [name for name in ours if name.endswith((".so", ".pyd", ".dylib"))]:
            raise ValueError(f"{wheels.pure.name} is for every platform, but has {libraries[0]}")
        if (more := theirs.keys() - ours.keys()) != wheels.parts.keys():
            raise ValueError(
                f"{wheels.platform.name} has {sorted(more)} beside the pure wheel's files, not {sorted(wheels.parts)}"
            )
        if different := [name for name, number in ours.items() if theirs.get(name) != number]:
            raise ValueError(f"{wheels.platform.name} has another {different[0]} than the pure wheel")
        for name, size in wheels.parts.items():
            largest = LARGEST[Path(name).name.partition(".")[0]]
            if size > largest:
                raise ValueError(f"{name} has {size} bytes, more than {largest}: is it stripped?")
            held = compiled.read(name)
            if wrong := [text for text in ("libpython", str(ROOT), sys.prefix) if text.encode() in held]:
                raise ValueError(f"{name} names {wrong[0]}, which is on this machine alone")


def _contents(wheel: zipfile.ZipFile) -> dict[str, int]:
    """Return the checksums of the files in a wheel, without those that say what the wheel is."""
    about = (".dist-info/WHEEL", "/RECORD", "/unamp.cdx.json")
    return {file.filename: file.CRC for file in wheel.infolist() if not file.filename.endswith(about)}


def with_torch(interpreters: Sequence[str]) -> list[str]:
    """Return the interpreters that kernels are built for: those given, and the one that runs this where it has PyTorch."""
    seek = [sys.executable, "-c", "import torch, ninja, setuptools"]
    here = subprocess.run(seek, capture_output=True, check=False).returncode == 0
    if not here:
        print("without kernels for this Python: torch, ninja or setuptools is not installed")
    return [*([sys.executable] if here else []), *interpreters]


def main(arguments: Sequence[str]) -> int:
    """Build everything, and say what was built."""
    parser = argparse.ArgumentParser(description="Build the sdist, the pure wheel and the wheel for this platform.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER", help="where to; dist/ where none is named")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PATH", help="an environment with a torch; repeat for more"
    )
    options = parser.parse_args(arguments)
    if shutil.which("cc") is None or shutil.which("c++") is None:
        sys.exit("a wheel with compiled parts needs a C and a C++ compiler (cc, c++); for the pure one: python -m build")
    wheels = build(options.out, with_torch(options.python))
    for path in sorted(options.out.glob("unamp-*")):
        print(f"{path.stat().st_size:>9,} {path.name}")
    for name, size in sorted(wheels.parts.items()):
        print(f"{size:>9,}   {name}")
    return 0


def _run(*command: str, **variables: str) -> None:
    """Run a command with the checkout's packages; what it prints is shown where it fails."""
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "adapters", "conformance"))
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    done.check_returncode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
