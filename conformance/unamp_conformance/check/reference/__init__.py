"""The networks in float64, in NumPy, so that they are the same on every machine.

`tape` differentiates, `functions` has the functions of the networks, and `operations` makes a
framework of them. `unamp_conformance.check.netbounds` has the errors that a precision may cause.
"""
