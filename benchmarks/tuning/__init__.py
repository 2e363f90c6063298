"""The searches of `unamp.tune` on networks of four frameworks, and beside all subsets.

docs/tune.md has the results.
"""
