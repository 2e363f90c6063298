"""Private names of Paddle, and the effect of a region, are probed before the first use."""

import paddle
import pytest
from elsewhere import forked
from unamp_paddle import adapter, probing

import unamp

MISSING = """
import paddle
import unamp
del {place}
try:
    import unamp_paddle
except unamp.FrameworkNotSupported as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("paddle.nn.functional.conv._conv_nd", "paddle.nn.functional.conv._conv_nd"),
        ("paddle.base.core.set_eval_frame", "paddle.base.core.set_eval_frame"),
        ("paddle.Tensor.register_hook", "paddle.Tensor.register_hook"),
    ],
)
def test_a_name_that_is_missing_is_told_with_the_version(place, name):
    assert f"paddle {paddle.__version__} has no {name}, which unamp needs" in forked(
        "paddle", MISSING.format(place=place)
    )


def test_this_paddle_has_what_is_needed():
    adapter.probe()


def test_a_region_without_effect_is_refused(monkeypatch):
    monkeypatch.setattr(probing, "plan", lambda policy, device: None)
    message = (
        rf"paddle {paddle.__version__}: "
        r"paddle.Tensor.__matmul__ gives float32 inside a region and float32 outside"
    )
    with pytest.raises(unamp.FrameworkNotSupported, match=message):
        probing.probe_effects()


def test_a_program_that_is_being_built_is_left_alone():
    paddle.enable_static()
    try:
        program = paddle.static.Program()
        with paddle.static.program_guard(program):
            adapter.probe()
        assert len(program.global_block().ops) == 0
    finally:
        paddle.disable_static()
