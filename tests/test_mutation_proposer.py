"""The mutation proposer: every edit is a readable harness that keeps the contract, and good ones compose."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whale_envs import Harness, HarnessEnv, Reply
from whale_envs.domains import load_domain
from whale_envs.harness.audit import Finding
from whale_envs.harness.load import load_harness
from whale_train.meta_harness.archive import Archive, tree_hash
from whale_train.meta_harness.proposers.base import ProposerError
from whale_train.meta_harness.proposers.code import Code
from whale_train.meta_harness.proposers.crossover import merge, titled, trail
from whale_train.meta_harness.proposers.mutation import (
    UNTRIED,
    MutationProposer,
    axis_weights,
    draw_edit,
    edits_of,
)
from whale_train.meta_harness.records import Phase, Score, ScoreKey

pytestmark = pytest.mark.usefixtures("no_fsync")

DOMAINS = ("search-qa", "math", "chess")
SOURCES = {(d, n): load_harness(n, d).source for d in DOMAINS for n in ("h0", "strong")}
KEY = ScoreKey("weights", "data", 0)

#: What a model may say: nothing, no format, each domain's format well used and badly, a reply cut off.
REPLIES = (
    "",
    "I am not sure.",
    "<search>the spouse of Ada</search>",
    "<search></search>",
    "<answer>Ada",
    "<answer>Ada</answer>",
    "<python>print(6 * 7)</python>",
    "\\boxed{42}",
    "\\boxed{4",
    "<move>e2e4</move>",
    "<move>e2e4</move> or <move>d2d4</move>",
)


def archive_of(folder: Path, domain: str, *means: float) -> Archive:
    """An archive with h0 and, for each further mean, a child of it by one edit."""
    archive, rng = Archive(folder, domain), random.Random(0)
    source = SOURCES[domain, "h0"]
    first = archive.add(source, "The start.", (), (), "start")
    for at, mean in enumerate(means):
        candidate = first
        if at:
            edit = None
            while edit is None or tree_hash(edit.text) in {c.tree for c in archive.candidates}:
                edit = draw_edit(source, defaultdict(lambda: 1.0), rng)
            candidate = archive.add(edit.text, edit.expects, (first.hash,), (edit.axis,), f"candidate {at}")
        archive.record(candidate.hash, KEY, Score(mean, 0.03, 100, 2.0, f"unit {at}"), [])
    archive.begin(Phase("search", KEY), first.hash)
    return archive


def play(harness: Harness, domain: str, seed: int) -> HarnessEnv:
    """An episode of a harness with replies drawn by seed."""
    env, rng = HarnessEnv(load_domain(domain), harness=harness, split="harness"), random.Random(seed)
    env.reset(seed=seed)
    while not env.done:
        env.step(Reply(rng.choice(REPLIES), rng.choice(["stop", "length"])))
    env.close()
    return env


@pytest.mark.parametrize("domain,name", sorted(SOURCES))
def test_every_edit_is_a_harness_that_differs_and_defines_what_it_uses(domain: str, name: str) -> None:
    source = SOURCES[domain, name]
    edits = edits_of(source)
    assert len({e.axis for e in edits}) >= 15
    for edit in edits:
        Harness(edit.text)
        assert not Code(edit.text).undefined(), edit
        assert tree_hash(edit.text) != tree_hash(source) or edit.axis == "exchange", edit
        assert ast.get_docstring(ast.parse(edit.text)) == ast.get_docstring(ast.parse(source))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(domain=st.sampled_from(DOMAINS), seed=st.integers(0, 2**32), steps=st.integers(1, 4))
def test_chains_of_edits_keep_the_contract(domain: str, seed: int, steps: int) -> None:
    rng, source = random.Random(seed), SOURCES[domain, "h0"]
    for _ in range(steps):
        edit = draw_edit(source, defaultdict(lambda: 1.0), rng)
        if edit is not None:
            source = titled(edit.text, [f"{edit.axis} ({edit.what})"])
    episode = play(Harness(source, trusted=True), domain, seed).episode
    assert episode is not None
    assert episode.failure is None, f"{episode.failure}\n{source}"


def test_edits_of_other_shapes_than_the_shipped_ones() -> None:
    source = '''"""Two turns, as the design's example has it."""
from whale_envs.harness import system, user, tool, tag

SYSTEM = "Answer factual questions. Search when you need to."
TURNS, PASSAGES, WORDS = 2, 1, 200

def run(task, tools):
    messages = [system(SYSTEM), user(f"Question: {task.question}\\nAnswer in <answer>...</answer>.")]
    for _ in range(TURNS):
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            return answer
        found = tools.search(tag(reply.text, "search") or "", k=PASSAGES)
        messages += [reply.message, tool("\\n".join(p.head(WORDS) for p in found))]
    return None
'''
    axes = {e.axis for e in edits_of(source)}
    assert {"reminder", "snippets by query", "TURNS up", "PASSAGES up", "query from task", "last chance"} <= axes
    for edit in edits_of(source):
        episode = play(Harness(edit.text, trusted=True), "search-qa", 1).episode
        assert episode is not None
        assert episode.failure is None, edit.text


def test_code_outside_ascii_and_with_comments_is_kept_as_it_is() -> None:
    comment = "# Größe: 日本 → 🙂\n"
    source = SOURCES["search-qa", "h0"].replace("TURNS = 3\n", f'NAME = "é🙂"; TURNS = 3  {comment}')
    edit = next(e for e in edits_of(source) if e.axis == "TURNS up")
    assert edit.text == source.replace("TURNS = 3", "TURNS = 4")


def test_known_good_mechanisms_are_in_reach_and_compose_to_the_hand_written_harness() -> None:
    source = SOURCES["search-qa", "h0"]
    for axis, what in (
        ("reminder", "Write"),
        ("snippets by query", "2 sentences"),
        ("PASSAGES up", "1 to 2"),
        ("TURNS up", "3 to 4"),
        ("TURNS up", "4 to 5"),
    ):
        source = next(e.text for e in edits_of(source) if e.axis == axis and what in e.what)
    by_hand = SOURCES["search-qa", "strong"]
    assert _run_of(source) == _run_of(by_hand)
    values = {k: ast.literal_eval(v) for k, v in Code(source).constants().items() if k != "REMINDER"}
    assert values == {k: ast.literal_eval(v) for k, v in Code(by_hand).constants().items() if k != "REMINDER"}


def _run_of(source: str) -> str:
    run = next(s for s in ast.parse(source).body if isinstance(s, ast.FunctionDef) and s.name == "run")
    return ast.dump(run)


def test_good_mechanisms_come_up_within_a_few_rounds_whatever_the_seed(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, "search-qa", 0.3)
    wanted = {"reminder", "snippets by query", "PASSAGES up", "TURNS up"}
    for start in (0, 1000):
        seen: set[str] = set()
        for seed in range(start, start + 40):
            seen |= {a for p in MutationProposer().propose(archive, 3, seed) for a in p.axes}
        assert wanted <= seen


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**48))
def test_proposals_are_new_different_readable_and_repeatable(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = archive_of(tmp_path_factory.mktemp("archive"), "search-qa", 0.3, 0.4, 0.25, 0.35)
    known = {c.tree for c in archive.candidates}
    proposals = MutationProposer().propose(archive, 3, seed)
    assert proposals == MutationProposer().propose(archive, 3, seed)
    trees = {tree_hash(p.source) for p in proposals}
    assert len(trees) == len(proposals) == 3
    assert not trees & known
    for proposal in proposals:
        Harness(proposal.source)
        assert proposal.axes and proposal.hypothesis
        assert all(p in archive for p in proposal.parents)
        assert "Changed by search" in (ast.get_docstring(ast.parse(proposal.source)) or "")
        assert max(len(line) for line in proposal.source.splitlines()) <= 180


def test_better_ancestors_are_drawn_more_often(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, "search-qa", 0.2, 0.5, 0.2, 0.2)
    best = archive.scored()[0].hash
    parents = [p.parents[0] for seed in range(30) for p in MutationProposer().propose(archive, 2, seed)]
    assert parents.count(best) > len(parents) / 2


def test_axes_that_helped_are_drawn_more_and_those_that_did_not_less(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, "search-qa", 0.3)
    start = archive.accepted
    source = SOURCES["search-qa", "h0"]
    for at, (axis, mean) in enumerate((("reminder", 0.5), ("TURNS down", 0.1))):
        text = next(e.text for e in edits_of(source) if e.axis == axis)
        child = archive.add(text, "", (start,), (axis,), f"candidate {at}")
        archive.record(child.hash, KEY, Score(mean, 0.03, 100, 2.0, f"unit {at}"), [])
    archive.add("broken", "", (start,), ("retry",), "candidate 9", [Finding("contract", "it does not parse")])
    worth = axis_weights(archive)
    assert worth["reminder"] > 1.5
    assert worth["TURNS down"] < 0.5
    assert worth["retry"] < 1 < worth["never tried"] == UNTRIED


def test_without_a_scored_harness_the_proposer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProposerError, match="no harness with a score"):
        MutationProposer().propose(Archive(tmp_path, "math"), 3, 0)


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=8).map("".join)


@given(base=LINES, ours=LINES)
def test_merge_of_one_side_is_that_side(base: str, ours: str) -> None:
    assert merge(base, ours, base) == ours
    assert merge(base, base, ours) == ours
    assert merge(base, ours, ours) == ours


def test_merge_joins_what_two_ancestors_changed_apart() -> None:
    base = SOURCES["search-qa", "h0"]
    reminder = next(e.text for e in edits_of(base) if e.axis == "reminder")
    snippets = next(e.text for e in edits_of(base) if e.axis == "snippets by query")
    turns = next(e.text for e in edits_of(base) if e.axis == "TURNS up")
    joined = merge(base, turns, merge(base, snippets, turns) or "")
    assert joined is not None
    assert "TURNS = 4" in joined and "snippets(" in joined
    both = merge(base, turns, reminder)
    assert both is not None and "REMINDER" in both and "TURNS = 4" in both


def test_a_docstring_tells_each_change_once() -> None:
    source = titled(
        titled(SOURCES["math", "h0"], ["TURNS up (2 to 3)"]), ["TURNS up (2 to 3)", "retry (when `code is None`)"]
    )
    title, told = trail(source)
    assert told == ["TURNS up (2 to 3)", "retry (when `code is None`)"]
    assert title == ast.get_docstring(ast.parse(SOURCES["math", "h0"]))
    assert tree_hash(source) == tree_hash(SOURCES["math", "h0"])
