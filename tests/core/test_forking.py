"""Every handler around a fork runs, although another one raises."""

import os

import pytest

from unamp import _forking

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")


def test_one_that_raises_keeps_no_other_from_its_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def raises() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_forking, "_handlers", list(_forking._handlers))
    _forking.at_fork(
        before=lambda: done.append("taken"), after_in_parent=lambda: done.append("released")
    )
    _forking.at_fork(before=raises, after_in_parent=raises)
    _forking.at_fork(
        before=lambda: done.append("taken"), after_in_parent=lambda: done.append("released")
    )
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert done == ["taken", "taken", "released", "released"]
    assert capsys.readouterr().err.count("Traceback") == 2
