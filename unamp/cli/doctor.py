"""Find out what the installed frameworks can do on this machine, and what they compute with.

Each is imported in a process of its own: some pairs of frameworks fail in one process, depending on their order.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from unamp.adapter import DEVICES, MayBeFaster, NamesDevices, machine
from unamp.adapter.registry import adapter_for, installed
from unamp.dtypes import LOW_DTYPES

__all__ = ["examine", "examine_all"]


def examine_all() -> dict[str, Any]:
    """Return the instruction sets, the environment variables that matter, and of every adapter the report of `examine`."""
    return {
        "processor": machine.processor(),
        "instruction sets": [name for name, there in machine.instruction_sets().items() if there],
        "variables": machine.variables(),
        "frameworks": [_in_own_process(framework) for framework in sorted(installed())],
    }


def examine(framework: str) -> dict[str, Any]:
    """Return the report on one framework, imported here: its version, how each device computes in each dtype, and with what."""
    importlib.import_module(framework)
    adapter = adapter_for(framework)
    present = adapter.devices()
    return {
        "framework": framework,
        "status": "ready",
        "version": adapter.version(),
        "requires": adapter.requires,
        "devices": {
            device: {dtype: adapter.support(device, dtype).value for dtype in LOW_DTYPES} if device in present else None
            for device in DEVICES
        },
        "device names": dict(adapter.device_names()) if isinstance(adapter, NamesDevices) else {},
        "runtime": dict(adapter.runtime()),
        "faster": adapter.faster() if isinstance(adapter, MayBeFaster) else None,
        "gaps": [gap._asdict() for gap in adapter.gaps()],
    }


def _in_own_process(framework: str) -> dict[str, Any]:
    if find_spec(framework) is None:
        return {"framework": framework, "status": "not installed", "advice": f"pip install 'unamp[{framework}]'"}
    ran = subprocess.run([sys.executable, "-m", __name__, framework], capture_output=True, text=True, check=False)
    if ran.returncode:
        said = ran.stderr.strip().rpartition("\n")[2] or f"importing it ended the process with status {ran.returncode}"
        return {"framework": framework, "status": "not usable", "advice": said}
    # Frameworks greet on standard output; the report is the last line.
    last = ran.stdout.strip().rpartition("\n")[2]
    if not last.startswith('{"framework"'):
        return {"framework": framework, "status": "not usable", "advice": "importing it ended the process with status 0"}
    report: dict[str, Any] = json.loads(last)
    return report


if __name__ == "__main__":
    print(json.dumps(examine(sys.argv[1])))
