"""Episodes to token rows: what is trained on is what was sampled, token for token.

Token ids come from the policy that sampled them; nothing here encodes text. A model call whose prompt extends the
previous call's prompt and completion joins its row; any other call (a rewritten history, a fresh context) starts a
row of its own. Exactly the sampled tokens carry a label, the turn-ending one among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whale_envs import Episode, Reply, UserError

#: The label of a token that carries no loss (PyTorch's `ignore_index`).
IGNORE = -100


class Row(msgspec.Struct, frozen=True):
    """A training sequence: `input_ids` and `labels`, both of its length; a label is the token itself or -100."""

    input_ids: list[int]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def trained(self) -> int:
        """How many tokens carry a loss."""
        return sum(label != IGNORE for label in self.labels)


def rows(episode: Episode) -> list[Row]:
    """The rows of an episode, in the order of its calls; a row on which nothing was sampled is left out.

    Raises `UserError` when a reply came without token ids.
    """
    found: list[Row] = []
    ids: list[int] = []
    labels: list[int] = []
    for number, call in enumerate(episode.calls, 1):
        prompt, completion = _tokens(episode, number, call.reply)
        if not ids or prompt[: len(ids)] != ids:
            found.append(Row(ids, labels))
            ids, labels = [], []
        new = prompt[len(ids) :]
        ids = [*ids, *new, *completion]
        labels = [*labels, *[IGNORE] * len(new), *completion]
    return [row for row in [*found, Row(ids, labels)] if row.trained]


def _tokens(episode: Episode, number: int, reply: Reply) -> tuple[list[int], list[int]]:
    if not reply.prompt_ids or reply.completion_ids is None:
        raise UserError(
            f"call {number} of the episode on task {episode.task_id} has no token ids, and text is never encoded again "
            "for training: sample with a policy that keeps them, such as --policy hf:<dir>"
        )
    return reply.prompt_ids, reply.completion_ids


def fit(kept: Sequence[Row], max_tokens: int) -> tuple[list[Row], int]:
    """The rows of at most `max_tokens` tokens, and how many were dropped: a row is never cut."""
    short = [row for row in kept if len(row) <= max_tokens]
    return short, len(kept) - len(short)
