"""A trace's page is complete in itself, whatever the names in it."""

from __future__ import annotations

import re

from elsewhere import python
from pages import NASTY, Page

import unamp
from unamp import OpRecord, Rule, Trace
from unamp.adapter.records import Values


def trace() -> Trace:
    found = Trace(values=True)
    found.frameworks = {"torch": "2.13", NASTY: NASTY}
    bad = Values((1,), 1, 0.0, 0.0, 0.0, (float("nan"),))
    linear = OpRecord(
        "linear",
        "n",
        Rule.LOW,
        ("float32",) * 3,
        "bfloat16",
        "bfloat16",
        layer="Net.0",
        casts=3,
        cast_bytes=1536,
    )
    found.records = [
        linear,
        linear,
        OpRecord(
            "exp",
            "n",
            Rule.FP32,
            ("bfloat16",),
            "float32",
            "float32",
            layer=f"Net.{NASTY}",
            values=bad,
        ),
        OpRecord("conv2d", "n", Rule.LOW, ("float16",), "float16", "float16", emulated=True),
        OpRecord(NASTY, "n", Rule.UNTOUCHED, (), None, None),
    ]
    return found


def test_it_refers_to_nothing_else() -> None:
    text = trace().to_html()
    page = Page(text)
    assert not page.all("script")
    assert not page.all("link")
    assert not page.all("img")
    assert not [
        a
        for _, attributes in page.elements
        for a in attributes
        if a in ("src", "href") or a.startswith("on")
    ]
    assert not re.search(r"https?:|url\(|@import", text)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all(
        "meta"
    )


def test_names_are_text() -> None:
    page = Page(trace().to_html(title=NASTY))
    assert not page.all("script")
    # the title twice, the framework and its version, the layer and operation in the table
    assert page.text.count(NASTY) >= 6


def test_the_picture_has_a_stripe_for_every_change_of_precision() -> None:
    page = Page(trace().to_html())
    (picture,) = page.all("svg")
    assert picture["viewbox"] == "0 0 5 1"
    stripes = [(r["x"], r["width"], r["class"]) for r in page.all("rect")]
    assert stripes == [
        ("0", "2", "bfloat16"), ("2", "1", "float32"), ("3", "1", "float16"), ("4", "1", "other"),
    ]  # fmt: skip


def test_layers_say_what_ran_in_them() -> None:
    page = Page(trace().to_html())
    kinds = [a["class"] for a in page.all("li") if "title" in a]
    assert kinds == ["bfloat16", "float32 nonfinite", "float16 emulated", "other"]
    assert "linear \u00d72 ⇄6" in page.text
    assert "exp ∞" in page.text
    assert "6, which read and wrote 3.0 KiB" in page.text
    assert "1 result in all" in page.text


def test_an_empty_trace_has_a_page() -> None:
    assert "Nothing ran that a trace reports." in unamp.Trace().to_html()


def test_without_jinja2_the_error_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["jinja2"] = None
import unamp
try:
    unamp.Trace().to_html()
except ModuleNotFoundError as error:
    print(error)
"""
    assert (
        python("-c", code).strip()
        == "a trace's page needs jinja2, which is not installed; pip install 'unamp[html]'"
    )
