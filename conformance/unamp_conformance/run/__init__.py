"""A run of the suite: its plan, the frameworks' worker processes, and the results so far.

The results so far are kept on disk, and survive an interruption.
"""
