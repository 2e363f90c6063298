"""For every file, the migrated code parses, and a second migration changes nothing.

Code that is not moved stays as it is, to the letter.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from snippets import every_snippet

from unamp.migrate import Kind, Target, migrate_paths, migrate_source

SNIPPETS = [snippet for snippet in every_snippet() if "__future__" not in snippet.before]
migrated = functools.lru_cache(maxsize=4096)(migrate_source)

#: Statements without mixed precision, in layouts that a careless writer would lose.
OTHERS = [
    "x = [1,2 ,  3] # a comment",
    "if  x :\n\ty = 1",
    's = """two\n  lines"""',
    "def f( a,b ) :  return a+ b;",
    "class C :\n  '''d'''\n  z : int=1 # :",
    "\\\n\nassert (x\n  , )",
    "λ = 'ü' r'\\d'",
    "\x0c",
]
endings = st.sampled_from(["\n", "\r\n"])
targets = st.sampled_from(list(Target))


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draw a file of snippets with other statements between, and the other statements."""
    others = draw(st.lists(st.sampled_from(OTHERS), min_size=1, max_size=3))
    parts = [
        part
        for other in others
        for part in (other, draw(st.sampled_from(SNIPPETS)).before.rstrip("\n"))
    ]
    text = "\n".join(parts) + draw(st.sampled_from(["\n", "", "\n\n"]))
    ending = draw(endings)
    return text.replace("\n", ending), [other.replace("\n", ending) for other in others]


@settings(max_examples=40)
@given(files(), targets)
@example(("import torch\r\nx = 1\n", ["x = 1"]), Target.UNAMP)
def test_whatever_is_written(made: tuple[str, list[str]], target: Target) -> None:
    text, others = made
    done = migrate_source(text, target)
    ast.parse(done.text)
    assert all(other in done.text for other in others)
    assert migrate_source(done.text, target).text == done.text
    if not any(finding.kind is Kind.MOVED for finding in done.findings):
        assert done.text == text
    assert (
        done.text.count("\r\n") == done.text.count("\n")
        or "\r\n" not in text
        or text.count("\r\n") != text.count("\n")
    )


@settings(max_examples=60)
@given(
    st.text(alphabet=st.sampled_from(list("abt .()=\n\t#'\"@:,*-\x0c\\1é")), max_size=60), targets
)
def test_text_without_a_spelling_stays(text: str, target: Target) -> None:
    assert migrate_source(text, target) == (text, [], [])


@pytest.mark.parametrize("snippet", SNIPPETS[::20], ids=str)
@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbf%s", b"# -*- coding: latin-1 -*-\nx = '\xe9'\n%s", b"x = '\xc3\xa9'\r\n%s"],
)
def test_encoding_and_mark_stay(tmp_path: Path, snippet: object, content: bytes) -> None:
    path = tmp_path / "script.py"
    before = content % snippet.before.encode()  # type: ignore[attr-defined]
    path.write_bytes(before)
    migrate_paths([path], write=True)
    after = path.read_bytes()
    assert after.startswith(b"\xef\xbb\xbf") is before.startswith(b"\xef\xbb\xbf")
    assert (b"\xe9" in after, b"\xc3\xa9" in after) == (b"\xe9" in before, b"\xc3\xa9" in before)
    encoding = "latin-1" if b"latin-1" in before else "utf-8-sig"
    expected = migrate_source(before.decode(encoding)).text
    assert after.decode(encoding) == expected
