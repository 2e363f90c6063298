"""Rules for single modules, those of Keras too: a module with a rule gets a derived class."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn
from torch.fx import Proxy
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from unamp.adapter.keras_layers import KerasLayers
from unamp.adapter.layers import Layered, LayerRegion, RulesInForce, derive, put_by_class
from unamp.errors import NotExpressible
from unamp_torch import keras, patches
from unamp_torch.networks import within

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)

#: Modules of generated or compiled code, in which a derived class would have no effect.
_FIXED = (torch.jit.ScriptModule, torch.fx.GraphModule)


#: In evaluation PyTorch computes these with one operator, which calls none of the layers inside,
#: unless a layer inside has hooks.
_FAST = nn.TransformerEncoderLayer

_HOOK = "unamp"


class TorchLayers(Layered):
    """See `unamp.adapter.layers.Layered`."""

    def __init__(self) -> None:
        self._in_fast: dict[int, nn.Module] = {}  # by identity
        self._keras = KerasLayers(partial(_in_force.put, hooks=_patched))

    def unwrapped(self, network: nn.Module) -> nn.Module:
        while True:
            if isinstance(network, _PARALLEL):
                network = network.module
            elif isinstance(compiled := getattr(network, "_orig_mod", None), nn.Module):
                # what torch.compile returns
                network = compiled
            else:
                return network

    def inner(self, layer: nn.Module) -> Iterable[tuple[str, nn.Module]]:
        if isinstance(layer, _FAST) or id(layer) in self._in_fast:
            self._in_fast.update(
                (id(each), each) for each in layer._modules.values() if each is not None
            )
        # The last projection of an attention only holds parameters for its functional form.
        return (
            (name, each)
            for name, each in within(layer)
            if not isinstance(each, NonDynamicallyQuantizableLinear)
        )

    def runs(self, layer: nn.Module) -> bool:
        if keras.is_layer(layer):
            return self._keras.runs(layer)
        return _method(type(layer)) != "forward" or type(layer).forward is not nn.Module.forward

    def check(self, layer: nn.Module, region: LayerRegion) -> None:
        if keras.is_layer(layer):
            self._keras.check(layer, region)
            return
        name = type(layer).__name__
        if isinstance(layer, _FIXED):
            raise NotExpressible(
                f"{name} is made of code that PyTorch has generated, where no rule can be put; put "
                "it on the module first, and script, trace or export then"
            )
        if "forward" in vars(layer) and _method(type(layer)) == "forward":
            raise NotExpressible(
                f"this {name} has a forward of its own, put on the instance, which goes past its "
                "class; put rules on first, or name the layers inside or around it"
            )

    def put(self, layer: nn.Module, region: LayerRegion | None) -> None:
        if keras.is_layer(layer):
            self._keras.put(layer, region)
            return
        put_by_class(layer, region, _derived)
        if region is None:
            layer._forward_pre_hooks.pop(_HOOK, None)  # type: ignore[call-overload]
        elif id(layer) in self._in_fast:
            layer._forward_pre_hooks[_HOOK] = _do_nothing  # type: ignore[index]


#: The rules of Keras' layers. As long as a layer has a rule the patches are kept: a program that is
#: compiled with no region open would otherwise be guarded on functions which are in Keras only
#: while it is traced.
_in_force, _patched = RulesInForce(), patches.kept_for_keras()


def _derived(plain: type) -> type:
    made: Any = derive(plain, _method(plain), _check_not_symbolic)
    made.__prepare_scriptable__ = _refuse
    return made  # type: ignore[no-any-return]


def _method(kind: type[nn.Module]) -> str:
    """Return the method to override: ``forward``, or ``__call__`` in classes with their own."""
    return "forward" if kind.__call__ is nn.Module.__call__ else "__call__"


def _refuse(module: nn.Module) -> NoReturn:
    raise NotExpressible(
        "torch.jit.script compiles a module's source, which no rule for layers is part of: the "
        f"rule on this {type(module).__name__} would be lost; use torch.compile, torch.export or "
        "torch.jit.trace, or remove the rules before"
    )


def _check_not_symbolic(module: nn.Module, *args: object, **kwargs: object) -> None:
    if any(isinstance(value, Proxy) for value in (*args, *kwargs.values())):
        raise NotExpressible(
            f"torch.fx.symbolic_trace writes down what a {type(module).__name__} calls, and no "
            "region: its rule would be lost; make it a leaf of your Tracer (is_leaf_module), or "
            "use torch.export"
        )


def _do_nothing(module: nn.Module, args: tuple[object, ...]) -> None:
    pass
