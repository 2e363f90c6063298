"""The site of `make docs`: it builds without a warning, holds the whole API, and asks for nothing from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

import unamp


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a link that leads nowhere, a page that no menu names, and a wrong docstring are errors."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    pages = {path.relative_to(site) for path in site.rglob("*.html")}
    at_root = ("index.html", "contributing.html", "security.html", "changelog.html", "404.html")
    assert pages == documents | {Path(name) for name in at_root}


def test_no_link_to_a_page_is_broken(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links begin at the root, wherever the site is
            continue
        for target in re.findall(r'(?:href|src)="([^"#?:]+)[^":]*"', page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"


def test_everything_that_is_public_is_in_the_reference(site: Path) -> None:
    page = (site / "api" / "index.html").read_text("utf-8")
    described = set(re.findall(r'<h3 id="unamp\.(\w+)', page))
    # `amp_guard` is another name of `auto_cast`; `onnx`, `testing`, `tracing`, `tuning` and `typing` are modules.
    assert described == set(unamp.__all__) - {"amp_guard"} | {"onnx", "testing", "tracing", "tuning", "typing"}
    assert "unamp.amp_guard" in page


#: An address of another site (`//` with or without a scheme) where a browser loads what it finds.
_OUTSIDE = r"""["']?(?:https?:)?//"""
_LOADS = rf"<(?:script|img|iframe)[^>]*\ssrc={_OUTSIDE}|<link[^>]*\shref={_OUTSIDE}|url\({_OUTSIDE}"


def test_nothing_is_loaded_from_outside(site: Path) -> None:
    for page in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert not re.search(_LOADS, page.read_text("utf-8")), page.relative_to(site)
