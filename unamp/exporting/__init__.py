"""Lists for tools that convert exported models: the operations and nodes to leave in float32."""

from unamp.exporting.lists import TOOLS, export_lists
from unamp.exporting.policies import ExportLists

__all__ = ["TOOLS", "ExportLists", "export_lists"]
