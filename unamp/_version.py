"""The version, where every module can ask for it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
