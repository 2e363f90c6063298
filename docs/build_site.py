"""Build the site: README.md, the other files at the root, and docs/, with the API reference.

`python docs/build_site.py [FOLDER]` writes the pages of this version to FOLDER/VERSION; FOLDER is
`site` by default. Other versions in FOLDER stay, and each page's menu leads to them. README.md is
the front page; CONTRIBUTING.md, SECURITY.md and CHANGELOG.md are pages. A link to any other file of
the repository becomes plain text, the file's path: the site does not hold the source. Zensical
builds the site by `mkdocs.yml`, from a copy of the pages; its warnings are errors.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from packaging.version import Version

ROOT = Path(__file__).parents[1]

#: The pages that are files at the root of the repository, by their names in the site.
FROM_ROOT = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
_IN_SITE = {file: page for page, file in FROM_ROOT.items()}

#: The front page has few headings and wide code: it is shown without a table of contents.
_WIDE = "---\nhide:\n  - toc\n---\n"

_LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
#: The head of a code block that our tests write to a file. Markdown does not know the word `file=`,
#: and would not take the block as code.
_FILE = re.compile(r"^(```\w+) file=(\S+)$", re.MULTILINE)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)

#: The page at the root of all versions: it leads to the newest.
_NEWEST = (
    "<!doctype html>\n<title>unamp</title>\n"
    '<meta http-equiv="refresh" content="0; url={version}/index.html">\n'
)


def led(markdown: str, source: str) -> str:
    """Return a page's text whose relative links lead to pages of the site, or become plain text.

    Args:
        markdown: the text of the page.
        source: the page's name in the site, such as `api/index.md`.
    """
    folder = "" if source in FROM_ROOT else posixpath.dirname(f"docs/{source}")

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        at_root = posixpath.normpath(posixpath.join(folder, target))
        to = _IN_SITE.get(
            at_root, at_root.removeprefix("docs/") if at_root.startswith("docs/") else None
        )
        if to is None:
            return text if text.strip("`") == at_root else f"{text} (`{at_root}`)"
        return f"[{text}]({posixpath.relpath(to, posixpath.dirname(source) or '.')}{anchor})"

    return _FILE.sub(r'\1 title="\2"', _LINK.sub(link, markdown))


def _named(table: re.Match[str]) -> str:
    """Return a table whose cells have the names of their columns.

    On a phone each cell stands below that name.
    """
    columns = [
        _TAG.sub("", name).strip().replace(chr(34), "&quot;")
        for name in re.findall(r"<th\b[^>]*>(.*?)</th>", table[0], re.DOTALL)
    ]

    def row(match: re.Match[str]) -> str:
        names = iter(columns)
        return re.sub(
            r"<td\b",
            lambda cell: f'<td data-column="{name}"' if (name := next(names, "")) else cell[0],
            match[0],
        )

    return re.sub(r"<tr>.*?</tr>", row, table[0], flags=re.DOTALL)


def write_pages(folder: Path) -> None:
    """Write the pages, and the files that they show or name, into a folder."""
    shutil.copytree(
        ROOT / "docs",
        folder,
        ignore=lambda at, names: [
            n for n in names if at == str(ROOT / "docs") and n.endswith(".py")
        ],
    )
    for page in folder.rglob("*.md"):
        page.write_text(led(page.read_text("utf-8"), page.relative_to(folder).as_posix()), "utf-8")
    for name, file in FROM_ROOT.items():
        text = led((ROOT / file).read_text("utf-8").replace('src="docs/', 'src="'), name)
        (folder / name).write_text(_WIDE + text if name == "index.md" else text, "utf-8")


def build(site: Path) -> str:
    """Build the site of this version; return the complaints of the build, empty without any.

    Args:
        site: the folder of all versions.
    """
    version = this_version()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pages(folder / "pages")
        config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
        config |= {"docs_dir": "pages", "site_dir": "site", "copyright": f"unamp {version}"}
        for plugin in config["plugins"]:
            if isinstance(plugin, dict) and "mkdocstrings" in plugin:
                python = plugin["mkdocstrings"]["handlers"]["python"]
                python["paths"] = [str(ROOT / path) for path in python["paths"]]
                python["options"]["extensions"] = [
                    str(ROOT / file) for file in python["options"]["extensions"]
                ]
        (folder / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
        command = [
            sys.executable,
            "-m",
            "zensical",
            "build",
            "--strict",
            "--config-file",
            str(folder / "mkdocs.yml"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        said = _COLOR.sub("", done.stdout + done.stderr)
        # a strict build does not fail by griffe's complaints about docstrings: look for them
        if done.returncode or re.search(r"^(griffe|Warning|Error|mkdocs)", said, re.MULTILINE):
            return said
        for page in (folder / "site").rglob("*.html"):
            page.write_text(_TABLE.sub(_named, page.read_text("utf-8")), "utf-8")
        # a server has a 404 page of its own at its root, where the links of this one would break
        (folder / "site/404.html").unlink()
        shutil.rmtree(site / version, ignore_errors=True)
        shutil.copytree(folder / "site", site / version)
    _list_versions(site)
    return ""


def this_version() -> str:
    """Return the version whose pages are built."""
    return str(_VERSION.findall((ROOT / "unamp/_version.py").read_text("utf-8"))[0])


def _list_versions(site: Path) -> None:
    """Write the list of versions for the pages' menu, and the page that leads to the newest."""
    versions = sorted(
        (page.parent.name for page in site.glob("[0-9]*/index.html")), key=Version, reverse=True
    )
    listed = [{"version": version, "title": version, "aliases": []} for version in versions]
    (site / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", "utf-8")
    (site / "index.html").write_text(_NEWEST.format(version=versions[0]), "utf-8")


if __name__ == "__main__":
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    if complaints := build(site):
        sys.exit(complaints)
    print(site / this_version() / "index.html")
