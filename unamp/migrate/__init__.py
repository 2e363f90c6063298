"""Rewrite the mixed precision of a code base: `unamp migrate`.

It needs libcst, which the extra `migrate` brings.

One file goes through `migrating`. `screening` tells quickly whether there is anything in it,
`names` finds the frameworks' names with libcst's scopes, `deciding` says what becomes of each, with
`calls` for its arguments, `settling` what becomes of the imports, and `rewriting` writes the text.
`watching` looks for what no name resolves; `regions` reads policies out of calls.
"""

from unamp.migrate.deciding import Target
from unamp.migrate.files import Report, migrate_paths
from unamp.migrate.findings import FileResult, Finding, Kind, RegionPolicy
from unamp.migrate.migrating import migrate_source

__all__ = [
    "FileResult",
    "Finding",
    "Kind",
    "RegionPolicy",
    "Report",
    "Target",
    "migrate_paths",
    "migrate_source",
]
