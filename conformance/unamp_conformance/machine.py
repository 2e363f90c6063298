"""The machine that a run is made on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

from unamp.adapter.machine import instruction_sets, processor

__all__ = ["cores", "gpus", "host"]


def host() -> dict[str, str]:
    """Return the facts of the machine, for the report."""
    found = {
        "python": platform.python_version(),
        "system": _system(),
        "machine": platform.machine(),
        "processor": processor(),
        "instruction sets": " ".join(name for name, there in instruction_sets().items() if there)
        or "not told",
        "cores": str(cores()),
    }
    return found | ({"gpu": found_gpus} if (found_gpus := gpus()) else {})


def cores() -> int:
    """Return the number of cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has affinity
        return os.cpu_count() or 1


def _system() -> str:
    """Return the operating system, with its C library where that is told.

    Numbers depend on the library, which has exp and log, and not on the kernel.
    """
    library = " ".join(platform.libc_ver())
    return (
        f"{platform.system()}, {library}"
        if library.strip()
        else f"{platform.system()} {platform.release()}"
    )


def gpus() -> str:
    """Return names and driver of NVIDIA's GPUs, or an empty text where their tool gives none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        command = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        said = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return "; ".join(line.strip() for line in said.splitlines())
