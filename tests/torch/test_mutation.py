"""The suite notices a defect in this adapter, and names the wrong operation; see `spoilt`."""

import pytest
from spoilt import (  # noqa: F401
    test_a_defect_of_any_kind_is_noticed,
    test_an_operation_carried_out_wrongly_is_named,
    test_an_operation_that_the_adapter_forgets_is_named,
    test_networks_that_compute_in_another_dtype_are_noticed,
)

pytestmark = pytest.mark.beside_kernels
