"""The patches of TensorFlow's code that must know about regions.

`acquire` applies them with the first open region of the process, `release` undoes them with the
last. Each replacement asks first whether the calling thread is in a region, and calls the original
where it is not: a patch is seen by all threads. The patched names are private. `probe` checks
TensorFlow's before the first region; Keras's are checked in the first region with Keras.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from unamp._function_types import Function
from unamp.adapter import keras_metrics, keras_policies
from unamp.adapter.keras_models import facts as keras_facts
from unamp.adapter.patching import Patch, Patches, find, missing
from unamp.adapter.replacing import AttributePatch, CodePatch, PatchGroup
from unamp.adapter.state import runs_without_policy, suspended
from unamp.adapter.wrapping import own_methods
from unamp_tensorflow import calls, compiling, distributions, stated_dtypes, training
from unamp_tensorflow.facts import facts
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import Plan, thread

# --- applying and undoing -------------------------------------------------------------------------


def acquire(plan: Plan) -> None:
    """Apply the patches that a plan needs, unless they are applied already, until `release`."""
    with_keras, libraries = keras_in_use(), distributions.imported()
    installed.acquire(
        (plan, with_keras, libraries),
        lambda: (
            *([_keras_patches()] if with_keras else ()),
            *([distributions.patches(libraries)] if libraries else ()),
            *plan.patches,
        ),
    )


def _forget() -> None:
    thread.plan, thread.sink, thread.recorded = None, None, False


@contextmanager
def patched(plan: Plan) -> Iterator[None]:
    """Apply the patches that a plan needs while the context is open."""
    acquire(plan)
    try:
        yield
    finally:
        release()


# --- the patches ----------------------------------------------------------------------------------

Hooks: TypeAlias = tuple[tuple[str, str, Callable[[Function], Function]], ...]

#: Methods that take only values in the dtype of their object: module, class, the argument's place
#: and name, and the methods.
_TAKING = (
    ("tensorflow.python.ops.tensor_array_ops", "TensorArray", 0, "value", ("unstack", "split")),
    ("tensorflow.python.ops.tensor_array_ops", "TensorArray", 1, "value", ("write", "scatter")),
    (
        "tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable", 0, "value",
        ("assign",),
    ),
    (
        "tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable", 0, "delta",
        ("assign_add", "assign_sub"),
    ),
    (
        "tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable", 3, "value",
        ("_strided_slice_assign",),
    ),
    (
        "tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable", 0, "sparse_delta",
        (
            "batch_scatter_update", "scatter_add", "scatter_div", "scatter_max",
            "scatter_min", "scatter_mul", "scatter_sub", "scatter_update",
        ),
    ),
    (
        "tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable", 1, "updates",
        (
            "scatter_nd_add", "scatter_nd_max", "scatter_nd_min", "scatter_nd_sub",
            "scatter_nd_update",
        ),
    ),
)  # fmt: skip


def _taking() -> Hooks:
    return tuple(
        (module, f"{home}.{method}", stated_dtypes.taking(position, name))
        for module, home, position, name, methods in _TAKING
        for method in methods
    )


#: Functions of Python code: the module, the path inside it, and the maker of the replacement.
_HOOKS: Hooks = (
    ("tensorflow.python.framework.op_def_library", "_apply_op_helper", calls.add_node),
    ("tensorflow.python.eager.execute", "must_record_gradient", calls.must_record),
    # TensorFlow adds an `Identity` for each result of a graph; a rule must not cast there.
    (
        "tensorflow.python.framework.auto_control_deps",
        "AutomaticControlDependencies.mark_as_return",
        runs_without_policy(thread),
    ),
    # Loops and branches, called by a user or made by AutoGraph: each value has one dtype.
    ("tensorflow.python.ops.while_loop", "while_loop", compiling.while_loop),
    ("tensorflow.python.ops.cond_v2", "cond_v2", compiling.branches),
    ("tensorflow.python.ops.cond_v2", "indexed_case", compiling.indexed_case),
    (
        "tensorflow.python.autograph.operators.control_flow",
        "_tf_while_stmt",
        compiling.while_statement,
    ),
    ("tensorflow.python.autograph.operators.control_flow", "_tf_if_stmt", compiling.if_statement),
    (
        "tensorflow.python.data.ops.dataset_autograph",
        "_tf_ag_dataset_for_stmt",
        compiling.dataset_statement,
    ),
    ("tensorflow.python.data.ops.dataset_ops", "DatasetV2.reduce", compiling.dataset_reduce),
    ("tensorflow.python.data.ops.scan_op", "_ScanDataset.__init__", compiling.dataset_scan),
    (
        "tensorflow.python.data.ops.concatenate_op",
        "_ConcatenateDataset.__init__",
        compiling.dataset_concatenation,
    ),
    (
        "tensorflow.python.data.ops.directed_interleave_op",
        "_DirectedInterleaveDataset.__init__",
        compiling.dataset_selection,
    ),
    # It vectorises the body of a loop, which has the casts as nodes already.
    ("tensorflow.python.ops.parallel_for.pfor", "PFor.convert", runs_without_policy(thread)),
    # Functions that state a dtype and take no other.
    ("tensorflow.python.ops.array_ops", "_autopacking_conversion_function", stated_dtypes.packing),
    ("tensorflow.python.framework.tensor", "Tensor.__tf_tensor__", stated_dtypes.as_tensor),
    ("tensorflow.python.framework.tensor", "TensorSpec.cast", stated_dtypes.as_specified),
    (
        "tensorflow.python.eager.polymorphic_function.concrete_function",
        "ConcreteFunction._call_flat",
        stated_dtypes.as_arguments,
    ),
    ("tensorflow.python.ops.math_ops", "cast", stated_dtypes.casting),
    ("tensorflow.python.ops.gen_array_ops", "bitcast", stated_dtypes.casting),
    (
        "tensorflow.python.ops.resource_variable_ops",
        "ResourceVariable._init_from_args",
        stated_dtypes.initial,
    ),
    *_taking(),
    *(
        (module, path, stated_dtypes.drawing)
        for module, paths in facts().drawing.items()
        for path in paths
    ),
    ("tensorflow.python.ops.map_fn", "_result_value_flat_to_batchable", stated_dtypes.map_result),
    (
        "tensorflow.python.data.ops.padded_batch_op",
        "_padding_value_to_tensor",
        stated_dtypes.padding,
    ),
    ("tensorflow.python.framework.sparse_tensor", "SparseTensor.__mul__", stated_dtypes.agreeing),
    (
        "tensorflow.python.framework.sparse_tensor",
        "SparseTensor.__truediv__",
        stated_dtypes.agreeing,
    ),
    (
        "tensorflow.python.ops.linalg.linear_operator_util",
        "convert_nonref_to_tensor",
        stated_dtypes.of_operator,
    ),
    ("tensorflow.python.ops.check_ops", "assert_near", stated_dtypes.agreeing),
    ("tensorflow.python.ops.linalg.linalg_impl", "eigh_tridiagonal", stated_dtypes.agreeing),
    ("tensorflow.python.ops.script_ops", "EagerFunc.__init__", stated_dtypes.python_function),
    ("tensorflow.python.ops.script_ops", "py_func_common", stated_dtypes.numpy_function),
    # A backward pass runs in the dtypes of its forward, by the same two functions of TensorFlow.
    ("tensorflow.python.eager.imperative_grad", "imperative_grad", runs_without_policy(thread)),
    ("tensorflow.python.ops.gradients_util", "_GradientsHelper", runs_without_policy(thread)),
    ("tensorflow.python.eager.forwardprop", "_jvp_helper", runs_without_policy(thread)),
    ("tensorflow.python.eager.backprop", "GradientTape.jacobian", training.differentiating),
    ("tensorflow.python.eager.backprop", "GradientTape.batch_jacobian", training.differentiating),
    (
        "tensorflow.python.ops.custom_gradient",
        "_eager_mode_decorator",
        training.custom_gradient(patched),
    ),
    (
        "tensorflow.python.ops.custom_gradient",
        "_graph_mode_decorator",
        training.custom_gradient(patched),
    ),
    ("tensorflow.python.training.optimizer", "Optimizer.apply_gradients", training.stepping),
    ("tensorflow.python.distribute.distribute_lib", "StrategyExtendedV2.update", training.updating),
    ("tensorflow.python.ops.clip_ops", "clip_by_average_norm", training.clipping),
    ("tensorflow.python.ops.clip_ops", "clip_by_global_norm", training.clipping),
    ("tensorflow.python.ops.clip_ops", "global_norm", training.clipping),
    # A new thread has no region, and a strategy makes threads for its replicas.
    (
        "tensorflow.python.distribute.mirrored_run",
        "_MirroredReplicaThread.__init__",
        training.replica_made,
    ),
    (
        "tensorflow.python.distribute.mirrored_run",
        "_MirroredReplicaThread.run",
        training.replica_run,
    ),
    (
        "tensorflow.python.distribute.mirrored_run",
        "_MirroredReplicaContext._merge_call",
        training.merging,
    ),
)

#: The copy of Keras 2 that TensorFlow imports with itself; a later version may not have it.
_OLD_KERAS = "tensorflow.python.keras."

#: The function that makes the keys of graphs, which must also hold the rules for single layers.
_COMPILERS: Hooks = (
    (
        "tensorflow.python.eager.polymorphic_function.function_context",
        "make_function_context",
        compiling.keyed,
    ),
)


#: Methods of linear operators whose first argument must be in the operator's dtype.
_OF_OPERATORS = ("add_to_tensor", "matmul", "matvec", "solve", "solvevec")


@cache
def _patches() -> PatchGroup:
    fast = AttributePatch(pywrap_tfe, "TFE_Py_FastPathExecute", lambda own: calls.execute_eagerly)
    operators = (
        CodePatch(method, stated_dtypes.taking(0, list(inspect.signature(method).parameters)[1]))
        for method in own_methods(tf.linalg.LinearOperator, _OF_OPERATORS)
    )
    return PatchGroup([fast, *_changes(_HOOKS), *operators, *_suspended(of_keras=False)])


@cache
def _changed_compilers() -> tuple[Patch, ...]:
    return tuple(_changes(_COMPILERS))


@cache
def _keras_patches() -> PatchGroup:
    # Made when a region opens with Keras: a program may import it late, or never.
    hooks: Hooks = (
        *keras_policies.hooks(thread, training.is_keras_input),
        *keras_metrics.hooks(
            partial(suspended, thread), lambda: thread.plan is not None, training.widened
        ),
    )
    return PatchGroup([*_changes(hooks), *_suspended(of_keras=True)])


compilers = Patches(_changed_compilers)
installed = Patches(lambda: (_patches(),), _forget, compilers)
release = installed.release


def _changes(hooks: Hooks) -> Iterator[Patch]:
    for module, path, replacement in hooks:
        yield CodePatch(_function(module, path), replacement)


def _suspended(*, of_keras: bool) -> Iterator[Patch]:
    for module, paths in (*facts().suspended.items(), *keras_facts().suspended.items()):
        if module.startswith("keras") is not of_keras:
            continue
        if module.startswith(_OLD_KERAS) and module not in sys.modules:
            continue
        for path in paths:
            # A step also takes gradients that a program made low.
            steps = module == "keras.optimizers" and path.endswith(".apply")
            yield CodePatch(
                _function(module, path),
                training.keras_stepping if steps else runs_without_policy(thread),
            )


# --- checking that the names exist ----------------------------------------------------------------


def probe() -> None:
    """Check that every patched name is a function of Python code.

    Raises:
        FrameworkNotSupported: naming the version of TensorFlow and what is missing.
    """
    for module, path, _ in (*_HOOKS, *_COMPILERS):
        _function(module, path)


def _function(module: str, path: str) -> types.FunctionType:
    found = find(module, path, importing=True)
    if not isinstance(found, types.FunctionType):
        raise missing("tensorflow", tf.__version__, f"function {module}.{path}")
    return found
