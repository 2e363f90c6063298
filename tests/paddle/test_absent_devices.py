"""Programs of Paddle for an absent GPU cannot be read, and the suite gives the reason."""

import paddle
import pytest
from unamp_conformance.subjects import Subject


def test_a_program_has_no_place() -> None:
    program = paddle.static.Program()
    paddle.enable_static()
    try:
        with paddle.static.program_guard(program), paddle.static.device_guard("gpu:0"):
            x = paddle.static.data("x", [4, 4])
            paddle.matmul(x, x)
    finally:
        paddle.disable_static()
    assert "pd_op.matmul" in str(program)
    assert "Place(undefined:0)" in str(program)
    assert "gpu" not in str(program).lower()


def test_the_place_that_would_choose_kernels_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="use wrong place"):
        paddle.CUDAPlace(0)
    said = Subject("paddle", "cpu").missing().rpartition(": ")[2]
    assert said in capfd.readouterr().err
