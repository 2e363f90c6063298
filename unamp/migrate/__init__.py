"""Rewrite the mixed precision of a code base: `unamp migrate`.

It needs libcst, which the extra `migrate` installs.

`migrating` takes one file. `screening` tells quickly whether the file needs a closer look. `names`
finds the frameworks' names with libcst's scopes. `deciding` chooses the new form of each use, with
`calls` for the arguments. `settling` does so for the imports, and `rewriting` writes the text.
`watching` finds spellings that are no names, and `regions` reads policies from calls.
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
