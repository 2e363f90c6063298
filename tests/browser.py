"""The browser in which the tests open pages: an installed Chromium or Chrome.

`make test` runs this file first. Where there is no browser, it installs Debian's, or prints what to
install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: Options that switch off the browser's own requests. The pages need nothing from outside,
#: and nothing may ask for it.
FLAGS = [
    f"--{flag}"
    for flag in (
        "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync",
    )
]  # fmt: skip
DESK, PHONE = (1280, 900), (390, 844)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ELSEWHERE = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
ADVICE = (
    "the tests of pages need Chromium or Chrome, and there is none: install it (on Debian: "
    "apt-get install chromium; elsewhere: https://www.google.com/chrome), or say where it is: "
    "CHROMIUM=/path/to/chrome make test"
)


def find() -> str | None:
    """Return the browser's path; None where there is none.

    The variable CHROMIUM names it; else the first one that is found is taken.
    """
    if named := os.environ.get("CHROMIUM"):
        return shutil.which(named)
    return next((path for name in (*NAMES, *ELSEWHERE) if (path := shutil.which(name))), None)


def overflow(page: Page) -> int:
    """Return the number of pixels by which the page is wider than its window."""
    return page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def installs() -> bool:
    """Return whether this process may install Debian's package."""
    return (
        os.geteuid() == 0 and shutil.which("apt-get") is not None and "CHROMIUM" not in os.environ
    )


def install() -> None:
    """Install Debian's package."""
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
    subprocess.run(
        ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", "chromium"],
        env=quiet,
        check=True,
    )


def main() -> None:
    """Find or install a browser; else exit with advice."""
    if find() is None and installs():
        print("no browser: installing Debian's chromium for the tests of pages", flush=True)
        try:
            install()
        except subprocess.CalledProcessError as error:
            sys.exit(f"{' '.join(error.cmd)}: exit status {error.returncode}\n{ADVICE}")
    if find() is None:
        sys.exit(ADVICE)


if __name__ == "__main__":
    main()
