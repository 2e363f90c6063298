"""The version, where every module can ask for it."""

__version__ = "0.1.0"
