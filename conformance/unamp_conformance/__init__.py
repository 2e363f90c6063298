"""The conformance suite: it checks that a policy takes effect, and alike on every framework.

The same operation must get the same decision on each. It knows frameworks only through
`unamp.adapter`. `unamp_conformance.cli` is its door; `unamp_conformance.run.runner` runs one
process per framework.
"""
