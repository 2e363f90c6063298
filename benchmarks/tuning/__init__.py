"""Searches of `unamp.tune` on networks of four frameworks, and compared with all subsets.

docs/tune.md has the results.
"""
