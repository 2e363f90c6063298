"""The history of a training has findings, a table, a page and JSON; writers get samples."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from pages import NASTY, Page

import unamp
from unamp.watching import History, LayerSample, Sample
from unamp.watching.samples import line
from unamp.watching.writers import sink

FINE = LayerSample("encoder.0", 100, 0.01, 0.02, 0.0)
UNDERFLOWS = LayerSample("encoder.1", 100, 0.6, 0.3, 0.0)
DEAD = LayerSample("head", 10, 0.5, 0.0, 0.0, missing=0.5)
SWALLOWED = LayerSample(NASTY, 50, 0.0, 0.0, 0.125, swallowed=0.875, update=1e-7)
OVERFLOWED = FINE._replace(zero=0.9, nonfinite=3)


def history(*layers: LayerSample, steps: int = 3) -> History:
    samples = tuple(Sample(step, 2.0 ** (16 - step), step, layers) for step in range(steps))
    return History("torch", "float16", 1, steps, steps - 1, samples)


FULL = history(FINE, UNDERFLOWS, DEAD, SWALLOWED)


def test_findings_name_the_layers() -> None:
    assert [said.partition(",")[0] for said in FULL.findings()] == [
        "encoder.1: underflow", "head: dead",
        f"{NASTY}: rounding swallows 88% of the updates of its low parameters",
    ]  # fmt: skip
    assert history(FINE).findings() == []
    assert history(OVERFLOWED).findings() == [
        "encoder.0: its gradients are infinite or NaN whenever they were looked at"
    ]


def test_shares_are_means_of_steps_that_were_finite() -> None:
    samples = (
        Sample(0, 2.0, 1, (OVERFLOWED,)),
        Sample(1, 1.0, 1, (FINE,)),
        Sample(2, 1.0, 1, (FINE._replace(zero=0.03),)),
    )
    table = History("torch", "float16", 1, 3, 1, samples).table()
    assert table.splitlines()[-1].split() == "encoder.0 100 2.0% 2.0% 0.0% - - 1 of 3 -".split()


def test_a_line_names_the_worst_layer_of_each_kind() -> None:
    said = line(FULL.samples[1], "float16")
    assert said == (
        "step 1, scale 32768, skipped 1, subnormal in float16 30.0% (encoder.1), "
        f"swallowed 87.5% ({NASTY}), dead: head"
    )
    assert line(Sample(0, 1.0, 0, (OVERFLOWED, OVERFLOWED)), "float16").endswith(
        "not finite: encoder.0 and 1 more"
    )


def test_the_page_is_complete_in_itself() -> None:
    page = Page(FULL.to_html("Mine & yours"))
    assert not [tag for tag, _ in page.elements if tag in ("script", "img", "link", "iframe")]
    assert not [
        name
        for _, attributes in page.elements
        for name in attributes
        if name in ("src", "href") or name[:2] == "on"
    ]
    assert "Mine & yours" in page.text
    assert NASTY in page.text
    assert len(page.all("polyline")) == 1
    assert len(page.all("tr")) == 1 + 4
    assert (page.all("polyline")[0]["points"] or "").count(",") == 3


def test_a_page_of_nothing() -> None:
    assert "Nothing was seen yet" in history(steps=0)._replace(skipped=0).to_html()


def test_many_samples_stay_a_page_that_a_browser_shows() -> None:
    page = Page(history(UNDERFLOWS, steps=1000).to_html())
    assert len(page.all("rect")) <= 3 + 1 + 60


def test_json_comes_back(tmp_path) -> None:
    assert History.from_json(FULL.to_json()) == FULL
    FULL.save(tmp_path / "watch.json")
    assert History.from_json((tmp_path / "watch.json").read_text("utf-8")) == FULL
    FULL.save(tmp_path / "watch.html")
    assert (tmp_path / "watch.html").read_text("utf-8") == FULL.to_html()
    with pytest.raises(ValueError, match=r"\.html, and JSON to one in \.json; not 'watch.txt'"):
        FULL.save(tmp_path / "watch.txt")
    assert not (tmp_path / "watch.txt").exists()


def _changed(place: tuple[Any, ...], value: Any) -> str:
    data = json.loads(FULL.to_json())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "no history of a training: not JSON"),
        ("{}", "to_json"),
        (_changed(("format",), "unamp trace"), "to_json"),
        (_changed(("version",), 2), "of version 2; unamp .* reads 1"),
        (_changed(("version",), True), "of version True"),
        (_changed(("more",), 1), "unknown field 'more'"),
        (_changed(("dtype",), "float32"), "'float32' is no low precision"),
        (_changed(("every",), 0), "every: must be 1 or more"),
        (_changed(("steps",), 2), "must ascend, below the number of steps"),
        (_changed(("samples", 1, "step"), 0), "must ascend"),
        (_changed(("samples", 0, "scale"), 0), "sample 1, scale: must be a float32 number above 0"),
        (
            _changed(("samples", 0, "scale"), 1e308),
            "sample 1, scale: must be a float32 number above 0",
        ),
        (
            _changed(("samples", 0, "layers", 0, "zero"), 1.5),
            "sample 1, layer 1, zero: must be between 0 and 1",
        ),
        (
            _changed(("samples", 0, "layers", 1, "zero"), 0.9),
            "layer 2: its shares are more than the whole",
        ),
        (_changed(("samples", 0, "layers", 0, "layer"), "\x1b[2J"), "printable"),
        (_changed(("samples", 0, "layers", 0, "size"), -1), "must not be negative"),
        (_changed(("samples", 0, "layers", 3, "swallowed"), "much"), "swallowed: must be a number"),
        (_changed(("samples", 0, "layers", 3, "update"), -1.0), "update: must not be negative"),
    ],
)
def test_reading_is_strict(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        History.from_json(text)


class Run:
    """A run as wandb has one: `log` takes a dictionary and a step."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int]] = []

    def log(self, data: dict[str, float], *, step: int) -> None:
        self.logged.append((data, step))


def test_samples_go_to_writers(caplog: pytest.LogCaptureFixture) -> None:
    run, lines = Run(), list[str]()
    for writer in (run, lines.append, logging.getLogger("training")):
        with caplog.at_level(logging.INFO):
            sink(writer, "float16")(FULL.samples[1])
    ((data, step),) = run.logged
    assert step == 1
    assert (data["unamp/loss scale"], data["unamp/skipped"], data["unamp/dead layers"]) == (
        32768.0,
        1,
        1,
    )
    assert data["unamp/subnormal/encoder.1"] == 0.3
    assert data[f"unamp/swallowed/{NASTY}"] == 0.875
    assert "unamp/swallowed/head" not in data
    assert lines == [caplog.messages[0]] == [line(FULL.samples[1], "float16")]


@pytest.mark.parametrize("writer", ["runs/1", 3, None])
def test_what_is_no_writer(writer: object) -> None:
    with pytest.raises(
        TypeError, match=r"add_scalar\(tag, value, step\).*not " + type(writer).__name__
    ):
        sink(writer, "float16")


def test_what_cannot_be_watched(fake: Any) -> None:
    with pytest.raises(TypeError, match="int is no network"):
        unamp.watch(3)
