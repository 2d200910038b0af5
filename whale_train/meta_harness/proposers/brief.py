"""What an agent is told: the brief of its domain, and the first message of a round."""

from __future__ import annotations

from pathlib import Path

from whale_envs.harness import helpers
from whale_envs.harness.namespace import ALLOWED_IMPORTS
from whale_train.meta_harness.proposers.archive_tools import Desk
from whale_train.meta_harness.records import Edits

BRIEFS = Path(__file__).parent / "briefs"


def system_prompt(domain: str, edits: Edits = "all") -> str:
    """The brief: what holds in every domain, what holds in this one (nothing for one without a brief of its own), what
    may be edited where that is not all, and what a harness may import."""
    own = BRIEFS / f"{domain}.md"
    parts = [(BRIEFS / "common.md").read_text(), own.read_text() if own.exists() else ""]
    if edits == "prompt-only":
        parts.append((BRIEFS / "prompt-only.md").read_text())
    source = Path(helpers.__file__).read_text()
    imports = f"A harness may import `whale_envs.harness`, {', '.join(f'`{m}`' for m in sorted(ALLOWED_IMPORTS))}."
    return "\n".join([*parts, f"## `whale_envs.harness`, whole\n\n{imports}\n\n```python\n{source}```\n"])


def opening(desk: Desk) -> str:
    """The first message: what is asked for, and the list of candidates."""
    archive = desk.archive
    phase = archive.phase.key if archive.phase else "search"
    return (
        f"Domain {archive.domain}, {phase}, round {sum(r.phase == phase for r in archive.rounds) + 1}. "
        f"Submit {desk.count} candidates.\n\n{desk.use('list_candidates', {})}"
    )
