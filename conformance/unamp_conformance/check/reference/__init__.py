"""The exact results of the networks, and how far each precision may lead from it: in NumPy, so on every machine the same.

- `tape` differentiates, `functions` are what networks are made of, `operations` makes a framework of them.
- `bounds` runs a network in that, in float64, and with every rounding drawn at random. What draws came to is kept in
  ``data/bounds.json``, which ``python -m unamp_conformance.check.reference`` writes.
"""

from unamp_conformance.check.reference.bounds import Reference, relative_error

__all__ = ["Reference", "relative_error"]
