"""Additions to a wheel during its build: a bill of materials, in CycloneDX's JSON, and kernels.

The bill goes to the folder that PEP 770 names. It lists each file of the wheel with its SHA-256,
and each package that an extra requires. It has no time and no serial number: the same source gives
the same wheel. A wheel for this platform also gets PyTorch's kernels, which `dist.py` compiles.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_FILE = "unamp.cdx.json"


class BillOfMaterials(BuildHookInterface[Any]):
    """Writes the bill of materials before the wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the bill to the wheel; not to an editable install, whose files are the checkout's."""
        if version == "editable":
            return
        if "UNAMP_COMPILED_PARTS" in os.environ:
            folder = Path(os.environ["UNAMP_COMPILED_PARTS"])
            build_data["pure_python"] = False
            build_data["tag"] = os.environ["UNAMP_WHEEL_TAG"]
            parts = {
                str(path): str(path.relative_to(folder)) for path in sorted(folder.rglob("*.so"))
            }
            build_data["force_include"].update(parts)
        builder, core = self.build_config.builder, self.metadata.core
        with builder.config.set_build_data(build_data):
            # the bill also lists the files that other hooks add
            files = {
                file.distribution_path: Path(file.path) for file in builder.recurse_included_files()
            }
        itself = _package(core.name, version=self.metadata.version, description=core.description)
        itself["licenses"] = [{"expression": core.license_expression}]
        packages = list(_packages(core.name, {"": core.dependencies, **core.optional_dependencies}))
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / _FILE
        path.write_text(json.dumps(bill(itself, files, packages), indent=1) + "\n", "utf-8")
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy outside the wheel."""
        if version != "editable":
            self._folder.cleanup()


def bill(
    itself: Mapping[str, Any], files: Mapping[str, Path], packages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the bill: the wheel's description, its files, and the packages that it can use."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": itself},
        "components": [*(_file(name, path) for name, path in sorted(files.items())), *packages],
        "dependencies": [
            {"ref": itself["bom-ref"], "dependsOn": [each["bom-ref"] for each in packages]}
        ],
    }


def _file(name: str, path: Path) -> dict[str, Any]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "type": "file",
        "bom-ref": f"file:{name}",
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def _packages(itself: str, extras: Mapping[str, Iterable[str]]) -> Iterator[dict[str, Any]]:
    """Yield each package once, with the requirements that name it.

    The extra ``""`` is for packages that are always installed.
    """
    asked: dict[str, dict[str, list[str]]] = {}
    for extra, requirements in extras.items():
        for requirement in requirements:
            name = canonicalize_name(Requirement(requirement).name)
            if name != canonicalize_name(itself):
                asked.setdefault(name, {}).setdefault(str(requirement), []).append(extra)
    for package, requirements in sorted(asked.items()):
        always = any("" in extras for extras in requirements.values())
        properties = [
            {
                "name": f"python:requirement:{extra}" if extra else "python:requirement",
                "value": requirement,
            }
            for requirement, extras in requirements.items()
            for extra in extras
        ]
        yield {
            **_package(package),
            "scope": "required" if always else "optional",
            "properties": properties,
        }


def _package(
    name: str, version: str | None = None, description: str | None = None
) -> dict[str, Any]:
    purl = f"pkg:pypi/{canonicalize_name(name)}" + (f"@{version}" if version else "")
    found = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "description": description,
        "purl": purl,
    }
    return {key: value for key, value in found.items() if value is not None}
