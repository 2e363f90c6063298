"""The conformance suite: does a policy take effect, with the same decision for the same operation, on every framework?

It knows frameworks only through `unamp.adapter`. `unamp_conformance.cli` is its door;
`unamp_conformance.run.runner` runs one process per framework.
"""
