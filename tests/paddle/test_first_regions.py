"""The first region of a process, opened inside a function that Paddle compiles.

Our set-up must stay out of that.
"""

from pathlib import Path

from elsewhere import python


def test_the_first_region_of_a_process_opened_in_a_compiled_function():
    python(Path(__file__).with_name("first_regions.py"))
