"""The kernels, and the opening and closing of regions, in C++.

They mean the same as in Python, and take a fraction of the time. They are optional; `building`
builds and loads them.
"""

from unamp_torch.compiled.building import (
    Library,
    build,
    build_hint,
    in_wheel,
    library,
    place,
    place_in_wheel,
)

__all__ = ["Library", "build", "build_hint", "in_wheel", "library", "place", "place_in_wheel"]
