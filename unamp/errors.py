"""Errors and warnings, by name.

Bad arguments raise the built-in `ValueError` and `TypeError`; the classes here are for what a
caller may want to catch apart from those, and what a warning can be told by.
"""

from collections.abc import Iterable


class AdapterError(RuntimeError):
    """An adapter does not fulfil the contract of `unamp.adapter`, or could not be loaded."""


class FrameworkNotSupported(AdapterError):
    """A framework is not installed, is outside its adapter's version range, or lacks a hook that the adapter needs."""


class NotExpressible(RuntimeError):
    """A policy cannot be honoured here (this device, this compiler, this kind of call) and is not silently dropped."""


class BannedOperation(RuntimeError):
    """An operation that the policy's preset bans was called; the message says what to use instead."""


class AmpHint(UserWarning):
    """Something works as it is meant, and could be faster; each is given once in a process (see `unamp.amp_warnings`)."""


class AmpWarning(UserWarning):
    """Something works, and is probably not what was meant; each is given once in a process (see `unamp.amp_warnings`)."""


def shortened(value: object, most: int = 80) -> str:
    """Return the `repr` of what somebody gave, for a message: of something long only its beginning."""
    said = repr(value[: most + 1] if isinstance(value, str) else value)
    return said if len(said) <= most + 2 else f"{said[:most]}…"


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for a name that is none of those that are known: the nearest of them; where nothing is near, another."""
    import difflib  # slow to import, and only an error needs it

    near = difflib.get_close_matches(name, list(known), 3)
    return f"did you mean {', '.join(map(repr, near))}?" if near else otherwise


def unknown(what: str, given: object, valid: Iterable[str], listed: str = "valid") -> str:
    """Return the message for a name that is none of the valid ones: what was given, what was probably meant, what is valid."""
    import difflib  # slow to import, and only an error needs it

    names = list(valid)
    near: list[str] = []
    if isinstance(given, str) and 0 < len(given) < 80:
        words = [
            word for name in names for word in name.split("-") if len(word) > 3 and word in given
        ]
        inside = [
            name
            for name in names
            if (len(given) > 2 and given in name) or any(w in name for w in words)
        ]
        near = list(dict.fromkeys([*inside, *difflib.get_close_matches(given, names, 2, 0.75)]))[:3]
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"unknown {what} {shortened(given)}; {meant}{listed}: {', '.join(names) or 'none'}"
