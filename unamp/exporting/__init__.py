"""A policy in the words of tools that convert exported models: the operations and nodes that they are to leave in float32."""

from unamp.exporting.lists import TOOLS, ExportLists, export_lists

__all__ = ["TOOLS", "ExportLists", "export_lists"]
