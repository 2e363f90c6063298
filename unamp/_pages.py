"""HTML pages of one file each, from the templates in `unamp/templates`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(whose: str) -> Environment:
    """Return the environment of the templates; it escapes every value that they show.

    Its filter `name` shows the name of a layer.

    Args:
        whose: the owner of the page, in the possessive, for the message.

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
