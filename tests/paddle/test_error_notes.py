"""An error about dtypes that leaves an O2 region has a note.

The note names the policy and the tensors of the call.
"""

import noted
import paddle


def drawn_in_place(x):
    doubled = x * 2
    return doubled.geometric_(0.5)


def test_an_error_about_dtypes_names_the_policy_once():
    noted.an_error_about_dtypes_names_the_policy_once(
        ValueError, "bfloat16", lambda: drawn_in_place(paddle.ones([4, 4]))
    )


def test_other_errors_are_left_alone():
    noted.other_errors_are_left_alone("bfloat16", lambda: paddle.ones([2, 3]) @ paddle.ones([2, 3]))
