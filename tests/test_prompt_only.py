"""`--edits prompt-only`: nothing but the text of strings may change, whoever proposes."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from pathlib import Path

import pytest
from agent_runs import DOMAIN, H0, SNIPPETS, run_search
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs import Harness
from whale_envs.harness.load import load_harness
from whale_train import options
from whale_train.arguments import parse
from whale_train.meta_harness.archive import Archive, tree_hash
from whale_train.meta_harness.prompt_only import beyond_strings, refused_edit
from whale_train.meta_harness.proposers.archive_tools import Desk, ToolInputError
from whale_train.meta_harness.proposers.base import Proposal
from whale_train.meta_harness.proposers.brief import system_prompt
from whale_train.meta_harness.proposers.mutation import MutationProposer, draw_edit, edits_of, string_edits_of
from whale_train.meta_harness.proposers.scripted import ScriptedProposer
from whale_train.meta_harness.search import SearchSettings

SOURCES = [load_harness(n, d).source for d in ("search-qa", "math", "chess") for n in ("h0", "strong")]
CONFIG = SearchSettings(rounds=2, candidates=2, tasks=6, backoff=0, edits="prompt-only")
POLITE = H0.source.replace("Question:", "The question, please:")

ALLOWED = {
    "a = 'x'": 'a = "another"',
    "a = 'x' 'y'": "a = '''z\n'''",
    "a = f'{b} c'": "a = f'C {b}'",
    "a = f'{b}'": "a = f'Say {b}!'",
    "a = f'{b:>{w}}{c!r}'": "a = f'x{b:>{w}}y{c!r}z'",
    "a = {'k': 1}": "a = {'l': 1}",
    "def f():\n    return 'x'": 'def f():\n    """Says."""\n    return "y"  # so',
    "a = u'x'": "a = ''",
}
REFUSED = {
    "a = 'x'": "a = b'x'",
    "a = 'y'": "a = f'y'",
    "a = 'z'": "a = None",
    "a = b'x'": "a = b'y'",
    "a = 1": "a = True",
    "b = 1": "b = 1.0",
    "a = f'{b}'": "a = f'{c}'",
    "a = f'{b} '": "a = f'{b}{b}'",
    "a = f'{b:>3}'": "a = f'{b:>4}'",
    "a = f'{b!r}'": "a = f'{b!s}'",
    "a = f'{b}{c}'": "a = f'{c}{b}'",
    "f('x')": "f('x', 'y')",
    "f(k='x')": "f(l='x')",
    "import re": "import json",
    "a = 2": "a = 2\nb = 'x'",
    "a = 'x'; b = 1": "a = 'x'",
    "a = ['x']": "a = ('x',)",
    "def f(): return 'x'": "def g(): return 'x'",
    "def f(a): return 'x'": "async def f(a): return 'x'",
    "x = -1": "x = 1",
    "x = 'a' if y else z": "x = 'a' if z else y",
}


@pytest.mark.parametrize("before", sorted(ALLOWED))
def test_what_only_strings_tell_apart_is_allowed(before: str) -> None:
    assert beyond_strings(before, ALLOWED[before]) == beyond_strings(ALLOWED[before], before) == ""


@pytest.mark.parametrize("before", sorted(REFUSED))
def test_what_anything_else_tells_apart_is_not(before: str) -> None:
    assert "line" in beyond_strings(before, REFUSED[before])
    assert "line" in beyond_strings(REFUSED[before], before)


class Rewritten(ast.NodeTransformer):
    """Puts other words into all strings; and, if it is to, something else in one other place."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(f"w{self.rng.random()}") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        kept = [v for v in node.values if isinstance(v, ast.FormattedValue)]
        words = [ast.Constant(f"w{self.rng.random()}") for _ in range(len(kept) + 1)]
        mixed = [part for pair in zip(words, kept, strict=False) for part in pair]
        return ast.JoinedStr([*mixed, words[-1]])


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SOURCES), st.integers(0, 2**32))
def test_all_strings_at_once_may_change_and_one_other_thing_beside_them_may_not(source: str, seed: int) -> None:
    rng = random.Random(seed)
    tree = Rewritten(rng).visit(ast.parse(source))
    assert beyond_strings(source, ast.unparse(ast.fix_missing_locations(tree))) == ""
    others = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute | ast.arg | ast.Return | ast.keyword)]
    others += [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int]
    node = rng.choice(others)
    if isinstance(node, ast.Return):
        node.value = ast.Tuple([node.value or ast.Constant(None)], ast.Load())
    elif isinstance(node, ast.Constant):
        node.value += 1
    else:
        name = {ast.Name: "id", ast.Attribute: "attr"}.get(type(node), "arg")
        setattr(node, name, f"{getattr(node, name)}_")
    assert beyond_strings(source, ast.unparse(ast.fix_missing_locations(tree)))


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(SOURCES), st.integers(0, 2**32))
def test_edits_of_strings_are_all_those_that_touch_nothing_else(source: str, seed: int) -> None:
    rng = random.Random(seed)
    for edit in rng.sample(edits_of(source), 5):
        assert (edit in string_edits_of(source)) == (beyond_strings(source, edit.text) == "")
    drawn = draw_edit(source, defaultdict(lambda: 1.0), rng, strings=True)
    if drawn:
        assert beyond_strings(source, drawn.text) == "" and tree_hash(drawn.text) != tree_hash(source)


def test_deep_nesting_is_compared_without_a_deep_stack() -> None:
    deep = "a = " + "-" * 900 + "1"
    assert beyond_strings(deep, deep) == ""
    assert beyond_strings(deep, deep[:-1] + "2") == f"line 1 changes more, at `{deep[:60]}`"


# ---------------------------------------------------------------------------------------------- in a search


def test_the_gate_refuses_it_before_anything_is_played_and_says_where(tmp_path: Path) -> None:
    laundered = SNIPPETS.replace("Question:", "The question:")  # its parent is in the archive, but was refused
    proposer = ScriptedProposer(
        Proposal(SNIPPETS, "More is shown.", (H0.hash,)),
        Proposal(POLITE, "Politeness helps.", (H0.hash,)),
        Proposal(laundered, "As its parent.", (Harness(SNIPPETS).hash,)),
    )
    archive = run_search(tmp_path, proposer, CONFIG)
    why = {archive.source(t.hash): t.gate for r in archive.rounds for t in r.tried}
    for source in (SNIPPETS, laundered):
        assert why[source].startswith("contract: only the text of strings may change (--edits prompt-only): line ")
        assert "snippets" in why[source]
    assert why[POLITE] == ""
    assert archive.phase is not None and archive.phase.edits == "prompt-only"
    assert Archive(archive.folder, "search-qa").phase == archive.phase


def test_the_mutation_proposer_wastes_no_candidate_on_what_is_refused(tmp_path: Path) -> None:
    archive = run_search(tmp_path, MutationProposer(), CONFIG)
    tried = [t for r in archive.rounds for t in r.tried]
    assert len(tried) >= 4 and not any(t.gate.startswith("contract: only") for t in tried)
    for seed in range(5):
        for proposal in MutationProposer().propose(archive, 3, seed):
            assert refused_edit(archive, proposal.source) == ""


def test_an_agent_is_told_and_a_submission_is_answered_at_once(tmp_path: Path) -> None:
    archive = run_search(tmp_path, None, SearchSettings(rounds=0, tasks=6, edits="prompt-only"))
    desk, given = Desk(archive, 1, DOMAIN), {"hypothesis": "x", "parents": [H0.hash], "axes": []}
    with pytest.raises(ToolInputError, match="only the text of strings may change"):
        desk.use("submit", {"source": SNIPPETS, **given})
    assert desk.use("submit", {"source": POLITE, **given}) == "taken: 1 of 1"
    assert "only texts may change" in system_prompt("math", "prompt-only")
    assert "only texts may change" not in system_prompt("math")


def test_the_command_line_takes_it_for_search_and_run() -> None:
    for command in ("search", "run"):
        given = parse([command, "--edits", "prompt-only"])
        assert isinstance(given, options.SearchOptions) and given.search.edits == "prompt-only"
        assert parse([command]).search.edits == "all"  # type: ignore[union-attr]
