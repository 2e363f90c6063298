"""`unamp migrate` turns snippets of real use into the code that a person would write."""

from __future__ import annotations

import ast
import functools
import io
import textwrap
import tokenize

import pytest
from snippets import FRAMEWORKS, Snippet, corpus, every_snippet

from unamp.migrate import FileResult, Kind, Target, migrate_source

TARGETS = {"u": Target.UNAMP, "d": Target.DIALECTS}
migrated = functools.cache(migrate_source)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("snippet", every_snippet(), ids=str)
def test_a_snippet_becomes_what_it_has_to(snippet: Snippet, target: str) -> None:
    done = migrated(snippet.before, TARGETS[target])
    assert done.text == snippet.texts[target]
    ast.parse(done.text)
    besides = [finding for finding in done.findings if finding.kind is not Kind.MOVED]
    expected = snippet.findings[target]
    assert sorted(finding.kind.value for finding in besides) == sorted(
        kind for kind, _ in expected
    ), besides
    for kind, words in expected:
        assert any(finding.kind.value == kind and words in str(finding) for finding in besides), (
            words,
            besides,
        )
    for finding in besides:
        assert finding.why
        assert finding.kind is Kind.NOTE or finding.hand
    # Only a change is reported as moved; a second run finds nothing to move.
    assert _moves(done) is (done.text != snippet.before)
    twice = migrated(done.text, TARGETS[target])
    assert twice.text == done.text
    assert not _moves(twice)


def _moves(done: FileResult) -> bool:
    return any(finding.kind is Kind.MOVED for finding in done.findings)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_corpus_is_large_enough(framework: str) -> None:
    least = {"apex": 20, "jax": 12}.get(framework, 60)
    names = [snippet.name for snippet in corpus(framework)]
    assert len(set(names)) == len(names) >= least


@pytest.mark.parametrize("snippet", every_snippet(), ids=str)
def test_comments_stay(snippet: Snippet) -> None:
    for target in TARGETS.values():
        after = migrated(snippet.before, target).text
        lost = _comments(snippet.before) - _comments(after)
        # Comments inside a removed import go with it.
        assert all(f"{comment}\n" in _inside_of_imports(snippet.before) for comment in lost), lost


def _comments(text: str) -> set[str]:
    return {
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }


def _inside_of_imports(text: str) -> str:
    tree = ast.parse(textwrap.dedent(text))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = text.splitlines(keepends=True)
    return "".join("".join(lines[node.lineno - 1 : (node.end_lineno or 0) - 1]) for node in imports)
