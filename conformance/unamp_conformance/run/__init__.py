"""A run of the suite: its plan, the worker process of each framework, and what is kept when it is interrupted."""
