"""Sampling in which requests join as others end: nobody waits for the longest reply.

Slots (`slots.py`) are filled from the requests that wait; each pass samples one token for every slot at work. Those
that have ended are handed out a few at a time, since a pass that takes in the next prompts costs as much for one as
for several. What a request draws is decided by its seed (`sampling.py`), and which requests share a pass by the order
in which they were handed in.
"""

from __future__ import annotations

import numpy as np
import torch

from whale_train.policies.row import Row, Rows, RowSampler
from whale_train.policies.sampling import sample, uniforms
from whale_train.policies.slots import Slots

#: The share of the slots at work that has ended before any is handed out.
HANDED_OUT = 1 / 8
#: Columns that are set aside for a reply at first; more are found when needed.
ROOM = 64


class SlotSampler(RowSampler):
    """A sampler over the slots of one model."""

    def __init__(self, rows: Rows, max_batch: int, cache_bytes: int) -> None:
        super().__init__(rows, max_batch, cache_bytes)
        self._live: dict[int, Row] = {}  # slot: row
        self._parked: dict[int, tuple[int, ...]] = {}  # slot: the tokens of the row that ended there, the oldest first
        self._free: list[int] = []
        self._slots = Slots(rows.model, 0, 0)
        self._tokens = np.zeros(0, dtype=np.int64)  # each slot's last sampled token
        self._streams = np.zeros(0, dtype=np.uint64)
        self._drawn = np.zeros(0, dtype=np.int64)

    def _advance(self) -> None:
        while self._waiting or self._live:
            self._admit()
            if len(self._ended) >= max(1, HANDED_OUT * len(self._live)):
                break
            self._step()

    def _admit(self) -> None:
        """Give slots to as many waiting rows as fit, and sample their first tokens."""
        taken = self._take()
        if not taken:
            return
        leaders: dict[tuple[int, ...], int] = {}  # of the rows that have one prompt, the slot that takes it in
        leader = {slot: slot if known else leaders.setdefault(tuple(row.prompt), slot) for slot, row, known in taken}
        leading = sorted((t for t in taken if leader[t[0]] == t[0]), key=lambda t: len(t[1].prompt) - t[2])
        slots, rows, known = map(list, zip(*leading, strict=True))
        logits = self._slots.prefill(slots, [row.prompt for row in rows], known)
        at = {slot: i for i, slot in enumerate(slots)}
        if copies := [(first, slot) for slot, first in leader.items() if first != slot]:
            self._slots.copy(*zip(*copies, strict=True))
        self._draw(list(leader), logits[[at[first] for first in leader.values()]])

    def _take(self) -> list[tuple[int, Row, int]]:
        """Rows that get a slot now, with the slot and how many of their prompt's tokens it holds already."""
        taken: list[tuple[int, Row, int]] = []
        if self._waiting:
            self._widen(max(len(row.prompt) + min(row.cap, ROOM) for row in self._waiting))
        parked: dict[tuple[int, ...] | None, list[int]] = {}
        for slot, past in self._parked.items():
            parked.setdefault(past, []).append(slot)
        for row in list(self._waiting):
            if found := parked.get(row.past):
                self._waiting.remove(row)
                slot = found.pop(0)
                del self._parked[slot]
                taken.append((slot, row, int(self._slots.lengths[slot])))
                self._start(slot, row)
        while self._waiting and (slot := self._slot_for(self._waiting[0])) is not None:
            row = self._waiting.pop(0)
            taken.append((slot, row, 0))
            self._start(slot, row)
        return taken

    def _start(self, slot: int, row: Row) -> None:
        self._live[slot] = row
        self._streams[slot], self._drawn[slot] = row.stream, 0

    def _slot_for(self, row: Row) -> int | None:
        """A slot for a row that has none: a free one, a new one, or that of the row which ended longest ago."""
        widest = max(len(r.prompt) + r.cap for r in (row, *self._live.values()))
        if self._live and (len(self._live) + 1) * widest * self._rows.bytes_per_token > self._cache_bytes:
            return None
        if not self._free:
            self._grow()
        if not self._free and self._parked:
            self._free.append(next(iter(self._parked)))
            del self._parked[self._free[0]]
        return self._free.pop(0) if self._free else None

    def _grow(self) -> None:
        """Make slots for the rows that wait, as far as they fit."""
        have, wanted = len(self._slots.lengths), len(self._live) + len(self._waiting)
        fitting = self._cache_bytes // ((self._slots.columns or 1) * self._rows.bytes_per_token)
        want = min(wanted, self._max_batch, max(fitting, 1))
        if want > have:
            self._resize(want, self._slots.columns)
            self._free += range(have, want)

    def _widen(self, columns: int) -> None:
        """Make room for so many tokens in each slot; if that is too much, only in those at work."""
        slots = len(self._slots.lengths)
        if columns <= self._slots.columns:
            return
        columns += columns // 4  # the longest grow a little with every turn
        if slots * columns * self._rows.bytes_per_token > self._cache_bytes:
            self._parked, self._free = {}, []
            self._close_ranks()
            slots = len(self._live)
        self._resize(slots, columns)

    def _resize(self, slots: int, columns: int) -> None:
        self._slots.resize(slots, columns)
        kept = min(slots, len(self._tokens))
        self._tokens, self._streams, self._drawn = (
            np.pad(array[:kept], (0, slots - kept)) for array in (self._tokens, self._streams, self._drawn)
        )

    def _step(self) -> None:
        """Sample one token for every row at work."""
        if max(self._live) + 1 >= 2 * len(self._live):
            self._close_ranks()
        live = sorted(self._live)
        longest = int(self._slots.lengths[live].max())
        if longest >= self._slots.columns:
            self._widen(longest + 1)
            live = sorted(self._live)
        tokens = torch.from_numpy(self._tokens[: live[-1] + 1].copy()).to(self._rows.model.device)
        logits = self._slots.step(tokens)
        self._slots.lengths[live] += 1
        self._draw(live, logits[live] if len(live) < len(logits) else logits)

    def _draw(self, slots: list[int], logits: torch.Tensor) -> None:
        """Sample a token for each slot [slots, vocab]; rows that end leave their slot."""
        u = uniforms(self._streams[slots], self._drawn[slots])
        drawn, logprobs = (tensor.cpu().numpy() for tensor in sample(logits, u, self._rows.sampling))
        self._drawn[slots] += 1
        self._tokens[slots] = drawn
        rows = [self._live[slot] for slot in slots]
        for at in self._rows.append(rows, drawn, logprobs):
            row = self._live.pop(slots[at])
            self._ended.append(self._rows.ended(row))
            if row.error:
                self._free.append(slots[at])
            else:
                self._parked[slots[at]] = (*row.prompt, *row.completion)

    def _close_ranks(self) -> None:
        """Bring the rows at work to the front, where every other slot in a pass would be an idle one."""
        n = len(self._live)
        high = sorted(slot for slot in self._live if slot >= n)
        if not high:
            return
        low = [slot for slot in range(n) if slot not in self._live]
        self._slots.swap(low, high)
        for array in (self._tokens, self._streams, self._drawn):
            array[[*low, *high]] = array[[*high, *low]]
        moved = dict(zip([*low, *high], [*high, *low], strict=True))
        self._live = {moved.get(slot, slot): row for slot, row in self._live.items()}
        self._parked = {moved.get(slot, slot): past for slot, past in self._parked.items()}
        self._free = [moved.get(slot, slot) for slot in self._free]
