"""Versions of frameworks: which ones an adapter works with, and how they are told apart."""

from __future__ import annotations

from unamp.errors import AdapterError, FrameworkNotSupported


def check_version(framework: str, version: str, requires: str, *, older: str = "") -> None:
    """Raise an error where a framework's version is not one that its adapter works with.

    An adapter's package calls it before it imports what only those versions have. A registration
    checks once more.

    Args:
        framework: its import name.
        version: the version that is installed.
        requires: the versions that the adapter works with, as ``">=1.2,<2"``.
        older: the reason why it works with no older ones, for the message.

    Raises:
        FrameworkNotSupported: for any other version; the message names both.
        AdapterError: where `requires` is not of the form ``">=1.2,<2"``.
    """
    import re  # slow to import, and only a registration needs it

    bounds = re.fullmatch(r">=([\d.]+),<([\d.]+)", requires)
    if bounds is None:
        raise AdapterError(
            f"adapter of {framework}: requires is {requires!r}, not of the form '>=1.2,<2'"
        )
    oldest, newest = map(major_minor, bounds.groups())
    if not oldest <= major_minor(version) < newest:
        why = f": {older}" if older and major_minor(version) < oldest else ""
        raise FrameworkNotSupported(
            f"{framework} {version} is installed; "
            f"unamp's adapter works with {framework} {requires}{why}"
        )


def major_minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, such as ``(2, 13)``; these tell versions apart."""
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2])
