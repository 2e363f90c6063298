"""What all tests share."""

from hypothesis import settings

# The machines that run the tests are slow and busy, and a red run must be red again tomorrow.
settings.register_profile("unamp", deadline=None, derandomize=True)
settings.load_profile("unamp")
