"""A report's part on episodes: the same test tasks at the start and at the end, side by side.

Which ones is settled before anybody has seen them: the tasks whose ids have the smallest SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape

from whale_envs import Episode
from whale_train.report.data import Run
from whale_train.report.elements import folded, note

#: Tasks that are shown.
SHOWN = 10


def episodes(run: Run) -> Iterable[str]:
    """Ten tasks as the first arm played them at the start (left) and at the end (right)."""
    arm = run.arms[0]
    pairs = pick(arm.episodes(0), arm.episodes(-1)) if len(arm.curve) > 1 else []
    if not pairs:
        return
    yield f"<h2>Episodes of {escape(arm.label)} at the start and at the end</h2>"
    yield note(
        f"The {len(pairs)} test tasks whose ids have the smallest SHA-256, whatever came of them; of each the first of"
        f" its {run.k} episodes, with the same seed left and right."
    )
    for i, (before, after) in enumerate(pairs):
        title = f"<code>{escape(before.task_id)}</code> · start {_verdict(before)}, end {_verdict(after)}"
        sides = "".join(_side(when, episode) for when, episode in (("start", before), ("end", after)))
        yield folded(title, f'<div class="pair">{sides}</div>', open=i == 0)


def pick(before: Sequence[Episode], after: Sequence[Episode]) -> list[tuple[Episode, Episode]]:
    """Pairs of the same task and seed, one a task: of the `SHOWN` tasks whose ids have the smallest hashes, the first
    episode that both have."""
    last = {(e.task_id, e.seed): e for e in after}
    pairs: dict[str, tuple[Episode, Episode]] = {}
    for episode in before:
        if (episode.task_id, episode.seed) in last:
            pairs.setdefault(episode.task_id, (episode, last[episode.task_id, episode.seed]))
    chosen = sorted(pairs, key=lambda task: hashlib.sha256(task.encode()).digest())[:SHOWN]
    return [pairs[task] for task in chosen]


def _verdict(episode: Episode) -> str:
    return '<span class="ok">right</span>' if episode.solved else '<span class="bad">wrong</span>'


def _side(when: str, episode: Episode) -> str:
    said = f"{when} · {_verdict(episode)} · {escape(episode.verdict.reason)}"
    return f'<div><div class="note">{said}</div><pre class="talk">{_talk(episode)}</pre></div>'


def _talk(episode: Episode) -> str:
    text = escape(episode.transcript())
    return re.sub(r"^\[(system|user|assistant|tool)\] ", r'<b class="\1">\1</b>  ', text, flags=re.MULTILINE)
