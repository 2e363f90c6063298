"""``report.html``: one self-contained page.

It works offline, in the dark, on a phone and on paper.

A results file may hold any name: everything from outside is escaped where it becomes markup, the
page's script writes it as text only, and a content security policy admits the page's own script and
style by their hashes and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from unamp_conformance.report.pages import Page
from unamp_conformance.results import SIGNS, STATUSES, Report
from unamp_conformance.run.plan import CHECKS

__all__ = ["render", "write"]

_LINK = re.compile(r"""\s*(https://[a-z0-9.-]+(?:[/?#][^\s<>"'`]*)?)$""")


def write(report: Report, path: Path) -> None:
    """Write the page.

    Halves of characters, which JSON can hold and UTF-8 cannot, become question marks.
    """
    path.write_text(render(report), "utf-8", errors="replace")


def render(report: Report) -> str:
    """Return the page's text."""
    environment = Environment(
        loader=PackageLoader("unamp_conformance", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"style": _style, "link": _link, "short": _short, "percent": _percent}
    environment.globals |= {"signs": SIGNS, "statuses": STATUSES, "checks": CHECKS}
    style, script = (_part(environment, name) for name in ("report.css", "report.js"))
    page = Page(report)
    return environment.get_template("report.html").render(
        page=page,
        style=style,
        script=script,
        allowed=_allowed(style, script),
        data=htmlsafe_json_dumps(
            page.cells(), dumps=json.dumps, separators=(",", ":"), allow_nan=False
        ),
    )


def _part(environment: Environment, name: str) -> Markup:
    """Return a file of ours that goes into the page as it is."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _allowed(style: str, script: str) -> str:
    """Return the content security policy."""
    inline = f"style-src {_hash(style)}; script-src {_hash(script)}"
    return f"default-src 'none'; img-src data:; {inline}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _style(status: str) -> str:
    """Return a status as a CSS class."""
    return status.replace(" ", "-")


def _link(reason: str) -> tuple[str, str]:
    """Return a reason, and the address that it ends with, if any.

    Other schemes than https stay text.
    """
    found = _LINK.search(reason)
    return (reason[: found.start()], found[1]) if found else (reason, "")


def _short(dtype: str) -> str:
    """Return a dtype as narrow columns are headed."""
    return {"float16": "fp16", "bfloat16": "bf16"}.get(dtype, dtype)


def _percent(multiple: float) -> str:
    """Return a multiple of a bound, for people."""
    if multiple == math.inf:
        return "not finite"
    return f"{multiple:.0%}".replace("%", " %") if multiple < 10.0 else f"{multiple:.3g} times"
