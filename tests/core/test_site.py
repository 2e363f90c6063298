"""The site of `make docs` builds without a warning and documents the whole API.

It loads nothing from outside, and fits a phone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import browser
import pytest
from browser import DESK, PHONE
from documents import ROOT
from playwright.sync_api import Browser, Page

import unamp

#: JavaScript that finds cut text on a page: an element that scrolls, or is wider than the window. A
#: block of output is aligned text and may scroll.
CUT = """() => [...document.querySelectorAll(".md-content *")].filter((element) =>
  element.clientWidth && !element.closest(".language-text, svg") && (element.getBoundingClientRect().right > innerWidth
  || (getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1))
).map((element) => `${element.tagName} ${element.textContent.trim().slice(0, 60)}`)"""  # noqa: E501


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built strictly.

    A link that leads nowhere, a page that no menu names, and a wrong docstring are errors.
    """
    out = tmp_path_factory.mktemp("site")
    other = out / "0.0.9"  # the pages of an earlier version
    other.mkdir()
    (other / "index.html").write_text("<!doctype html><title>older</title>")
    command = [sys.executable, str(ROOT / "docs" / "build_site.py"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return out / unamp.__version__


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Yield the address where this version is served, with the other versions beside it.

    From files alone, a browser would not let the search read its index.
    """
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(site.parent))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{site.name}"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def opened(
    chromium: Browser,
    size: tuple[int, int],
    complaints: list[str],
    address: str,
    scheme: str = "light",
) -> Page:
    """Return a page of the browser that adds errors to `complaints`.

    A request to any other address is an error, too.
    """
    page = chromium.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
    ).new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "response",
        lambda response: complaints.append(response.url) if response.status >= 400 else None,
    )
    root = address.rpartition("/")[0]  # the list of versions is here
    page.on(
        "request",
        lambda request: None if request.url.startswith(root) else complaints.append(request.url),
    )
    return page


def test_every_document_is_a_page(site: Path) -> None:
    documents = {
        path.relative_to(ROOT / "docs").with_suffix(".html")
        for path in (ROOT / "docs").rglob("*.md")
    }
    pages = {path.relative_to(site) for path in site.rglob("*.html")}
    at_root = ("index.html", "contributing.html", "security.html", "changelog.html")
    assert pages == documents | {Path(name) for name in at_root}
    menu = (site / "index.html").read_text("utf-8")
    assert [page for page in sorted(documents) if f'href="./{page.as_posix()}"' not in menu] == []


def test_no_link_to_a_page_is_broken(site: Path) -> None:
    for page in site.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="([^"#?:]+)[^":]*"', page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"


def test_everything_that_is_public_is_in_the_reference(site: Path) -> None:
    page = (site / "api" / "index.html").read_text("utf-8")
    described = set(re.findall(r'<h3 id="unamp\.(\w+)', page))
    # `amp_guard` is another name of `auto_cast`. The names added here are modules.
    assert described == set(unamp.__all__) - {"amp_guard"} | {
        "onnx",
        "testing",
        "tracing",
        "tuning",
        "typing",
        "watching",
    }
    assert "unamp.amp_guard" in page


def test_a_fence_of_any_kind_is_code(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "```" not in page.read_text("utf-8"), page.relative_to(site)


def test_a_page_says_its_version(site: Path) -> None:
    assert f"unamp {unamp.__version__}" in (site / "policies.html").read_text("utf-8")


def test_a_menu_leads_to_the_other_versions(site: Path, address: str, chromium: Browser) -> None:
    complaints: list[str] = []
    root = address.removesuffix(site.name)
    page = opened(chromium, PHONE, complaints, root)
    page.goto(root)
    page.wait_for_url(f"{address}/index.html")  # the newest version
    menu = page.locator(".md-version a")
    menu.first.wait_for(state="attached")
    assert [entry.get_attribute("href") for entry in menu.all()] == [f"{address}/", f"{root}0.0.9/"]
    page.goto(f"{root}0.0.9/")
    assert page.title() == "older"  # the earlier version's page is still there
    page.context.close()
    assert complaints == []


#: An address on another site (`//` with or without a scheme), where a browser would load from it.
_OUTSIDE = r"""["']?(?:https?:)?//"""
_LOADS = rf"<(?:script|img|iframe)[^>]*\ssrc={_OUTSIDE}|<link[^>]*\shref={_OUTSIDE}|url\({_OUTSIDE}"


def test_nothing_is_loaded_from_outside(site: Path) -> None:
    for page in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert not re.search(_LOADS, page.read_text("utf-8")), page.relative_to(site)


def test_no_page_is_wider_than_the_window(site: Path, address: str, chromium: Browser) -> None:
    complaints: list[str] = []
    # a browser that lays pages out and draws none
    still = chromium.browser_type.launch(
        executable_path=browser.find(), args=[*browser.FLAGS, "--disable-threaded-compositing"]
    )
    page = opened(still, PHONE, complaints, address)
    # an empty index for the search, which each page would make anew
    page.route("**/search.json", lambda route: route.fulfill(json={"config": {}, "items": []}))
    wide, cut = {}, {}
    for file in sorted(site.rglob("*.html")):
        name = file.relative_to(site).as_posix()
        for size in (PHONE, DESK):
            page.set_viewport_size({"width": size[0], "height": size[1]})
            if size == PHONE:
                page.goto(f"{address}/{name}")
            if (more := browser.overflow(page)) > 0:
                wide[name, size] = more
            if size == PHONE and (parts := page.evaluate(CUT)):
                cut[name] = parts
    still.close()
    assert (wide, cut, complaints) == ({}, {}, [])


def test_on_a_phone_a_cell_says_of_which_column_it_is(address: str, chromium: Browser) -> None:
    complaints: list[str] = []
    page = opened(chromium, PHONE, complaints, address, "dark")
    page.goto(f"{address}/moving.html")
    cell = page.locator("td", has_text="unamp.amp_guard()").first
    assert (
        cell.evaluate("(cell) => getComputedStyle(cell, '::before').content")
        == '"write, on any framework: "'
    )
    # the copy icon covers no code
    assert not page.locator(".md-code__nav").first.is_visible()
    page.context.close()
    assert complaints == []


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_search_finds_a_page(
    address: str, chromium: Browser, size: tuple[int, int], scheme: str
) -> None:
    complaints: list[str] = []
    page = opened(chromium, size, complaints, address, scheme)
    page.goto(f"{address}/index.html")
    page.locator("label[for=__search]:visible, .md-search__button:visible").first.click()
    # `fill` waits for the box; text that is typed before the box shows is lost
    page.get_by_role("combobox").fill("layer_policies")
    found = page.locator("a", has_text="layer_policies").first
    found.wait_for()
    found.click()
    page.wait_for_url(re.compile(r"/(?!index\.html)[a-z/-]+\.html"))
    assert "layer_policies" in page.locator(".md-content").inner_text()
    page.context.close()
    assert complaints == []
