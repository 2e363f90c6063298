"""Regions: where a policy is in force.

A region is a context manager and a decorator. Regions are open in one thread each and nest. Every
exit, also one by an error, puts back what was in force before. A region object may be used again,
by several threads at a time, and inside itself.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from unamp import amp_warnings
from unamp._compiler_marks import not_converted, once_per_trace
from unamp._forking import at_fork, last_in_child
from unamp._function_types import F
from unamp._open_regions import close_down_to as close_down_to
from unamp._open_regions import leave, state
from unamp._open_regions import open_regions as open_regions
from unamp._region_decorator import decorate, in_steps, runs_later
from unamp.adapter import Adapter, Realisation, registry
from unamp.devices import BARE, default_dtype, place
from unamp.errors import shortened
from unamp.lists import is_word, operation_name
from unamp.policy import KEPT_POLICIES, Policy
from unamp.typing import DeviceLike, DtypeLike, Level, OperationsLike, PresetName


class CapturedRegion:
    """A region inside a function that a framework's compiler is tracing: two nodes of its graph.

    A compiler cannot follow a region into its adapters. It can call their `enter_captured` and
    `leave_captured`, if the context manager is itself made inside the traced function, as here.
    """

    def __init__(self, adapter: Adapter, key: int) -> None:
        self.adapter = adapter
        self.key = key

    def __enter__(self) -> CapturedRegion:
        self.adapter.enter_captured(self.key)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.adapter.leave_captured(self.key)

    def __call__(self, function: F) -> F:
        """Decorate a function that is made inside the traced one."""
        later = runs_later(function) == "generator"

        @functools.wraps(function)
        def captured(*args: Any, **kwargs: Any) -> Any:
            if later:
                return in_steps(lambda: self, function(*args, **kwargs))
            with self:
                return function(*args, **kwargs)

        return captured  # type: ignore[return-value]


class Region:
    """A policy, and the frameworks and device on which it is in force while the region is open."""

    def __init__(
        self, policy: Policy, *, framework: str | None = None, device: str | None = None
    ) -> None:
        if framework is not None:
            registry.adapter_for(framework)
        self.policy = policy
        self.framework = framework
        self.device = device
        self._prepared: tuple[Sequence[Adapter] | None, tuple[Realisation, ...]] = (None, ())

    def covers(self, framework: str | None, device: str | None) -> bool:
        """Return whether the region covers a framework and a device; None asks for any."""
        asked = (framework, self.framework), (device, self.device)
        return all(wanted is None or limit is None or limit == wanted for wanted, limit in asked)

    def __repr__(self) -> str:
        where = "".join(
            f", {name}={value!r}"
            for name in ("framework", "device")
            if (value := getattr(self, name))
        )
        return f"Region({self.policy!r}{where})"

    def __getstate__(self) -> dict[str, object]:
        # What adapters made of the policy belongs to this process.
        return {**vars(self), "_prepared": (None, ())}

    def __enter__(self) -> Region:
        adapters = registry.adapters_in_use()
        prepared_for, realisations = self._prepared
        if prepared_for is not adapters or not adapters:  # all empty tuples are one object
            realisations = self._prepare(adapters)
        if len(realisations) == 1:
            # The usual case: no other realisation has to be left where this one raises, and the
            # code for that would cost as much as the entry itself.
            state.open.append((self, realisations, [realisations[0].enter()]))
            return self
        tokens: list[object] = []
        try:
            for realisation in realisations:
                tokens.append(realisation.enter())
        except BaseException:
            leave(realisations, tokens)
            raise
        state.open.append((self, realisations, tokens))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opened = state.open
        if not opened or opened[-1][0] is not self:
            raise RuntimeError(
                f"{self!r} is not the innermost open region of this thread; "
                "regions close in reverse order"
            )
        _, realisations, tokens = opened.pop()
        if len(realisations) == 1:
            realisations[0].exit(tokens[0])
        else:
            leave(realisations, tokens)
            if not realisations and kind is None:
                amp_warnings.nothing_covered(self.policy)
        if error is not None:
            from unamp import error_notes  # only an error needs it

            error_notes.explain(error, trace, self.policy, registry.adapters_in_use())

    def __call__(self, function: F) -> F:
        """Decorate a function, method, generator, coroutine or asynchronous generator function."""
        if isinstance(function, type) or not (
            callable(function) or isinstance(function, classmethod)
        ):
            raise TypeError(f"a region decorates functions and methods, not {function!r:.80}")
        return decorate(self.here, function, self, check_given)

    def regions(self) -> tuple[Region, ...]:
        """Return the regions that open where this decorates a function: the region alone."""
        return (self,)

    @not_converted
    def here(self) -> Region | CapturedRegion:
        """Return the context manager to enter: the region, or its stand-in for a compiler."""
        for adapter in registry.adapters_in_use():
            if adapter.compiling():
                id(self)  # so that what is traced here is used for this region alone
                return CapturedRegion(adapter, self._key(adapter.framework))
        return self

    @once_per_trace
    def _key(self, framework: str) -> int:
        return registry.adapter_for(framework).make_capturable(self)

    def _prepare(self, adapters: tuple[Adapter, ...]) -> tuple[Realisation, ...]:
        if self.framework is None and self.policy.active:
            amp_warnings.left_out(registry.unsuitable(), adapters)
        self.policy.check_known()
        chosen = [a for a in adapters if self.framework in (None, a.framework)]
        realisations = tuple(a.prepare(self.policy, self.device) for a in chosen)
        self._prepared = adapters, realisations  # at once: another thread may read it meanwhile
        for adapter in chosen:
            amp_warnings.slow_dtype(adapter, self.policy, self.device)
            amp_warnings.may_be_faster(adapter, self.policy)
        return realisations


@not_converted
def check_given(mark: Any, given: object) -> None:
    """Raise an error for an argument of a framework that a function's regions cannot cover.

    Args:
        mark: the decorator, which has the regions; see `unamp._region_decorator.decorate`.

    Raises:
        FrameworkNotSupported, AdapterError: see `registry.unsuitable`.
    """
    registry.adapters_in_use()  # `unsuitable` knows of new imports after this alone
    if registry.unsuitable() and any(
        region.framework is None and region.policy.active for region in mark.regions()
    ):
        registry.check_tensors_suitable(given)


@not_converted
def autocast(
    device_type: DeviceLike | None = None,
    dtype: DtypeLike | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
    *,
    level: Level = "O1",
    allow: OperationsLike = (),
    deny: OperationsLike = (),
    preset: PresetName = "unamp",
    promote: bool = False,
    framework: str | None = None,
) -> Region:
    """Return a region in the spelling of `torch.autocast`, with levels and lists.

    Args:
        device_type: the kind of device to which the region is limited; None is every kind.
            ``"gpu"`` or ``"cuda"`` is each framework's accelerator. Otherwise ``"cpu"``, or the
            word or object of an imported framework for a device (``"cuda:0"``, ``"mps"``,
            ``torch.device("meta")``); a kind that one framework alone has limits the region to that
            framework, too. Where there is no such device, a warning says so, and mixed precision is
            off on it.
        dtype: the dtype in which the allow list computes; see `Policy`. ``"float32"`` makes an
            island: nothing is cast down inside, low inputs are widened. None is float16 on a GPU
            and bfloat16 on the CPU, as in torch; without ``device_type`` it is float16 where there
            is a GPU.
        enabled: False switches mixed precision off inside.
        cache_enabled: whether a float32 parameter is cast once in the outermost region; None: yes.
        level, allow, deny, preset, promote: see `Policy`.
        framework: limit the region to one framework; None is every framework that is imported.

    Raises:
        ValueError, TypeError: for bad arguments; see `Policy`.
        FrameworkNotSupported: where the named framework is not installed, imported or suitable.
        NotExpressible: where the policy cannot be honoured on the device.

    Semantics: https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """
    cache = True if cache_enabled is None else cache_enabled
    arguments = device_type, dtype, level, allow, deny, preset, enabled, promote, cache, framework
    return _region_for(_autocast, arguments, enabled, promote, cache)


@not_converted
def auto_cast(
    enable: bool = True,
    custom_white_list: OperationsLike | None = None,
    custom_black_list: OperationsLike | None = None,
    level: Level = "O1",
    dtype: DtypeLike = "float16",
    use_promote: bool = False,
    *,
    preset: PresetName = "paddle",
    framework: str | None = None,
) -> Region:
    """Return a region in the spelling of `paddle.amp.auto_cast`. It takes effect on the CPU too.

    Args:
        enable: False switches mixed precision off inside.
        custom_white_list, custom_black_list: operations to allow and to deny, on top of the
            preset's lists; a bare name is read as Paddle's spelling first (``"mul"`` is Paddle's
            matrix multiplication).
        level, dtype, preset: see `Policy`.
        use_promote: see `Policy`'s ``promote``.
        framework: limit the region to one framework; None is every framework that is imported.

    Raises:
        ValueError, TypeError: for bad arguments; see `Policy`.

    Semantics:
        https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/auto_cast_en.html
    """
    arguments = (
        enable,
        custom_white_list,
        custom_black_list,
        level,
        dtype,
        use_promote,
        preset,
        framework,
    )
    return _region_for(_auto_cast, arguments, enable, use_promote)


amp_guard = auto_cast


@not_converted
def policy_region(policy: Policy, *, framework: str | None = None) -> Region:
    """Return a region for a policy.

    Args:
        policy: the policy.
        framework: limit the region to one framework; None is every framework that is imported.

    Raises:
        TypeError: where ``policy`` is not a `Policy`.
    """
    return _region_for(_policy_region, (policy, framework, None))


@not_converted
@once_per_trace
def current_policy(framework: str | None = None, device: str | None = None) -> Policy | None:
    """Return the policy of this thread's innermost open region; None outside regions.

    Args:
        framework: ask about one imported framework: regions for others do not count. Where no
            region covers it, its own AMP counts, as a policy with the preset ``native``.
        device: ask about one device, ``"cpu"`` or ``"gpu"``.

    Raises:
        ValueError: for an unknown framework or device.
        FrameworkNotSupported: where the framework is not installed, not imported or not suitable.
    """
    if framework is None and device is None:
        return state.open[-1][0].policy if state.open else None
    device = place(device, framework).device
    adapter = None if framework is None else registry.adapter_for(framework)
    for region, _, _ in reversed(state.open):
        if region.covers(framework, device):
            found: Policy = region.policy
            return found
    if adapter is None:
        return None
    asked = adapter.devices() if device is None else (device,)
    return next(
        (policy for each in asked if (policy := adapter.native_policy(each)) is not None), None
    )


@not_converted
def limited_region(policy: Policy, framework: str, device: str | None) -> Region:
    """Return a region for a policy on one framework, and on one device where one is named."""
    return _region_for(_policy_region, (policy, framework, device))


@not_converted
def region_of_values(values: tuple[object, ...], framework: str) -> Region:
    """Return a region for a policy on one framework, from the arguments of the policy.

    A compiler that traces this does not have to trace the making of a policy.
    """
    return _region_for(_region_of_values, (values, framework, None))


def innermost_region() -> Region | None:
    """Return the innermost open region of this thread; None outside regions.

    For adapters that open it again elsewhere.
    """
    return state.open[-1][0] if state.open else None


def keeps_defaults_out(framework: str) -> bool:
    """Return whether a region of this thread covers a framework: no `default_region` opens then.

    For the keys by which adapters have a compiler keep its graphs.
    """
    return any(region.framework in (None, framework) for region, _, _ in state.open)


@not_converted
@once_per_trace
def is_autocast_enabled() -> bool:
    """Return whether a policy that changes anything is in force in this thread."""
    return bool(state.open) and state.open[-1][0].policy.active


@not_converted
@once_per_trace
def get_autocast_dtype() -> str | None:
    """Return the dtype of the policy in force in this thread; None without one that is active."""
    return state.open[-1][0].policy.dtype if is_autocast_enabled() else None


# The makers of regions take their arguments in the order of the tuple that `_region_for` gets: a
# region is kept under that tuple.
def _autocast(
    device_type: DeviceLike | None,
    dtype: DtypeLike | None,
    level: Level,
    allow: OperationsLike,
    deny: OperationsLike,
    preset: PresetName,
    enabled: bool,
    promote: bool,
    cache: bool,
    framework: str | None,
) -> Region:
    device, owner, missing = place(device_type, framework)
    framework = framework or owner
    if missing and enabled:
        amp_warnings.no_such_device(missing)
        enabled = False
    if dtype is None:
        dtype = default_dtype(device, framework)
    policy = Policy(
        level,
        dtype,
        allow=allow,
        deny=deny,
        preset=preset,
        enabled=enabled,
        promote=promote,
        cache=cache,
    )
    return _checked_region(policy, framework, device)


def _auto_cast(
    enable: bool,
    custom_white_list: OperationsLike | None,
    custom_black_list: OperationsLike | None,
    level: Level,
    dtype: DtypeLike,
    use_promote: bool,
    preset: PresetName,
    framework: str | None,
) -> Region:
    if callable(enable):
        raise TypeError(BARE.format("auto_cast"))
    allow, deny = _paddle_names(custom_white_list), _paddle_names(custom_black_list)
    policy = Policy(
        level, dtype, allow=allow, deny=deny, preset=preset, enabled=enable, promote=use_promote
    )
    return _checked_region(policy, framework, None)


def check_policy(policy: object) -> None:
    """Raise a TypeError for a value that is no policy."""
    if not isinstance(policy, Policy):
        raise TypeError(
            f"policy must be an unamp.Policy, not {type(policy).__name__}; "
            "build one with unamp.Policy(...)"
        )


def _policy_region(policy: Policy, framework: str | None, device: str | None) -> Region:
    check_policy(policy)
    return _checked_region(policy, framework, device)


def _region_of_values(values: tuple[Any, ...], framework: str | None, device: str | None) -> Region:
    return _policy_region(Policy(*values), framework, device)


def _region_for(
    make: Callable[..., Region], arguments: tuple[object, ...], *flags: object
) -> Region:
    """Return the region that `make` builds of arguments, one object for equal arguments.

    Where a compiler is tracing, the region is one that it can capture.
    """
    adapters = registry.adapters_in_use()
    for adapter in adapters:
        if adapter.compiling():
            # Not every compiler takes a policy as a constant; all take its arguments. A value that
            # is no policy stays as it is, so that its error is the same as without a compiler.
            if make is _policy_region and isinstance(arguments[0], Policy):
                make, arguments = _region_of_values, (arguments[0]._values, *arguments[1:])
            return CapturedRegion(  # type: ignore[return-value]
                adapter, _key_for(adapter.framework, make, *arguments)
            )
    for flag in flags:
        if type(flag) is not bool:
            return make(*arguments)  # raises an error; the cache below would take 1 for True
    try:
        return _built_once(adapters, make, arguments)
    except TypeError:
        if _is_hashable(arguments):
            # The error is that of `make`, which must not run again: an iterator among its
            # arguments is empty now.
            raise
    hashable = tuple(tuple(each) if type(each) is list else each for each in arguments)
    return _built_once(adapters, make, hashable) if _is_hashable(hashable) else make(*arguments)


def _is_hashable(arguments: tuple[object, ...]) -> bool:
    try:
        hash(arguments)
    except TypeError:
        return False
    return True


# A forked process goes on inside the regions that were open: the rest of its ``with`` blocks
# computes under their policies, and closes them. After a fork, adapters forget the parent's other
# threads: regions close before that, and open again after it.
_forked_inside: list[Region] = []


def _close_in_child() -> None:
    _forked_inside[:] = close_down_to(0)


def _open_in_child() -> None:
    if not _forked_inside:
        return
    while _forked_inside:
        _forked_inside.pop(0).__enter__()
    # A worker process (a DataLoader's, a pool's) runs a function and no rest of a ``with`` block:
    # its regions close before it begins.
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util.register_after_fork(_close_in_worker, _close_in_worker)


def _close_in_worker(_: object) -> None:
    close_down_to(0)


at_fork(after_in_child=_close_in_child)
last_in_child(_open_in_child)


# A region is re-entrant and holds no state, so equal requests share one: opening a region in a
# training loop costs a look-up instead of building a policy anew. A newly imported framework is a
# new request: defaults depend on it.


@functools.lru_cache(KEPT_POLICIES)
def _built_once(
    adapters: object, make: Callable[..., Region], arguments: tuple[object, ...]
) -> Region:
    return make(*arguments)


def _checked_region(policy: Policy, framework: object, device: str | None) -> Region:
    if framework is not None and not isinstance(framework, str):
        raise TypeError(
            "framework must be the import name of one framework, or None for all; "
            f"not {shortened(framework)}"
        )
    return _one_per_policy(policy, registry.adapters_in_use(), framework, device)


@functools.lru_cache(KEPT_POLICIES)
def _one_per_policy(
    policy: Policy, adapters: object, framework: str | None, device: str | None
) -> Region:
    return Region(policy, framework=framework, device=device)


@once_per_trace
def _key_for(framework: str, make: Callable[..., Region], *arguments: object) -> int:
    return registry.adapter_for(framework).make_capturable(make(*arguments))


def _paddle_names(names: OperationsLike | None) -> OperationsLike:
    if names is None:
        return ()
    if isinstance(names, str):
        names = (names,)
    if isinstance(names, Iterable) and not callable(names):
        # torch.ops.aten.add, which lists its overloads, is one entry
        return tuple(
            operation_name("list", n, prefer="paddle")
            if isinstance(n, str) and not is_word(n)
            else n
            for n in names
        )
    return names
