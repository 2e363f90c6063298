"""Optimizers of Keras that step a float32 master weight of each low parameter.

They are for every adapter whose framework Keras computes with. An optimizer stays the same object,
and its class becomes a subclass of its own. Keras's code for optimizers takes the master weights
for the variables, and so keeps state and averages, and clips, in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from unamp.adapter.framework_types import Optimizer, Tensor, Variable
from unamp.adapter.keras_models import library
from unamp.adapter.wrapping import derived_class
from unamp.dtypes import LOW_DTYPES

# stands for the optimizer's own class, which comes after `MasterWeights` among the bases
_Optimizer: Any = object


def has_master_weights(optimizer: Optimizer) -> bool:
    """Return whether an optimizer steps master weights, so that it takes low gradients."""
    return any(isinstance(inner, MasterWeights) for inner in with_inner(optimizer))


def stepped(optimizer: Optimizer) -> list[Variable]:
    """Return the variables that an optimizer was built for, in its order."""
    return list(vars(optimizer).get("_unamp_parameters") or optimizer._trainable_variables)


def with_inner(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Yield an optimizer and those inside it."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for each in [inner] if inner is not None else getattr(optimizer, "optimizers", ()):
        yield from with_inner(each)


def check_new(optimizer: Optimizer, steps: int) -> None:
    """Check that an optimizer can be given master weights.

    Args:
        optimizer: an optimizer without another one inside.
        steps: the number of steps that it has taken.

    Raises:
        ValueError: where it has master weights, has taken a step, or chooses its inner optimizers
            by a function.
    """
    if isinstance(optimizer, MasterWeights):
        raise ValueError(f"{optimizer.name} has been decorated already")
    if steps > 0:
        raise ValueError(
            f"{optimizer.name} has begun: it has taken {steps} steps; decorate it before"
        )
    if callable(getattr(optimizer, "_optimizer_map", None)) and not hasattr(
        optimizer._optimizer_map, "values"
    ):
        raise ValueError(
            f"{optimizer.name} chooses its optimizers by a function; "
            "give it an OptimizerMap that lists them"
        )


def give_master_weights(
    optimizer: Any, kind: type[MasterWeights], originals: Sequence[tuple[Variable, Tensor]]
) -> None:
    """Have an optimizer step master weights, unless it leaves its steps to optimizers inside it.

    Args:
        optimizer: the optimizer.
        kind: the framework's class of methods.
        originals: variables, each with its value before it became low, from which the master weight
            starts.
    """
    if any(inner is not optimizer for inner in with_inner(optimizer)):
        return
    _change_class(optimizer, kind)
    vars(optimizer)["_unamp_originals"] = {
        optimizer._var_key(variable): value for variable, value in originals
    }


def rebuild(
    optimizers: Sequence[Optimizer],
    steppers: Sequence[Optimizer],
    replaced: Sequence[tuple[Variable, object]],
) -> None:
    """Build optimizers that are built already once more, for the variables as they are now.

    Args:
        optimizers: the optimizers as they were given.
        steppers: the optimizers, and those inside them.
        replaced: variables, each with the object that was inside it before.
    """
    now = {id(old): variable for variable, old in replaced}
    built = [
        (each, [now.get(id(v), v) for v in each._trainable_variables])
        for each in optimizers
        if each.built
    ]
    for optimizer in steppers:
        _rename_exclusions(optimizer, replaced)
        if optimizer.built:
            _unbuild(optimizer)
    for optimizer, variables in built:
        optimizer.build(variables)


def _rename_exclusions(optimizer: Optimizer, replaced: Sequence[tuple[Variable, object]]) -> None:
    """Add replaced variables to the optimizer's exclusions from weight decay.

    Those name a variable by the object that was inside it.
    """
    named = vars(optimizer).get("_exclude_from_weight_decay")
    if named:
        for variable, old in replaced:
            if optimizer._var_key(old) in named:
                named.add(optimizer._var_key(variable))


def _unbuild(optimizer: Optimizer) -> None:
    kept = (optimizer._iterations, optimizer._learning_rate)
    for variable in optimizer._variables[:]:
        if not any(variable is each for each in kept):
            optimizer._untrack_variable(variable)
    optimizer._trainable_variables_indices.clear()
    optimizer._trainable_variables = []
    optimizer.built = False


class MasterWeights(_Optimizer):  # type: ignore[misc] # Keras comes without types
    """The methods that override those of an optimizer's own class.

    Callers see parameters, and Keras's code sees master weights. An adapter derives a class that
    has the methods whose names begin with ``_unamp``.
    """

    def _unamp_outside(self) -> AbstractContextManager[object]:
        """Return a context without a policy, and outside of any graph that is being made."""
        return self._unamp_suspended()

    def _unamp_suspended(self) -> AbstractContextManager[object]:
        """Return a context without a policy."""
        raise NotImplementedError

    def _unamp_master(self, parameter: Variable, original: Tensor | None) -> Variable:
        """Return a new master weight that starts from the original, or, if None, the parameter."""
        raise NotImplementedError

    def _unamp_wide(self, gradient: Tensor | None) -> Tensor | None:
        """Return a gradient in float32 where it is low; what is not low, and None, as it is."""
        raise NotImplementedError

    def _unamp_catch_up(self, master: Variable, parameter: Variable) -> None:
        """Update a master weight, if anybody else has changed its parameter since the last step."""
        raise NotImplementedError

    def _unamp_round(self, parameter: Variable, master: Variable) -> None:
        """Give a parameter the rounded value of its master weight."""
        raise NotImplementedError

    def _unamp_excluded(self, parameter: Variable) -> object:
        """Return a parameter's entry in the optimizer's list of exclusions from weight decay."""
        return parameter

    def build(self, variables: Iterable[Variable]) -> None:
        """Make the master weights of variables, and build Keras's optimizer for those."""
        if self.built:
            return
        parameters = list(variables)
        with self._unamp_outside():
            originals = self.__dict__.pop("_unamp_originals", {})
            masters = [
                self._unamp_made(each, originals.get(self._var_key(each))) for each in parameters
            ]
            pairs = list(zip(parameters, masters, strict=True))
            # In `vars`, past Keras's tracking: they are tracked where they were made.
            self.__dict__.update(
                _unamp_parameters=parameters,
                _unamp_masters={self._var_key(each): master for each, master in pairs},
                _unamp_of_master={self._var_key(master): each for each, master in pairs},
            )
            super().build(masters)

    def apply(
        self,
        grads: Iterable[Tensor | None],
        trainable_variables: Iterable[Variable] | None = None,
    ) -> None:
        """Step the master weights, and round them into the parameters."""
        with self._unamp_suspended():
            if not self.built and trainable_variables is not None:
                with library().name_scope(self.name):
                    self.build(trainable_variables)
            given = stepped(self) if trainable_variables is None else list(trainable_variables)
            masters = self._masters_of(given)
            for parameter, master in zip(given, masters, strict=True):
                if master is not parameter:
                    self._unamp_catch_up(master, parameter)
            try:
                super().apply([self._unamp_wide(each) for each in grads], masters)
            finally:
                # Also after an error: a parameter that is not its rounded master weight would count
                # as changed by somebody else at the next step.
                self._round(given, masters)

    def finalize_variable_values(self, var_list: Iterable[Variable]) -> None:
        """Finalize the master weights, and round them into the parameters."""
        with self._unamp_suspended():
            given = list(var_list)
            masters = self._masters_of(given)
            super().finalize_variable_values(masters)
            self._round(given, masters)

    def load_own_variables(self, store: object) -> None:
        """Load the state with the master weights, and round them into the parameters."""
        super().load_own_variables(store)
        self._round(stepped(self), self._trainable_variables)

    def set_weights(self, weights: object) -> None:
        """Set the state with the master weights, and round them into the parameters."""
        super().set_weights(weights)
        self._round(stepped(self), self._trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """Return a config that holds the plain optimizer's own."""
        plain: Any = next(
            each for each in type(self).__mro__ if not issubclass(each, MasterWeights)
        )
        config = super().get_config()
        return {
            **config,
            "optimizer": library().utils.serialize_keras_object(plain.from_config(dict(config))),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: object = None) -> Optimizer:
        """Return an optimizer that steps master weights, of the class in the config."""
        made = library().utils.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        _change_class(made, cls.__mro__[1])
        return made

    def _unamp_made(self, parameter: Variable, original: Tensor | None) -> Variable:
        if str(library().backend.standardize_dtype(parameter.dtype)) not in LOW_DTYPES:
            return parameter
        master = self._unamp_master(parameter, original)
        master.constraint = getattr(parameter, "constraint", None)
        return master

    def _masters_of(self, parameters: Iterable[Variable]) -> list[Variable]:
        masters = self.__dict__["_unamp_masters"]
        return [masters.get(self._var_key(each), each) for each in parameters]

    def _round(self, parameters: Iterable[Variable], masters: Iterable[Variable]) -> None:
        for parameter, master in zip(parameters, masters, strict=True):
            if master is not parameter:
                self._unamp_round(parameter, master)

    def _use_weight_decay(self, variable: Variable) -> bool:
        # Keras 3.16 asks for the excluded variables when it builds the optimizer, and looks here.
        decided = hasattr(super(), "_is_excluded_from_weight_decay")
        return bool(
            super()._use_weight_decay(
                variable if decided else self._unamp_named_in_exclusions(variable)
            )
        )

    def _is_excluded_from_weight_decay(self, variable: Variable) -> bool:
        return bool(
            super()._is_excluded_from_weight_decay(self._unamp_named_in_exclusions(variable))
        )

    def _unamp_named_in_exclusions(self, variable: Variable) -> object:
        """Return the entry of a variable in the list of exclusions, which name parameters."""
        return self._unamp_excluded(
            self.__dict__["_unamp_of_master"].get(self._var_key(variable), variable)
        )


def _change_class(optimizer: object, kind: Any) -> None:
    of: Any = type(optimizer)
    object.__setattr__(optimizer, "__class__", with_masters(of, kind))


@cache
def with_masters(of: Any, kind: Any) -> type:
    """Return the subclass of an optimizer's class that steps master weights.

    Keras can load optimizers that were saved with that class from then on.
    """
    made = derived_class(of, {}, (kind,))
    registered: type = library().utils.register_keras_serializable("unamp", "MasterWeights")(made)
    return registered
