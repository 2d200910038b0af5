"""The ledger: what was spent, one JSON line a unit of work. A unit that runs again after a kill is counted once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from whale_envs import Episode, Reply
from whale_envs.errors import UserError


class Spent(msgspec.Struct, frozen=True):
    """What one unit of work cost.

    `key` names the unit (its phase, step or candidate) and is unique in a ledger; `kind` is "sampling",
    "training", "search", "proposer" or "test". Tokens are counted as the policy counts them; test rollouts are
    kept apart from the budget, since a user who deploys does not pay for them. `dollars` is what services asked: the
    proposer's, and beside rollouts a judge model's and that of a policy behind an API; `judge` is the judge's part.
    """

    key: str
    kind: str
    rollouts: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    dollars: float = 0.0
    judge: float = 0.0


class Ledger:
    """An append-only file of `Spent` lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, Spent] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    spent = msgspec.json.decode(line, type=Spent)
                except msgspec.DecodeError:
                    continue  # the line that a kill cut short: its unit runs again and is written again
                self.lines[spent.key] = spent

    def add(self, spent: Spent) -> None:
        """Write a line, unless its unit is there already."""
        if spent.key in self.lines:
            return
        self.lines[spent.key] = spent
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size > 0
        try:
            with self.path.open("ab") as file:
                file.write((b"\n" if torn else b"") + msgspec.json.encode(spent) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"cannot write {self.path}: {error.strerror}; free some space, then run the same command again"
            ) from error

    def rollouts(self, *kinds: str) -> int:
        """Rollouts of these kinds so far (of every kind but "test" when none is named)."""
        return sum(s.rollouts for s in self.lines.values() if (s.kind in kinds if kinds else s.kind != "test"))

    def by_kind(self) -> dict[str, Spent]:
        """Totals, one `Spent` a kind, keyed by it."""
        kinds = sorted({s.kind for s in self.lines.values()})
        return {k: total(k, [s for s in self.lines.values() if s.kind == k]) for k in kinds}


def total(kind: str, lines: Sequence[Spent]) -> Spent:
    """The sum of these lines, as one of this kind."""
    fields = ("rollouts", "prompt_tokens", "sampled_tokens", "trained_tokens", "seconds", "dollars", "judge")
    return Spent(kind, kind, **{f: sum(getattr(s, f) for s in lines) for f in fields})


def tokens(episodes: Iterable[Episode]) -> tuple[int, int]:
    """(prompt tokens, sampled tokens) over all calls, where the policy knows its tokens or their number."""
    counts = [_counted(c.reply) for e in episodes for c in e.calls]
    return sum(prompt for prompt, _ in counts), sum(sampled for _, sampled in counts)


def _counted(reply: Reply) -> tuple[int, int]:
    return reply.counted or (len(reply.prompt_ids or ()), len(reply.completion_ids or ()))


def dollars(episodes: Iterable[Episode]) -> float:
    """Dollars that services asked for these episodes: a judge model, and an endpoint that is the policy."""
    return sum(e.verdict.dollars + sum(c.reply.dollars for c in e.calls) for e in episodes)


def judge_dollars(episodes: Iterable[Episode]) -> float:
    """The judge model's part of them."""
    return sum(e.verdict.dollars for e in episodes)
