"""A domain of a few lines, to test the runtime with: guess a word; tools of every kind, working and broken."""

from __future__ import annotations

from typing import Any

from whale_envs import Domain, Episode, EpisodeError, Harness, Splits, Task, TaskSet, ToolUseError, Verdict, World
from whale_envs.harness.helpers import BoardView, ExecResult, Passage


class ToyWorld(World):
    """Tools: `look`, `double`, `board`, `code`, `over`; `bug` raises what is ours, `down` what is the tool's."""

    def __init__(self, task: Task) -> None:
        self.gold = task.gold
        self.looks = 0
        self._over = False
        self.tools = {
            "look": self.look,
            "double": self.double,
            "board": lambda: BoardView("fen", "board", (("e2e4", "e4"), ("d2d4", "d4"))),
            "code": lambda source: [ExecResult(source, "", "ok"), {"tuple": (1, (2,))}],
            "stop": self.stop,
            "bug": self.bug,
            "down": self.down,
            "huge": lambda: "x" * 700_000,
            "odd": lambda: {1, 2},
        }

    @property
    def over(self) -> bool:
        return self._over

    def look(self, word: str, k: int = 1) -> list[Passage]:
        """A passage about `word`; the number of the look is in its text, so that a second call would show."""
        if not isinstance(word, str) or not isinstance(k, int):
            raise ToolUseError(f"look takes a word, not {word!r} \ud800")
        self.looks += 1
        return [Passage(str(i), word, f"look {self.looks} \ud800", 1.5) for i in range(min(k, 3))]

    def double(self, value: Any) -> list[Any]:
        return [value, value]

    def stop(self) -> None:
        self._over = True

    def bug(self) -> None:
        raise RuntimeError("a bug of ours")

    def down(self) -> None:
        raise EpisodeError("tool", "the tool is down")

    def verdict(self, answer: Any) -> Verdict:
        return Verdict(1.0, "right") if answer == self.gold else Verdict(0.0, "wrong")

    def behaviours(self, episode: Episode) -> dict[str, bool]:
        return {"looked": bool(episode.tool_calls)}

    def solve(self) -> str:
        return str(self.gold)


class Toy(Domain):
    name = "toy"
    max_asks = 5

    def __init__(self, world: type[ToyWorld] = ToyWorld, tasks: int = 4) -> None:
        def rows(split: str) -> TaskSet:
            made = [
                Task(f"{split}-{i}", {"question": f"{split} {i}?", "hints": [f"h{i}"]}, f"GOLD-{split}-{i}")
                for i in range(tasks)
            ]
            return TaskSet(made, f"toy {split}")

        self.splits = Splits(rows("weight"), rows("harness"), rows("test"))
        self._world = world

    def world(self, task: Task) -> ToyWorld:
        return self._world(task)


H0 = '''
"""Says what it was told: the last tag, or nothing after three turns."""
from whale_envs.harness import system, tag, tool, user


def run(task, tools):
    messages = [system("Guess."), user(task.question)]
    for _ in range(3):
        reply = yield messages
        if (answer := tag(reply.text, "answer")) is not None:
            return answer
        found = tools.look(reply.text[:50] or "?", k=2)
        messages += [reply.message, tool("\\n".join(p.head(5) for p in found))]
    return None
'''


def toy_harness(source: str = H0, trusted: bool = True, name: str = "toy") -> Harness:
    """A harness; a `source` without `def run` is the body of one."""
    if "def run" not in source:
        body = "\n".join("    " + line for line in source.strip("\n").splitlines())
        source = f"from whale_envs.harness import *\nimport random, re\n\ndef run(task, tools):\n{body}\n"
    return Harness(source, name, trusted)
