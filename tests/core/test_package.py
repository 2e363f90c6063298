"""Built wheels are complete: they work when installed outside the checkout."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import unamp

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "release"))

import dist  # noqa: E402

KERNELS = "unamp_torch/compiled/torch-2.13/unamp_torch_kernels.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dist.Wheels:
    """Return everything that is built: sdist, pure wheel, and wheel for the platform.

    A small file stands for the compiled kernels.
    """
    folder = tmp_path_factory.mktemp("kernels")
    library = folder / KERNELS
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF\0GLIBC_2.3\0GLIBC_2.28\0".ljust(2000, b"\0"))
    return dist.build_for_platform(dist.build_pure(tmp_path_factory.mktemp("dist")), folder)


@pytest.fixture(scope="module")
def wheel(wheels: dist.Wheels) -> Path:
    """Return the pure wheel, which was built from the sdist beside it."""
    return wheels.pure


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment with the wheel and nothing else."""
    return environment(tmp_path_factory.mktemp("outside"), str(wheel))


def environment(folder: Path, *source: str) -> Path:
    """Return the interpreter of a new environment with unamp and nothing else.

    `source` is the argument with which pip installs unamp.
    """
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    install = [
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        *source,
    ]
    subprocess.run([sys.executable, *install], check=True)
    return python


def run(python: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python outside the checkout, without variables that could lead back into it."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
    } | variables
    return subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=python.parent,
        env=environment,
    )


def test_the_sdist_holds_all_that_is_needed_to_build_and_test(wheel: Path) -> None:
    (path,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "LICENSE README.md CHANGELOG.md Makefile constraints.txt pyproject.toml tests/run.py "
        "release/dist.py"
    ).split():
        assert needed in names
    assert {"CITATION.cff", "SECURITY.md", "release/hatch_build.py", "docs/api/names.txt"} <= names
    assert any(name.startswith("conformance/unamp_conformance/") for name in names)


def test_the_wheel_holds_the_packages_with_their_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    adapters = [
        ("adapters", path.name)
        for path in sorted((ROOT / "adapters").iterdir())
        if (path / "adapter.py").exists()
    ]
    for folder, package in ((".", "unamp"), *adapters, ("conformance", "unamp_conformance")):
        source = ROOT / folder
        expected = {
            str(path.relative_to(source))
            for path in (source / package).rglob("*")
            if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
        }
        assert expected, package
        assert expected <= names
    assert {
        "unamp/py.typed",
        "unamp/data/vocabulary.toml",
        "unamp/data/presets/unamp.toml",
    } <= names
    assert {name.partition("/")[0] for name in names} == {
        *("unamp", *(name for _, name in adapters), "unamp_conformance"),
        f"unamp-{unamp.__version__}.dist-info",
    }


def test_every_place_names_the_same_versions_of_a_framework() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    packages = {
        "torch": "torch",
        "paddle": "paddlepaddle",
        "mindspore": "mindspore",
        "tensorflow": "tensorflow",
        "jax": "jax",
    }
    for framework, package in packages.items():
        adapter = "".join(
            path.read_text("utf-8") for path in (ROOT / f"adapters/unamp_{framework}").glob("*.py")
        )
        (requires,) = re.findall(r'^REQUIRES(?:: \w+)? = "(.*)"$', adapter, re.MULTILINE)
        named = {
            one.partition(";")[0]
            for name in (framework, "all")
            for one in extras[name]
            if one.startswith(package)
        }
        assert named == {f"{package}{requires}"}
        cpu = {
            one.partition(";")[0].replace("-cpu", "")
            for one in extras["frameworks"]
            if one.startswith(package)
        }
        assert cpu == {f"{package}{requires}"}


def told(wheel: Path, name: str) -> str:
    """Return a file of the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"unamp-{unamp.__version__}.dist-info/{name}").decode()


def metadata(wheel: Path) -> Message:
    """Return the wheel's metadata."""
    return Parser().parsestr(told(wheel, "METADATA"))


def test_the_wheel_requires_nothing(wheel: Path) -> None:
    required = metadata(wheel).get_all("Requires-Dist", [])
    assert required
    assert [each for each in required if "extra ==" not in each] == []


def test_the_wheel_says_whose_it_is_and_under_which_licence(wheel: Path) -> None:
    said = metadata(wheel)
    assert (said["Name"], said["Version"], said["Author"]) == (
        "unamp",
        unamp.__version__,
        "The unamp project",
    )
    assert (said["License-Expression"], said.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert told(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text("utf-8")
    assert said["Description-Content-Type"] == "text/markdown"
    classifiers = said.get_all("Classifier", [])
    minors = [
        each.rpartition(".")[2]
        for each in classifiers
        if each.startswith("Programming Language :: Python :: 3.")
    ]
    assert minors == ["11", "12", "13", "14"]
    assert said["Requires-Python"] == f">=3.{minors[0]}"
    assert "Typing :: Typed" in classifiers


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (citation["cff-version"], citation["type"], citation["title"]) == (
        "1.2.0",
        "software",
        project["name"],
    )
    assert (citation["version"], citation["license"]) == (unamp.__version__, project["license"])
    assert (citation["abstract"], citation["authors"]) == (
        project["description"],
        project["authors"],
    )


def test_the_same_source_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(tmp_path),
    ]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (again,) = tmp_path.iterdir()
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())


def test_the_bill_of_materials_is_of_this_wheel(wheel: Path) -> None:
    bill = json.loads(told(wheel, "sboms/unamp.cdx.json"))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    itself = bill["metadata"]["component"]
    assert (itself["name"], itself["version"], itself["purl"]) == (
        *("unamp", unamp.__version__),
        f"pkg:pypi/unamp@{unamp.__version__}",
    )
    assert itself["licenses"] == [{"expression": "Apache-2.0"}]
    files = {
        each["name"]: each["hashes"][0] for each in bill["components"] if each["type"] == "file"
    }
    recorded = {
        name: digest
        for name, digest, _ in csv.reader(told(wheel, "RECORD").splitlines())
        if ".dist-info/" not in name
    }
    assert files.keys() == recorded.keys()
    for name, listed in files.items():
        digest = base64.urlsafe_b64encode(bytes.fromhex(listed["content"])).decode().rstrip("=")
        assert (listed["alg"], f"sha256={digest}") == ("SHA-256", recorded[name])
    assert len({each["bom-ref"] for each in bill["components"]}) == len(bill["components"])


def test_the_bill_of_materials_names_what_the_extras_ask_for(wheel: Path) -> None:
    bill = json.loads(told(wheel, "sboms/unamp.cdx.json"))
    packages = {each["name"]: each for each in bill["components"] if each["type"] == "library"}
    required = metadata(wheel).get_all("Requires-Dist", [])
    assert packages.keys() == {
        re.match(r"[\w.-]+", each)[0].lower().replace("_", "-") for each in required
    }  # type: ignore[index]
    assert {each["scope"] for each in packages.values()} == {"optional"}
    assert {"name": "python:requirement:torch", "value": "torch<3,>=2.10"} in packages["torch"][
        "properties"
    ]
    assert bill["dependencies"] == [
        {
            "ref": f"pkg:pypi/unamp@{unamp.__version__}",
            "dependsOn": [each["bom-ref"] for each in packages.values()],
        }
    ]


def test_the_installed_package_works_with_nothing_else(python: Path) -> None:
    code = """
import sys, unamp, warnings
assert unamp.__file__.startswith(sys.prefix), unamp.__file__
warnings.simplefilter("ignore", unamp.AmpWarning)  # that the region covers no framework
assert unamp.Policy(preset="paddle", deny="matmul_v2").decide("matmul") is unamp.Rule.FP32
with unamp.autocast(dtype="bfloat16"):
    assert unamp.get_autocast_dtype() == "bfloat16"
try:
    unamp.autocast(framework="torch")
except unamp.FrameworkNotSupported as error:
    print(error)
"""
    done = run(python, "-c", code)
    assert done.stderr == ""
    assert done.stdout.strip() == "torch is not installed; pip install 'unamp[torch]'"


def test_the_installed_command_names_the_extra_that_it_needs(python: Path) -> None:
    done = run(python.with_name("unamp"), "--help")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "the command `unamp` needs typer, which is not installed; pip install 'unamp[conformance]'"
    )


def test_the_wheel_for_the_platform_is_for_every_python_and_the_glibc_that_its_kernels_need(
    wheels: dist.Wheels,
) -> None:
    assert re.search(r"-py3-none-(manylinux_2_28_\w+|macosx_\w+)\.whl$", wheels.platform.name)
    assert list(wheels.kernels) == [KERNELS]


def test_pip_takes_the_wheel_for_the_platform(wheels: dist.Wheels, tmp_path: Path) -> None:
    python = environment(tmp_path, "--find-links", str(wheels.platform.parent), "unamp")
    done = run(
        python, "-c", "import importlib.util; print(importlib.util.find_spec('unamp_torch').origin)"
    )
    assert Path(done.stdout.strip()).parents[1].joinpath(KERNELS).exists(), done.stderr


def test_a_wheel_that_is_not_as_it_should_be_is_an_error(
    wheels: dist.Wheels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.check(wheels)
    with pytest.raises(
        ValueError, match=r"is for every platform, but has unamp_torch/compiled/torch-"
    ):
        dist.check(wheels._replace(pure=wheels.platform))
    with pytest.raises(ValueError, match="beside the pure wheel's files"):
        dist.check(wheels._replace(kernels={}))
    changed = shutil.copy(wheels.platform, tmp_path)
    with zipfile.ZipFile(wheels.platform) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"" if name == "unamp/policy.py" else old.read(name))
    with pytest.raises(ValueError, match=r"has another unamp/policy.py than the pure wheel"):
        dist.check(wheels._replace(platform=Path(changed)))
    monkeypatch.setattr(dist, "LARGEST", 1000)
    with pytest.raises(ValueError, match="more than 1000: is it stripped"):
        dist.check(wheels)
    monkeypatch.setattr(dist, "LARGEST_PURE", 1000)
    with pytest.raises(ValueError, match="more than 1000: what has come into it"):
        dist.check(wheels)
