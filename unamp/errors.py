"""What goes wrong, by name.

Bad arguments raise the built-in `ValueError` and `TypeError`; the classes here are for what a caller may want to
catch apart from those, and what a warning can be told by.
"""

__all__ = ["AdapterError", "AmpWarning", "BannedOperation", "FrameworkNotSupported", "NotExpressible"]


class AdapterError(RuntimeError):
    """An adapter does not fulfil the contract of `unamp.adapter`, or could not be loaded."""


class FrameworkNotSupported(AdapterError):
    """A framework is not installed, is outside its adapter's version range, or lacks a hook that the adapter needs."""


class NotExpressible(RuntimeError):
    """A policy cannot be honoured here (this device, this compiler, this kind of call) and is not silently dropped."""


class BannedOperation(RuntimeError):
    """An operation that the policy's preset bans was called; the message says what to use instead."""


class AmpWarning(UserWarning):
    """Something works, and is probably not what was meant; each is given once in a process (see `unamp.advice`)."""
