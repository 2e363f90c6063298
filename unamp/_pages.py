"""Pages that need no other file: the templates of `unamp/templates`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(whose: str) -> Environment:
    """Return the environment of the templates, in which everything that they are given is escaped.

    Its filter `name` shows layers.

    Args:
        whose: whose page it is, for the message.

    Raises:
        ModuleNotFoundError: where jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ModuleNotFoundError as error:
        if error.name != "jinja2":
            raise
        raise ModuleNotFoundError(
            f"{whose} page needs jinja2, which is not installed; pip install 'unamp[html]'",
            name="jinja2",
        ) from error

    def name(layer: str | None) -> Markup:
        inside, dot, own = (layer or "outside of layers").rpartition(".")
        return Markup('<span class="dim">{}</span>{}').format(inside + dot, own)

    made = Environment(
        loader=PackageLoader("unamp"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["name"] = name
    return made
