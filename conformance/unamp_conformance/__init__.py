"""The conformance suite: it checks that a policy has an effect, the same on every framework.

The same operation must get the same decision on each. The suite knows frameworks only through
`unamp.adapter`. `unamp_conformance.cli` has its command; `unamp_conformance.run.runner` runs one
process per framework.
"""
