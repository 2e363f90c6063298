"""The classes of errors and warnings.

Bad arguments raise the built-in `ValueError` and `TypeError`. The classes here are the errors that
a caller may want to catch apart from those, and the categories of warnings.
"""

from collections.abc import Iterable


class AdapterError(RuntimeError):
    """An adapter does not fulfil the contract of `unamp.adapter`, or could not be loaded."""


class FrameworkNotSupported(AdapterError):
    """A framework is not installed, is of an unsupported version, or lacks a hook.

    Its adapter states the range of versions, and the hooks that it needs.
    """


class NotExpressible(RuntimeError):
    """A policy cannot be honoured on this device, by this compiler or in this kind of call.

    A policy is never silently dropped instead.
    """


class BannedOperation(RuntimeError):
    """A call of an operation that the policy's preset bans; the message says what to use."""


class AmpHint(UserWarning):
    """Something works as it is meant, and could be faster.

    Each is given once in a process; see `unamp.amp_warnings`.
    """


class AmpWarning(UserWarning):
    """Something works, and is probably not what was meant.

    Each is given once in a process; see `unamp.amp_warnings`.
    """


def shortened(value: object, most: int = 80) -> str:
    """Return the `repr` of a value for a message, cut off where it is long."""
    said = repr(value[: most + 1] if isinstance(value, str) else value)
    return said if len(said) <= most + 2 else f"{said[:most]}…"


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for an unknown name: the known names nearest to it, else `otherwise`."""
    import difflib  # slow to import, and only an error needs it

    near = difflib.get_close_matches(name, list(known), 3)
    return f"did you mean {', '.join(map(repr, near))}?" if near else otherwise


def unknown(what: str, given: object, valid: Iterable[str], listed: str = "valid") -> str:
    """Return the message for an unknown name: the name, similar valid ones, and all valid ones."""
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
