"""The history of a training as a value, which becomes a table, a page or JSON."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from unamp.tracing.tables import text_table
from unamp.watching import as_json, as_page
from unamp.watching.samples import Contents, findings, summarised

_HEAD = (
    "layer",
    "numbers",
    "zero",
    "subnormal",
    "flushed",
    "swallowed",
    "update",
    "not finite",
    "dead",
)


class History(Contents):
    """The history of a training, with the fields of `unamp.watching.samples.Contents`."""

    __slots__ = ()

    def findings(self) -> list[str]:
        """Return a sentence on each fault of a layer.

        Faults are underflow, swallowed updates, a dead layer, and gradients that are not finite.
        """
        return findings(self)

    def table(self) -> str:
        """Return the layers as plain text: means over the samples, and the count of dead ones."""
        rows = [
            (
                each.layer, str(each.size),
                f"{each.zero:.1%}", f"{each.subnormal:.1%}", f"{each.flushed:.1%}",
                "-" if each.swallowed is None else f"{each.swallowed:.1%}",
                "-" if each.update is None else f"{each.update:.1e}",
                f"{each.nonfinite} of {each.samples}" if each.nonfinite else "-",
                f"{each.dead} of {each.samples}" if each.dead else "-",
            )
            for each in summarised(self.samples)
        ]  # fmt: skip
        last = f"; the loss scale is {self.samples[-1].scale:g}" if self.samples else ""
        head = (
            f"{self.steps} steps of {self.framework}, {self.skipped} skipped, {len(self.samples)} "
            f"samples{last}\n"
            f"gradients as the backward pass left them, against {self.dtype}"
        )
        return f"{head}\n\n{text_table(_HEAD, rows)}"

    def to_html(self, title: str = "A training, watched") -> str:
        """Return the history as one self-contained HTML page."""
        return as_page.render(self, title)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the history as JSON, which `from_json` reads."""
        return as_json.dump(self, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> History:
        """Return the history that `to_json` wrote.

        Raises:
            ValueError: where the text is no history, is damaged, or has another version.
        """
        return cls(*as_json.load(text))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the history to a file: a page for ``.html``, JSON for ``.json``.

        Raises:
            ValueError: for any other ending; nothing is written.
        """
        file = Path(path)
        if file.suffix not in (".html", ".json"):
            raise ValueError(
                "save() writes a page to a name that ends in .html, and JSON to one in .json; "
                f"not {file.name!r}"
            )
        file.write_text(
            self.to_html() if file.suffix == ".html" else self.to_json(indent=1), "utf-8"
        )
