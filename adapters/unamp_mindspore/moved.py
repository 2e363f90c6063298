"""Find the modules of MindSpore that moved in 2.9, and check the names that unamp needs in them."""

from __future__ import annotations

import importlib
from types import ModuleType

import mindspore

from unamp.adapter import major_minor
from unamp.adapter.patching import missing
from unamp.adapter.spellings import at_path

#: The path of each module before 2.9, and since.
_PLACES = {
    "api": ("mindspore.common.api", "mindspore.graph.api"),
    "jit_trace": ("mindspore.common.jit_trace", "mindspore.graph.jit_trace"),
    "jit_context": ("mindspore.common.jit_context", "mindspore.graph.jit_context"),
    "parser": ("mindspore._extends.parse.parser", "mindspore.graph._parse.parser"),
    "capturing": ("mindspore.common._pijit_context", "mindspore.graph._utils.pijit_context"),
}

#: The names that each module must have, in every version.
_NEEDED = {
    "api": (
        "_JitExecutor.compile",
        "_CellGraphExecutor.compile",
        "_PyNativeExecutor.grad",
        "_pynative_executor._executor.requires_grad",
        "_pynative_executor.sync",
    ),
    "jit_trace": ("_jit_trace_begin",),
    "jit_context": ("jit_context",),
    "parser": (
        "Parser.parse",
        "Parser.check_is_base_ctx",
        "resolve_symbol",
        "get_module_namespace",
        "get_class_member_namespace_symbol",
        "create_instance",
    ),
    "capturing": ("PIJitCaptureContext.__enter__", "PIJitCaptureContext.__exit__"),
}


def _module(name: str) -> ModuleType:
    """Return one of the modules.

    Raises:
        FrameworkNotSupported: naming MindSpore's version, and the missing module or name.
    """
    path = _PLACES[name][major_minor(mindspore.__version__) >= (2, 9)]
    try:
        module = importlib.import_module(path)
    except ImportError:
        raise missing("mindspore", mindspore.__version__, path) from None
    for needed in _NEEDED[name]:
        if at_path(module, needed) is None:
            raise missing("mindspore", mindspore.__version__, f"{path}.{needed}")
    return module


api, jit_trace, parser = _module("api"), _module("jit_trace"), _module("parser")
jit_context = _module("jit_context").jit_context
PIJitCaptureContext = _module("capturing").PIJitCaptureContext
