"""The report can be read in a browser: on a desk, on a phone, in the dark, on paper.

It can be read by mouse and by keyboard.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import browser
import pytest
import reports
from browser import DESK, PHONE, overflow
from playwright.sync_api import Browser, Page
from unamp_conformance.report.html import write
from unamp_conformance.results import Result

from unamp import LayerRules, OpRecord, Policy, Rule, Trace, Tuned, TuneReport
from unamp.tuning import PlaceReport, PresetReport, Trial

#: For every visible text, its contrast with its background, by the formula of WCAG 2.
CONTRASTS = """() => {
  const parse = (color) => { const c = color.match(/[\\d.]+/g).map(Number); return [c[0], c[1], c[2], c[3] ?? 1]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg, script, style") || !element.checkVisibility()) continue;
    let under = element;
    while (under && parse(getComputedStyle(under).backgroundColor)[3] === 0) under = under.parentElement;
    const style = getComputedStyle(element);
    const pair = [light(parse(style.color)), light(parse(getComputedStyle(under ?? document.body).backgroundColor))].sort();
    const large = parseFloat(style.fontSize) >= 24;
    const contrast = (pair[1] + 0.05) / (pair[0] + 0.05);
    if (contrast < (large ? 3 : 4.5)) found.push([contrast.toFixed(2), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""  # noqa: E501


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes each report's page once."""
    folder = tmp_path_factory.mktemp("pages")

    def file(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            write(getattr(reports, name)(), path)
        return path

    return file


@pytest.fixture
def look(chromium: Browser, files: Callable[[str], Path]) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a report's page.

    A message on the console, or a request to another address, fails the test.
    """
    complaints: list[str] = []
    contexts = []

    def opened(
        name: str, size: tuple[int, int] = DESK, scheme: str = "light", at: str = ""
    ) -> Page:
        context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        file = files(name)
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(file.as_uri()) else complaints.append(request.url)
            ),
        )
        page.goto(file.as_uri() + at)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def open_everything(page: Page) -> None:
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def cell(page: Page, subject: str, column: str):
    return page.locator(f'.matrix button[data-name="{subject}, {column}"]').first


@pytest.mark.parametrize("size", [DESK, PHONE])
@pytest.mark.parametrize("name", ["good", "broken", "hostile"])
def test_nothing_is_wider_than_the_window(look, name, size):
    page = look(name, size)
    assert overflow(page) == 0
    open_everything(page)
    assert overflow(page) == 0


def test_hostile_names_are_text(look):
    page = look("hostile")
    open_everything(page)
    for number in range(page.locator(".matrix button").count()):
        page.locator(".matrix button").nth(number).click()
        assert page.locator("dialog[open]").count() == 1
        page.keyboard.press("Escape")
    assert page.evaluate("window.hacked") is None
    assert page.locator("script").count() == 2
    assert page.locator("img, iframe, svg[onload]").count() == 0
    assert page.evaluate(
        "[...document.links].every((a) => ['https:', 'file:'].includes(a.protocol))"
    )
    assert "<script>window.hacked=1</script>" in page.locator("main").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["good", "broken"])
def test_every_text_can_be_read(look, name, scheme):
    page = look(name, scheme=scheme)
    open_everything(page)
    assert page.evaluate(CONTRASTS) == []


def test_the_dark_is_dark(look):
    light, dark = background(look("good")), background(look("good", scheme="dark"))
    assert (light, dark) == ("rgb(246, 247, 249)", "rgb(14, 17, 21)")


def test_a_status_is_never_a_colour_alone(look):
    page = look("broken")
    assert set(page.locator(".matrix button").all_inner_texts()) == {"●", "✗", "☠", "…"}
    assert all(
        any(c.isalnum() for c in text) for text in page.locator(".status").all_text_contents()
    )
    assert "crashed" in cell(page, "lstm", "O1 float16").get_attribute("aria-label")


def test_on_paper_everything_that_went_wrong_is_open(look):
    page = look("broken", scheme="dark")
    shown = (
        "[...document.querySelectorAll('.failure .evidence')]"
        ".filter((e) => e.checkVisibility()).length"
    )
    assert page.evaluate(shown) == 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(shown) == sum(
        r.status in ("failed", "crashed", "hung", "fixed") for r in reports.WRONG
    )
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.lead')).color")
        == "rgb(26, 31, 38)"
    )
    page.set_viewport_size({"width": 700, "height": 1000})  # about the width of A4
    assert overflow(page) == 0
    assert page.evaluate(
        "[...document.querySelectorAll('.wide')]"
        ".every((e) => getComputedStyle(e).overflowX === 'visible')"
    )
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_a_failing_check_shows_what_was_expected_and_what_was_seen(look):
    page = look("broken")
    failure = page.locator(".failure", has_text="matmul").first
    failure.locator("summary").first.click()
    assert failure.locator(".expected").inner_text() == "float32"
    assert failure.locator(".observed").inner_text() == "bfloat16, tag bfloat16"
    numbers = page.locator(".failure", has_text="O1 bfloat16 apex").first
    numbers.locator("summary").first.click()
    assert "300 % of the bound" in numbers.inner_text()
    assert numbers.locator("tbody tr").all_inner_texts()[1].split() == [
        "softmax",
        "low",
        "bfloat16",
        "bfloat16",
        "bfloat16",
    ]


def test_a_cell_is_drilled_into_by_mouse(look):
    page = look("broken", PHONE)
    assert page.locator("dialog[open]").count() == 0
    cell(page, "transformer", "O1 bfloat16").click()
    dialog = page.locator("dialog[open]")
    assert dialog.locator("h2").inner_text() == "transformer, O1 bfloat16: torch 2.13.0, cpu"
    assert dialog.locator("tbody th").first.inner_text() == "unamp"
    assert (
        "300 %" in dialog.locator("tr", has=page.locator("th", has_text="apex")).first.inner_text()
    )
    assert dialog.locator(".failure[open] .measure").is_visible()
    assert overflow(page) == 0
    dialog.locator("[data-close]").click()
    assert page.locator("dialog[open]").count() == 0


def test_a_table_that_goes_on_at_the_right_fades_there_until_its_end(look):
    page = look("broken", PHONE)
    page.locator(".matrix button").first.scroll_into_view_if_needed()
    page.locator(".matrix button").nth(0).click()
    table = page.locator("dialog[open] .wide").first
    table.evaluate("wide => { wide.style.width = '8rem'; dispatchEvent(new Event('resize')); }")
    assert "more" in table.get_attribute("class").split()
    table.evaluate(
        "wide => { wide.scrollLeft = wide.scrollWidth; wide.dispatchEvent(new Event('scroll')); }"
    )
    assert "more" not in table.get_attribute("class").split()


def test_a_cell_is_drilled_into_by_keyboard(look):
    page = look("good")
    page.locator(".matrix").first.scroll_into_view_if_needed()
    assert page.locator(".matrix").first.locator("button[tabindex='0']").count() == 1
    cell(page, "mlp", "O0 float16").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert (
        page.locator("dialog[open] h2").inner_text()
        == "transformer, O0 bfloat16: torch 2.13.0, cpu"
    )
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    focused = page.evaluate("document.activeElement.dataset.name")
    assert focused == "transformer, O0 bfloat16"


def test_the_tab_key_reaches_everything_once(look):
    page = look("broken")
    reached = []
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.closest('.matrix')?.dataset.run"
                " ?? document.activeElement.tagName"
            )
        )
        if reached[-1] == "BODY":
            break
    assert reached[-1] == "BODY"
    assert (reached.count("0"), reached.count("1")) == (1, 1)
    assert reached.count("SUMMARY") > len(reports.WRONG)


def test_an_address_opens_the_check_that_it_names(look):
    page = look("broken", at="#run-0-1")
    assert page.locator("#run-0-1").evaluate("(e) => e.open")
    assert page.locator("#run-0-1 .evidence").is_visible()


def test_a_search_leaves_what_it_finds(look):
    page = look("good")
    page.locator("#operations summary").first.click()
    page.locator("#operations input").fill("nothing like it")
    assert page.locator("#remarkable tbody tr:visible").count() == 0
    page.locator("#operations input").fill("OP_3")
    assert page.locator("#remarkable tbody tr:visible").count() == 1


def test_the_plots_have_a_mark_for_every_framework_and_network(look):
    page = look("broken", PHONE)
    assert page.locator("#errors figcaption b").all_inner_texts() == [
        "float32",
        "bfloat16",
        "float16",
    ]
    assert page.locator("#errors .legend li").all_inner_texts() == [
        "torch 2.13.0, cpu",
        "paddle 2.13.0, cpu",
    ]
    panel = page.locator("#errors .plot").nth(1)
    assert panel.locator("g.series > g").count() == 2 * len(reports.NETWORKS)
    beyond = panel.locator("g.series.failed")
    assert beyond.locator("text").text_content() == "✗ 3\N{MULTIPLICATION SIGN}"
    left, bound = (
        beyond.locator(".ring").bounding_box()["x"],
        panel.locator(".limit").bounding_box()["x"],
    )
    assert left > bound
    inside = panel.locator("g.series.passed .span")
    assert all(
        box["x"] + box["width"] < bound for box in (mark.bounding_box() for mark in inside.all())
    )
    assert page.locator("#errors .plot").nth(2).locator("text", has_text="not finite").count() == 1


def test_of_fifty_thousand_checks_the_page_holds_what_failed_and_counts(chromium, tmp_path):
    write(reports.many(50_000, failing=2_000), tmp_path / "many.html")
    page = chromium.new_page()
    page.goto((tmp_path / "many.html").as_uri())
    assert page.locator(".failure").count() == 2_000
    # passed checks are only counted
    assert page.evaluate("document.querySelectorAll('*').length") < 75_000
    assert "48," in page.locator(".lead + .bar + p").inner_text()
    page.close()


def test_without_a_browser_it_says_what_to_install():
    nowhere = os.environ | {"CHROMIUM": "/nowhere/chromium"}
    ran = subprocess.run(
        [sys.executable, browser.__file__], env=nowhere, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr.strip()) == (1, browser.ADVICE)


def test_the_page_of_a_search_fits_and_can_be_read_in_the_dark_and_on_a_phone(
    chromium: Browser,
) -> None:
    """The page of `unamp.tune` looks like the report."""
    long = "encoder.layers.11." + "attention" * 12
    places = tuple(
        PlaceReport(
            layer,
            op,
            0.25,
            held,
            7e4,
            "its result reaches 70000; float16 ends at 65504" if held else "",
        )
        for layer, op, held in (
            ("", "add", False),
            (long, "linear", True),
            (long, "exp", False),
            ("head", "linear", True),
        )
    )
    tried = (
        Trial(0, 1.0, float("inf"), False),
        Trial(4, 0.0, 0.0, True),
        Trial(2, 0.5, 3e-3, True),
        Trial(1, 0.7, 0.5, False),
    )
    report = TuneReport(
        "Net", "torch", Policy("O3"), "place", "halves", 1e-2, 8e-3, 3, 3e-3, 2e-2, float("inf"),
        0.3, 0.5, places, tried, (PresetReport(Policy(preset="torch-cuda"), 0.4, 1e-3, True),), 31,
        1.5, "interrupted: this is the best so far", (long,),
    )  # fmt: skip
    text = Tuned(
        Policy("O3"), LayerRules({long: "float32", "head": "float32"}), {}, report
    ).to_html(title=long)
    for size, scheme in ((DESK, "light"), (PHONE, "dark")):
        page = chromium.new_page(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
        )
        page.set_content(text)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert page.evaluate(CONTRASTS) == []
        assert page.locator("circle").count() == 4
        boxes = [
            page.locator("svg.plot").bounding_box(),
            *(dot.bounding_box() for dot in page.locator("circle").all()),
        ]
        assert all(
            box and box["width"] > 0 and box["x"] >= 0 and box["x"] + box["width"] <= size[0]
            for box in boxes
        )
        page.close()


def test_the_page_of_a_trace_cuts_nothing_on_a_phone(chromium: Browser) -> None:
    layer = "encoder.layers.11." + "attention" * 12
    recorded = Trace()
    recorded.records = [
        OpRecord(
            op,
            "n",
            Rule.LOW,
            ("float32",) * 3,
            "bfloat16",
            "bfloat16",
            layer=layer,
            casts=3,
            cast_bytes=1536,
        )
        for op in ("linear", "scaled_dot_product_attention")
    ]
    text = recorded.to_html(title=layer)
    for size, scheme in ((DESK, "light"), (PHONE, "dark")):
        page = chromium.new_page(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
        )
        page.set_content(text)
        assert overflow(page) == 0
        wide = page.locator(".wide").evaluate("(table) => table.scrollWidth > table.clientWidth")
        assert wide == (size != PHONE)  # on a desk a table scrolls
        assert page.evaluate(CONTRASTS) == []
        told = (
            page.locator("td")
            .nth(4)
            .evaluate("(cell) => getComputedStyle(cell, '::before').content")
        )
        assert told == ('"computed in "' if size == PHONE else "none")
        page.close()


def test_rows_of_a_matrix_show_their_whole_names(chromium: Browser, tmp_path: Path) -> None:
    names = [
        f"torch.compile of a region in a function of a module that is {end}"
        for end in ("called again", "called once")
    ]
    results = [
        Result("ways", "mlp", "O1 bfloat16 unamp", "cpu", "passed", way=name) for name in names
    ]
    write(reports.report(reports.run("torch", *results)), tmp_path / "ways.html")
    page = chromium.new_page(viewport={"width": PHONE[0], "height": PHONE[1]})
    page.goto((tmp_path / "ways.html").as_uri())
    shown = page.locator(".matrix th[scope=row] .name")
    assert [text for text in shown.all_inner_texts() if text in names] == names
    assert shown.evaluate_all(
        "(all) => all.every((name) => name.scrollHeight <= name.clientHeight + 1)"
    )
    page.close()
