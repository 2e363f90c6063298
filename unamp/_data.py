"""Reading the tables of facts that ship with the package."""

from __future__ import annotations

from typing import Any


def load_table(name: str) -> dict[str, Any]:
    """Return a TOML file of `unamp/data`, parsed."""
    # Imported here because `import unamp` must stay cheap: nothing needs them before a policy.
    import tomllib
    from importlib import resources

    return tomllib.loads(resources.files("unamp").joinpath(f"data/{name}").read_text("utf-8"))
