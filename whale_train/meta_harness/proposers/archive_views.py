"""How a proposer that is a model is shown what an archive holds: a hypothesis always beside what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from whale_envs import Episode
from whale_train.meta_harness.records import Candidate, Outcome

if TYPE_CHECKING:
    from whale_train.meta_harness.proposers.archive_tools import Desk

#: Most characters of one line of a file.
MAX_LINE = 4_000


def result_of(desk: Desk, candidate: Candidate) -> str:
    """What came of a candidate under the present weights, and what that is against its parents."""
    score = desk.score(candidate)
    if candidate.gate:
        return f"refused: {candidate.gate}"
    if score is None:
        return "no score under the present weights"
    shown = f"{score.mean:.3f} ± {1.96 * score.se:.3f} on {score.n} tasks, {score.turns:.1f} model calls"
    if score.dropped:
        shown += ", dropped from the race"
    for parent in candidate.parents:
        before = desk.score(desk.archive[parent]) if parent in desk.archive else None
        if before and before.n == score.n:
            shown += f", {score.mean - before.mean:+.3f} against {parent}"
    return shown


def candidate_line(desk: Desk, candidate: Candidate) -> str:
    """A candidate with its result, where it comes from, and what its author expected."""
    made = f"from {', '.join(candidate.parents) or 'nothing'}; axes: {', '.join(candidate.axes) or 'none'}"
    expected = cut(candidate.hypothesis.strip(), 600)
    return f"{candidate.hash}  {result_of(desk, candidate)}; {made}; {candidate.born}\n    expected: {expected}"


def frontier(desk: Desk) -> Iterable[str]:
    """The harnesses that solve what the best does not, each with the tasks that it adds to those above it."""
    for hash, tasks in desk.archive.frontier().items():
        shown = ", ".join(tasks[:12]) + (", ..." if len(tasks) > 12 else "")
        yield f"frontier: {hash} solves {len(tasks)} tasks that neither the best nor one above it here does: {shown}"


def outcome_line(outcome: Outcome) -> str:
    """What came of one task."""
    failed = f", failed: {outcome.failed}" if outcome.failed else ""
    return f"{outcome.task}  {outcome.score:g}  {outcome.turns} calls{failed}  {cut(outcome.reason, 300)}"


def transcript(episode: Episode) -> str:
    """An episode whole, with its tool calls and behaviours."""
    behaviours = ", ".join(f"{k} {'yes' if v else 'no'}" for k, v in episode.behaviours.items())
    return "\n".join([episode.transcript(), *tool_lines(episode), f"behaviours: {behaviours}"])


def tool_lines(episode: Episode) -> Iterable[str]:
    """An episode's tool calls with their results, or with what a tool said that refused or failed."""
    for call in episode.tool_calls:
        result = call.error or json.dumps(msgspec.to_builtins(call.result), ensure_ascii=False)
        yield cut(f"[after model call {call.after}] {call.written()} {'failed:' if call.error else '->'} {result}")


def cut(text: str, limit: int = MAX_LINE) -> str:
    """The first `limit` characters, and how many more there are."""
    return text if len(text) <= limit else f"{text[:limit]} [cut: {len(text) - limit:,} more characters]"
