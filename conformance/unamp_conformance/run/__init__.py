"""A run of the suite: its plan, each framework's worker process, and results kept on the way.

What is kept outlives an interruption.
"""
