"""Times of episodes, per step. Used by `run.py` and, in another Python, by `peers.py`."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

Figures = dict[str, float]
#: Steps of a vector env that are timed together, whole episodes where all take two or three, and how many such blocks.
BLOCK, BLOCKS = 6, 4
#: The turns of a long episode at which a step is looked at.
TURNS = (2, 8, 32, 64)

clock = time.perf_counter


class Tools:
    """Adds up the seconds that tools take, calls that they refuse among them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def timed(self, tool: Callable[..., Any]) -> Callable[..., Any]:
        """The tool, timed."""

        @functools.wraps(tool)  # its signature and its words are read
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # a move looks at the board
                return tool(*args, **kwargs)
            self._inside, start = True, clock()
            try:
                return tool(*args, **kwargs)
            finally:
                self.seconds += clock() - start
                self._inside = False

        return call


class Episode:
    """The times of one episode: one `reset`, and each `step` by itself, with what their tools took."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.reset = self.reset_tools = 0.0
        self.steps: list[float] = []
        self.step_tools: list[float] = []

    def time_reset(self, work: Callable[[], Any]) -> Any:
        """Do it and take its time."""
        self._tools.seconds, start = 0.0, clock()
        result = work()
        self.reset, self.reset_tools = clock() - start, self._tools.seconds
        return result

    def time_step(self, work: Callable[[Any], Any], action: Any) -> Any:
        """Do it and take its time."""
        self._tools.seconds, start = 0.0, clock()
        result = work(action)
        self.steps.append(clock() - start)
        self.step_tools.append(self._tools.seconds)
        return result

    def figures(self) -> Figures:
        """Microseconds: `reset` an episode, all others a step; `whole` is a step with its share of the reset."""
        count, step, tool = len(self.steps), sum(self.steps), sum(self.step_tools)
        whole = step + self.reset
        seconds = {
            "step": step / count,
            "tool": tool / count,
            "beyond tool": (step - tool) / count,
            "reset": self.reset,
            "whole": whole / count,
            "whole beyond tool": (whole - tool - self.reset_tools) / count,
        }
        return {name: 1e6 * value for name, value in seconds.items()}

    def by_turn(self) -> Figures:
        """Microseconds beyond the tool at each of `TURNS`."""
        return {f"turn {turn}": 1e6 * (self.steps[turn - 1] - self.step_tools[turn - 1]) for turn in TURNS}


def medians(rows: list[Figures]) -> Figures:
    """The median of each figure, which the scheduler's pauses do not move."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def blocks(
    tools: Tools, num_envs: int, choose: Callable[[list[int]], list[str]], step: Callable[[list[str]], Any]
) -> Figures:
    """Figures of a vector env, of whose steps each is `num_envs` steps, resets among them.

    `choose` gives the replies at the turns that the episodes are at, `step` takes them and says which have ended.
    """
    taken, turns = [], [0] * num_envs
    for _ in range(BLOCKS):
        seconds = tools.seconds = 0.0
        for _ in range(BLOCK):
            replies = choose(turns)
            start = clock()
            ended = step(replies)
            seconds += clock() - start
            turns = [0 if over else turn + 1 for turn, over in zip(turns, ended, strict=True)]
        steps = BLOCK * num_envs
        whole, tool = 1e6 * seconds / steps, 1e6 * tools.seconds / steps
        taken.append({"whole": whole, "tool": tool, "whole beyond tool": whole - tool})
    return medians(taken)
