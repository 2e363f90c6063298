"""Do what MkDocs does not do by itself: pages for the files at the root of the repository, and links that lead out of the site.

README.md is the front page; CONTRIBUTING.md, SECURITY.md and CHANGELOG.md are pages. A link to any other file of the repository
becomes its path: the site does not hold the source.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

#: The pages that are files at the root, by their names in the site.
FROM_ROOT = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
_IN_SITE = {file: page for page, file in FROM_ROOT.items()}

#: The front page has few headings, and wide code.
_WIDE = "---\nhide:\n  - toc\n---\n"

_LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the root."""
    for page, file in FROM_ROOT.items():
        text = (ROOT / file).read_text("utf-8").replace('src="docs/', 'src="')
        files.append(File.generated(config, page, content=_WIDE + text if page == "index.md" else text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have every relative link lead to a page of the site, or to none."""
    source = page.file.src_uri
    folder = "" if source in FROM_ROOT else posixpath.dirname(f"docs/{source}")

    def led(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        at_root = posixpath.normpath(posixpath.join(folder, target))
        to = _IN_SITE.get(at_root, at_root.removeprefix("docs/") if at_root.startswith("docs/") else None)
        if to is None:
            return text if text.strip("`") == at_root else f"{text} (`{at_root}`)"
        return f"[{text}]({posixpath.relpath(to, posixpath.dirname(source) or '.')}{anchor})"

    return _LINK.sub(led, markdown)
