"""The first region of a process can be opened inside a function that Paddle compiles.

Paddle must not compile unamp's set-up.
"""

from pathlib import Path

from elsewhere import python


def test_the_first_region_of_a_process_opened_in_a_compiled_function():
    python(Path(__file__).with_name("first_regions.py"))
