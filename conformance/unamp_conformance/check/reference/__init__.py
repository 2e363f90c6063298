"""The networks in float64, in NumPy, so that they are the same on every machine.

`tape` differentiates, `functions` are what networks are made of, `operations` makes a framework of
them. How far a precision may lead from their results is in `unamp_conformance.check.netbounds`.
"""
