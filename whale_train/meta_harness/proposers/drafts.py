"""A draft of a candidate, played on recorded replies: what a harness would show and do, without a rollout.

It runs jailed, as every candidate does. The verdict is left out: a proposer must not measure what only the evaluator
counts, and the replies are no longer the model's once the prompts differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whale_envs import Domain, Episode, Harness, HarnessEnv, Reply
from whale_envs.harness.jail import Jail
from whale_train.meta_harness.proposers.archive_views import tool_lines


def try_draft(domain: Domain, harness: Harness, recorded: Sequence[Episode]) -> Iterator[str]:
    """What comes of each recorded episode's task and replies under another harness, as text."""
    jail = Jail(harness)
    try:
        for episode in recorded:
            yield _tried(domain, harness, jail, episode)
    finally:
        jail.close()


def _tried(domain: Domain, harness: Harness, jail: Jail, recorded: Episode) -> str:
    env = HarnessEnv(domain, harness=harness, split="harness", jail=jail)
    replies, asked, other = [c.reply for c in recorded.calls], 0, None
    try:
        _, info = env.reset(seed=recorded.seed, options={"task": recorded.task_id})
        while not env.done:
            if (ask := info["ask"]) is not None:
                known = recorded.calls[asked] if asked < len(replies) else None
                same = known is not None and ask == known.ask()
                asked += 1
                other = other if same or other else asked
            _, _, _, _, info = env.step(replies[asked - 1] if 0 < asked <= len(replies) else Reply(""))
        played = env.episode
        assert played is not None
        verdict = f"answer {played.answer!r} · score {played.score:g} · {played.verdict.reason}"
        shown = [played.transcript().removesuffix(verdict).rstrip("\n"), *tool_lines(played)]
        said = f"from call {other} on, it asks something else than was recorded" if other else "it asks as recorded"
        end = f"it returns {played.answer!r}, after {asked} model calls"
        return "\n".join([*shown, f"[{end}, of {len(replies)} recorded; {said}]"])
    finally:
        env.close()
