"""Progress on a screen: one line a job, for one process or for several that report through files.

A job's state is a `Snapshot`. `Tracker` implements `whale_train.progress.Progress` and publishes snapshots:
`ConsoleProgress` straight to a `Display`, `FileProgress` to a small file, which the parent process reads and shows
with `Display.follow`. On a terminal the lines are redrawn in place; elsewhere plain lines are printed, at most one
every few seconds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TextIO

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from whale_envs.episode import read_json

#: Seconds between two snapshots that are published, and between two plain lines.
PUBLISH_EVERY, PLAIN_EVERY = 0.25, 5.0
#: The phase before the first.
STARTING = "starting"


class Snapshot(msgspec.Struct):
    """Where a job stands. Rollouts are counted over the phase and over the whole job; `total` 0 means not known.

    `score` is the mean of the latest rollouts, `started` and `updated` are seconds of the Unix clock, `before` are
    the rollouts that an earlier process had done, `said` are the lines to keep on the screen, and `tracker` names who
    counts, since several may write to one place in turn.
    """

    phase: str = STARTING
    phase_done: int = 0
    phase_total: int = 0
    done: int = 0
    total: int = 0
    before: int = 0
    score: float | None = None
    started: float = 0.0
    updated: float = 0.0
    said: list[str] = []
    tracker: str = ""
    finished: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Time left at the pace so far, None when that cannot be told."""
        done, total = (self.done, self.total) if self.total else (self.phase_done, self.phase_total)
        fresh = done - (self.before if self.total else 0)
        if fresh <= 0 or total <= 0 or self.updated <= self.started:
            return None
        return max(0, total - done) * (self.updated - self.started) / fresh


class Tracker:
    """A `Progress` that keeps a `Snapshot` and publishes it, at most every `PUBLISH_EVERY` seconds.

    Args:
        publish: gets the snapshot; it is the same object each time.
        total: rollouts of the whole job, 0 when not known; then the time left is that of the phase.
        before: rollouts that an earlier process had done, when a run is taken up again.
    """

    def __init__(self, publish: Callable[[Snapshot], None], total: int = 0, before: int = 0) -> None:
        now = time.time()
        self.snapshot = Snapshot(done=before, total=total, before=before, started=now, updated=now, said=[])
        self.snapshot.tracker = f"{os.getpid()}-{id(self)}-{now}"
        self._publish, self._published = publish, 0.0
        self._touch(force=True)

    def begin(self, phase: str, rollouts: int) -> None:
        """See `Progress.begin`."""
        shot = self.snapshot
        shot.phase, shot.phase_done, shot.phase_total = phase, 0, rollouts
        if not shot.total:
            shot.started = time.time()
        self._touch(force=True)

    def advance(self, rollouts: int) -> None:
        """See `Progress.advance`."""
        self.snapshot.phase_done += rollouts
        self.snapshot.done += rollouts
        self._touch()

    def score(self, mean: float) -> None:
        """See `Progress.score`."""
        self.snapshot.score = mean
        self._touch(force=True)

    def say(self, line: str) -> None:
        """See `Progress.say`."""
        self.snapshot.said.append(line)
        self._touch(force=True)

    def finish(self) -> None:
        """The job is done."""
        self.snapshot.phase, self.snapshot.finished = "done", True
        self._touch(force=True)

    def _touch(self, force: bool = False) -> None:
        self.snapshot.updated = time.time()
        if force or self.snapshot.updated - self._published >= PUBLISH_EVERY:
            self._published = self.snapshot.updated
            self._publish(self.snapshot)


class FileProgress(Tracker):
    """Publishes to a file, whole at every moment, for another process to follow."""

    def __init__(self, path: Path, total: int = 0, before: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")

        def publish(shot: Snapshot) -> None:
            draft.write_bytes(msgspec.json.encode(shot))  # no fsync: losing it costs nothing
            os.replace(draft, path)

        super().__init__(publish, total, before)


class ConsoleProgress(Tracker):
    """Publishes to this process's screen. A context manager; inside it, lines are redrawn in place."""

    def __init__(self, name: str, total: int = 0, before: int = 0, stream: TextIO | None = None) -> None:
        self.display = Display([name], stream)
        super().__init__(lambda shot: self.display.show(name, shot), total, before)

    def __enter__(self) -> ConsoleProgress:
        self.display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.display.__exit__(kind, error, trace)


class Display:
    """The screen: one line for each of `names`. A context manager."""

    def __init__(self, names: list[str], stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._shots: dict[str, Snapshot] = {name: Snapshot() for name in names}
        self._said: dict[str, int] = {}
        self._plain = not self._console.is_terminal
        self._printed = dict.fromkeys(names, 0.0)
        self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render, transient=True)

    def __enter__(self) -> Display:
        if not self._plain:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._plain:
            self._live.stop()

    def show(self, name: str, shot: Snapshot) -> None:
        """Show a job's snapshot; the lines that it has said since the last are printed and stay."""
        for line in shot.said[self._said.get(shot.tracker, 0) :]:
            self._console.print(f"{self._label(name)}{escape(line)}", soft_wrap=True)
        fresh_phase = shot.phase != self._shots[name].phase
        resumes = shot.phase == STARTING and self._shots[name].updated  # who comes after another: no new beginning
        self._said[shot.tracker], self._shots[name] = len(shot.said), msgspec.structs.replace(shot)
        now = time.monotonic()
        wait = PLAIN_EVERY * len(self._shots) / (5 if fresh_phase else 1)
        if self._plain and shot.updated and not resumes and now - self._printed[name] >= wait:
            self._printed[name] = now
            self._console.print(f"{self._label(name)}{plain_line(shot)}", soft_wrap=True, markup=False)

    def follow(self, files: Mapping[str, Path]) -> None:
        """Show what the `FileProgress` at each path says now; one that is not there yet is passed over."""
        for name, path in files.items():
            if path.exists():
                shot = read_json(path, Snapshot)
                if shot.updated != self._shots[name].updated:
                    self.show(name, shot)

    def _label(self, name: str) -> str:
        return f"{name:<{max(map(len, self._shots))}}  "

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for name, shot in self._shots.items():
            done, total = (shot.done, shot.total) if shot.total else (shot.phase_done, shot.phase_total)
            row: list[RenderableType] = [
                Text(name, style="bold"),
                Text(shot.phase, style="green" if shot.finished else "", no_wrap=True, overflow="ellipsis"),
                Text(f"{done}/{total}" if total else f"{done}", justify="right"),
                Text(f"{100 * shot.score:.1f} %" if shot.score is not None else "", justify="right"),
                Text(_left(shot), style="dim"),
            ]
            if self._console.width >= 100:  # where it is narrow, the words matter more than the bar
                row.insert(2, ProgressBar(total=max(total, 1), completed=done, width=20))
            table.add_row(*row)
        return Group(table)


def plain_line(shot: Snapshot) -> str:
    """A snapshot in one line of text."""
    done, total = (shot.done, shot.total) if shot.total else (shot.phase_done, shot.phase_total)
    parts = [shot.phase, f"{done}/{total} rollouts" if total else f"{done} rollouts"]
    if shot.score is not None:
        parts.append(f"score {100 * shot.score:.1f} %")
    if left := _left(shot):
        parts.append(left)
    return " · ".join(parts)


def _left(shot: Snapshot) -> str:
    if shot.finished or (seconds := shot.seconds_left) is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} left" if minutes >= 60 else f"{minutes}:{rest:02d} left"


def quieten() -> None:
    """Leave the screen to our own progress: no bars of transformers and datasets, no warnings but errors."""
    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
