"""Benchmarks of unamp beside what a user would write instead: `make bench`."""
