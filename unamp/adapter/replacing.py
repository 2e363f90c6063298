"""The kinds of patches: each replaces a part of a framework while it is applied.

- `CodePatch`: a Python function, for all code that holds it already: the function stays the same
  object
- `AttributePatch`: an attribute of a module or a class, which callers look up at every call
- `PropertiesPatch`: many attributes of a module, at the cost of one assignment
- `NamesPatch`: names in a module's dictionary
- `MethodsPatch`: many methods of a class, operators among them, at the cost of a few assignments
- `PatchGroup`: many patches that are applied and undone in one go

All keep one promise (`unamp.adapter.patching.Patch`): a replacement that somebody else has put in
the same place meanwhile stays.
"""

from __future__ import annotations

import gc
import re
import textwrap
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from itertools import chain
from typing import Any

from unamp._function_types import Function
from unamp.adapter.patching import Patch

#: Takes an original function, and returns the function that is called in its place.
Replacement = Callable[[Function], Function]

#: Begins a string in source code that stands for a constant, until its value is put in. The name of
#: the constant follows.
_MARK = "unamp: "
_FORWARDING = "def stand_in(*args, **kwargs):\n return CALL(*args, **kwargs)\n"

#: The same for a generator: from Python 3.13 on a generator function takes no other kind of code.
_FORWARDING_GENERATOR = (
    "def stand_in(*args, **kwargs):\n return (yield from CALL(*args, **kwargs))\n"
)

#: `inspect.CO_GENERATOR`: to import that takes a tenth of the time in which `unamp` is imported.
_GENERATOR = 0x20


class CodePatch:
    """A Python function that runs other code.

    All code that holds the function sees the change, under whatever name and since whenever.

    Args:
        function: the function.
        replacement: takes the original, as another function, and returns the function to call in
            its place; or returns code, made with `code_of`, that runs in its place without a call.

    Attributes:
        function: the function.
        original: another function, with the code that the function had.
    """

    __slots__ = ("_instead", "_own", "function", "original")

    def __init__(
        self,
        function: types.FunctionType,
        replacement: Callable[[types.FunctionType], Function | types.CodeType],
    ) -> None:
        self.function = function
        self._own = code = function.__code__
        self.original = types.FunctionType(
            code,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        # a decorated function has its signature there
        self.original.__dict__.update(function.__dict__)
        instead = replacement(self.original)
        if not isinstance(instead, types.CodeType):
            source = _FORWARDING_GENERATOR if code.co_flags & _GENERATOR else _FORWARDING
            instead = code_of(source, {"CALL": instead}, closed_over=len(code.co_freevars))
        self._instead = instead.replace(
            co_name=code.co_name,
            co_qualname=code.co_qualname,
            co_filename=code.co_filename,
            co_firstlineno=code.co_firstlineno,
            co_freevars=code.co_freevars,  # a compiler may look up what the function closes over
        )

    @property
    def codes(self) -> tuple[types.FunctionType, types.CodeType, types.CodeType]:
        """The function, its own code, and the code that it runs instead."""
        return self.function, self._own, self._instead

    @property
    def applied(self) -> bool:
        """Return whether the function runs other code than its own."""
        return self.function.__code__ is not self._own

    def apply(self) -> None:
        """Give the function the other code."""
        self.function.__code__ = self._instead

    def undo(self) -> None:
        """Give the function its own code back."""
        if self.function.__code__ is self._instead:
            self.function.__code__ = self._own


class AttributePatch:
    """An attribute of a module or a class.

    Args:
        home: the module or class. A class has an inherited attribute itself while this is applied.
        name: the attribute's name.
        instead: takes the original value, and returns the replacement.
    """

    __slots__ = ("_instead", "_name", "_own", "home")

    _ABSENT = object()

    def __init__(self, home: object, name: str, instead: Callable[[Any], object]) -> None:
        self.home = home
        self._name = name
        self._own = vars(home).get(name, self._ABSENT)
        self._instead = instead(getattr(home, name) if self._own is self._ABSENT else self._own)

    def apply(self) -> None:
        """Set the attribute to the replacement."""
        setattr(self.home, self._name, self._instead)

    def undo(self) -> None:
        """Set the attribute back to the original."""
        if vars(self.home).get(self._name) is not self._instead:
            return
        if self._own is self._ABSENT:
            delattr(self.home, self._name)
        else:
            setattr(self.home, self._name, self._own)


class PropertiesPatch:
    """Many attributes of a module, at the cost of one assignment.

    The module's class is exchanged for one with a property for each name: properties go before the
    module's own dictionary.

    Args:
        module: the module.
        instead: the value of each attribute while this is applied. A value that somebody else puts
            in its place meanwhile is not seen.
    """

    __slots__ = ("_classes", "_module")

    def __init__(self, module: types.ModuleType, instead: Mapping[str, object]) -> None:
        self._module = module
        own = type(module)
        properties = {
            name: property({module: value}.__getitem__) for name, value in instead.items()
        }
        self._classes = (
            own,
            type(own.__name__, (own,), {"__module__": own.__module__, **properties}),
        )

    def apply(self) -> None:
        """Give the module the class with the replacements."""
        self._module.__class__ = self._classes[1]

    def undo(self) -> None:
        """Give the module its own class back."""
        own, instead = self._classes
        if type(self._module) is instead:
            self._module.__class__ = own


class NamesPatch:
    """Names in a dictionary, such as a module's or a class's, each there already or not.

    Args:
        space: the dictionary.
        instead: the value of each name while this is applied.
    """

    __slots__ = ("_instead", "_own", "_space")

    def __init__(self, space: dict[str, object], instead: Mapping[str, object]) -> None:
        self._space = space
        self._instead = dict(instead)
        self._own = {name: space[name] for name in instead if name in space}

    def apply(self) -> None:
        """Set the names to the replacements; a name that has another value by now keeps it."""
        space, own = self._space, self._own
        for name, value in self._instead.items():
            if space.get(name) is own.get(name):
                space[name] = value

    def undo(self) -> None:
        """Set the names back to the originals."""
        space, own = self._space, self._own
        for name, value in self._instead.items():
            if space.get(name) is value:
                if name in own:
                    space[name] = own[name]
                else:
                    del space[name]


class MethodsPatch:
    """Methods of a class, its own or inherited ones; operators may be among them.

    Each assignment to a class clears Python's caches of the class, and updates the slots of its
    operators. To pay for that once, the methods go to the class's dictionary directly, and one
    assignment clears the caches. The slots stay: they call whatever function is found, before and
    after.

    Args:
        of: the class.
        instead: the replacements, by the methods' names.

    Raises:
        TypeError: where an operator is a slot in C, which does not look into the dictionary.
    """

    __slots__ = ("_names", "_of")

    def __init__(self, of: type, instead: Mapping[str, object]) -> None:
        if slots := [
            name
            for name in instead
            if isinstance(getattr(of, name, None), types.WrapperDescriptorType)
        ]:
            raise TypeError(f"{of.__name__}: {', '.join(slots)} is not a function")
        self._of = of
        self._names = NamesPatch(gc.get_referents(vars(of))[0], instead)

    def apply(self) -> None:
        """Give the class the replacements."""
        self._names.apply()
        # clears Python's caches of the class, as any assignment does
        self._of.__doc__ = self._of.__doc__

    def undo(self) -> None:
        """Give the class its own methods back."""
        self._names.undo()
        self._of.__doc__ = self._of.__doc__


class PatchGroup:
    """Patches that are applied and undone in one go.

    A region opens and closes as fast as these loops run.

    Args:
        patches: the patches.

    Attributes:
        patches: the patches.
    """

    __slots__ = ("_codes", "_objects", "_others", "patches")

    def __init__(self, patches: Iterable[Patch]) -> None:
        self.patches = tuple(patches)
        self._codes = tuple(patch.codes for patch in self.patches if isinstance(patch, CodePatch))
        # MindSpore has over a thousand, and a step between two regions drives them out of the
        # processor's caches. `apply` and `undo` first copy this tuple: that fetches all of them
        # together, and the loops take a quarter less.
        self._objects = tuple(chain.from_iterable(self._codes))
        self._others = tuple(patch for patch in self.patches if not isinstance(patch, CodePatch))

    def apply(self) -> None:
        """Apply all of them."""
        list(self._objects)
        for function, own, instead in self._codes:
            if function.__code__ is own:  # code that somebody else gave it stays
                function.__code__ = instead
        for patch in self._others:
            patch.apply()

    def undo(self) -> None:
        """Undo all of them."""
        list(self._objects)
        for function, own, instead in self._codes:
            if function.__code__ is instead:
                function.__code__ = own
        for patch in self._others:
            patch.undo()


def as_replacement(run: Function) -> Replacement:
    """Decorate a function that is called in an original's place; return a `Replacement`.

    The decorated function takes the original before the arguments. It is called always;
    `unamp.adapter.state.in_regions` decorates one that is called in regions alone.
    """

    @wraps(run)
    def replacement(original: Function) -> Function:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return run(original, *args, **kwargs)

        return call

    return replacement


def code_of(
    source: str, constants: Mapping[str, object], *, closed_over: int = 0
) -> types.CodeType:
    """Return the code of a function that has constants where its source has names.

    It can look nothing up: its globals are those of the function that it replaces.

    Args:
        source: the definition of the function.
        constants: the values of upper-case names in it.
        closed_over: the number of variables that the replaced function closes over.
    """
    code = _marked(source, frozenset(constants), closed_over)
    marks = {_MARK + name: value for name, value in constants.items()}
    return code.replace(
        co_consts=tuple(marks.get(c, c) if type(c) is str else c for c in code.co_consts)
    )


@cache
def _marked(source: str, constants: frozenset[str], closed_over: int) -> types.CodeType:
    source = re.sub(
        r"\b[A-Z]+\b",
        lambda name: repr(_MARK + name[0]) if name[0] in constants else name[0],
        source,
    )
    if closed_over:
        names = [f"closed_over_{n}" for n in range(closed_over)]
        head, body = re.match(  # type: ignore[union-attr]
            r"\s*(def .*\):\n)(.*)", source, re.DOTALL
        ).groups()
        inside = re.match(" +", body)[0]  # type: ignore[index]
        closing = f"{head}{inside}if 0: {', '.join(names)}\n{body}"
        source = f"def outer():\n {'='.join(names)}=None\n{textwrap.indent(closing, ' ')}"
    with warnings.catch_warnings():
        # "'str' object is not callable": the mark is exchanged before the code ever runs.
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(source, "<unamp>", "exec")
    for _ in range(2 if closed_over else 1):
        code = next(const for const in code.co_consts if isinstance(const, types.CodeType))
    return code
