"""A run of the suite: its plan, each framework's worker process, and results kept on the way.

Kept results outlive an interruption.
"""
