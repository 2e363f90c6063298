"""The build hook that puts compiled parts into a wheel for this platform; `dist.py` compiles them, and enables the hook."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledParts(BuildHookInterface[Any]):
    """Adds the files under the folder UNAMP_COMPILED_PARTS, where they stand, and gives the wheel the tag UNAMP_WHEEL_TAG."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if "UNAMP_COMPILED_PARTS" not in os.environ:
            raise ValueError("compiled parts are put into a wheel by release/dist.py, which compiles them: make dist")
        folder = Path(os.environ["UNAMP_COMPILED_PARTS"])
        build_data["pure_python"] = False
        build_data["tag"] = os.environ["UNAMP_WHEEL_TAG"]
        for path in sorted(folder.rglob("*.so")):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
