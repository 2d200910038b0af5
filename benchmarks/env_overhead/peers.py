"""The same episodes with other libraries, run by `run.py` in a Python that has them: JSON lines on stdout.

Each plays with its own environment for such tasks; tools give canned results, whose time is taken off. Covered:

- gem-llm: `QaEnv` and `MathEnv` in `ToolEnvWrapper` with `SearchTool` and `PythonCodeTool`, bare (an observation is the
  latest text, and nothing is recorded), in `ObservationWrapper` (the whole history, as a model needs it), in
  `SyncVectorEnv`, and an episode of 64 turns.
- textarena: `Chess` with the board and the valid moves shown. The chess library's work is part of its step.
- verifiers: `ToolEnv.rollout` with a scripted client, the whole rollout with its scoring per model call. Its tool calls
  are those of the chat API, not tags.

Usage: python peers.py WORKLOAD.json NUM_ENVS; it says its versions, then plays what stdin names, a domain a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gem.tools.python_code_tool as code_tool
import textarena
import verifiers.legacy as vf
from datasets import Dataset, disable_progress_bars
from figures import TURNS, Episode, Figures, Tools, blocks, clock, medians
from gem.envs.math_env import MathEnv
from gem.envs.qa_env import QaEnv
from gem.tools.python_code_tool import PythonCodeTool
from gem.tools.search_tool import SearchTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from gem.vector.sync_vector_env import SyncVectorEnv
from gem.wrappers.observation_wrapper import ObservationWrapper
from verifiers.legacy.clients import Client
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

GAME = ["[a1a5]", "[f2f3]", "[e7e5]", "[g2g4]", "[d8h4]"]  # one illegal move, then the shortest mate


class Canned(Tools):
    """Canned tools that add up their own time."""

    def __init__(self, found: dict[str, str]) -> None:
        super().__init__()
        self.found = found

    def search(self, query: str) -> str:
        """Search for passages.

        Args:
            query: what to search for.
        """
        return self.found[query]

    def python(self, code: str) -> str:
        """Run a program.

        Args:
            code: the program.
        """
        return code[len("print(") : -1] + "\n"


def gem_env(domain: str, rows: list[dict[str, Any]], tools: Canned, seed: int = 0) -> Any:
    """A gem environment with the domain's tool."""
    dataset = Dataset.from_list([{"question": r["question"], "answer": r["answer"]} for r in rows])
    if domain == "math":
        run = tools.timed(tools.python)
        code_tool.run_python = lambda code, *args, **kwargs: (True, run(code), "")
        env = MathEnv(dataset=dataset, question_key="question", use_mp=False, seed=seed)
        return ToolEnvWrapper(env, [PythonCodeTool()])
    tool, find = SearchTool(search_url="http://unused", topk=1), tools.timed(tools.search)
    tool._search = lambda query: tool._passages2string([{"document": {"contents": find(query)}}])
    return ToolEnvWrapper(QaEnv(dataset=dataset, seed=seed), [tool], max_tool_uses=TURNS[-1] + 1)


def gem_rows(workload: dict[str, Any], num_envs: int) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Rows by name, and what measures one."""
    for domain in ("search-qa", "math"):
        rows, tools = workload[domain], Canned(workload["found"])
        scripts = {r["answer"]: r["replies"] for r in rows}
        bare = gem_env(domain, rows, tools)
        history = ObservationWrapper(gem_env(domain, rows, tools), include_chat_template=False)
        yield f"gem-llm {domain}", partial(gem_episodes, bare, len(rows), scripts, tools)
        yield f"gem-llm {domain}, with history", partial(gem_episodes, history, len(rows), scripts, tools)
        makers = [partial(gem_env, domain, rows, tools, seed) for seed in range(num_envs)]
        envs = SyncVectorEnv([""] * num_envs, makers)
        yield f"gem-llm {domain}, vector", partial(gem_vector, envs, scripts, tools)
        if domain == "search-qa":
            yield f"gem-llm {domain}, long", partial(gem_long, history, scripts, tools)


def gem_episodes(env: Any, count: int, scripts: dict[str, list[str]], tools: Canned) -> Figures:
    """Figures of so many episodes."""
    taken = []
    for _ in range(count):
        episode, done = Episode(tools), False
        episode.time_reset(env.reset)
        replies = iter(scripts[env.unwrapped.answer])
        while not done:
            _, _, done, _, _ = episode.time_step(env.step, next(replies))
        taken.append(episode.figures())
    return medians(taken)


def gem_long(env: Any, scripts: dict[str, list[str]], tools: Canned) -> Figures:
    """What a step takes at each of `TURNS`, with the whole history as the observation."""
    taken = []
    for _ in range(8):
        episode = Episode(tools)
        episode.time_reset(env.reset)
        searches = scripts[env.unwrapped.answer][:2]
        for turn in range(TURNS[-1]):
            episode.time_step(env.step, searches[turn % 2])
        taken.append(episode.by_turn())
    return medians(taken)


def gem_vector(envs: Any, scripts: dict[str, list[str]], tools: Canned) -> Figures:
    """Figures of a vector env."""
    envs.reset()

    def choose(turns: list[int]) -> list[str]:
        return [scripts[env.unwrapped.answer][turn] for env, turn in zip(envs.envs, turns, strict=True)]

    def step(replies: list[str]) -> Any:
        _, _, terminations, truncations, _ = envs.step(replies)
        return terminations | truncations

    return blocks(tools, envs.num_envs, choose, step)


def textarena_episodes(env: Any, count: int) -> Figures:
    """Figures of so many games; what a player is shown is part of a step."""
    taken = []

    def reset() -> None:
        env.reset(num_players=2)
        env.get_observation()

    def step(move: str) -> bool:
        done: bool = env.step(move)[0]
        env.get_observation()
        return done

    for _ in range(count):
        episode, moves = Episode(Tools()), iter(GAME)
        episode.time_reset(reset)
        while not episode.time_step(step, next(moves)):
            pass
        figures = episode.figures()
        taken.append({name: figures[name] for name in ("step", "reset", "whole")})
    return medians(taken)


class Scripted(Client[Any, Any, Any, Any]):
    """Replies what the rollout's row says, call after call."""

    def setup_client(self, config: Any) -> Any:
        return None

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> Any:
        state = kwargs["state"]
        return json.loads(state["info"]["replies"])[len(state["trajectory"])]

    async def raise_from_native_response(self, response: Any) -> None:
        return None

    async def from_native_response(self, response: str) -> Response:
        tool, _, rest = response.removeprefix("<").partition(">")
        calls = None
        if tool in ("search", "python"):
            name = "query" if tool == "search" else "code"
            arguments = json.dumps({name: rest.removesuffix(f"</{tool}>")})
            calls = [ToolCall(id="1", name=tool, arguments=arguments)]
        finish = "tool_calls" if calls else "stop"
        message = ResponseMessage(content=response, tool_calls=calls, finish_reason=finish, is_truncated=False)
        return Response(id="1", created=0, model="scripted", message=message)

    async def close(self) -> None:
        return None


def verifiers_rows(workload: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Rows by name, and what measures one."""
    for domain in ("search-qa", "math"):
        tools = Canned(workload["found"])

        def right(completion: Any, answer: str) -> float:
            return float(answer.lower() in str(completion[-1].content).lower())

        dataset = Dataset.from_list(
            [
                {
                    "question": r["question"],
                    "answer": r["answer"],
                    "info": json.dumps({"replies": json.dumps(r["replies"])}),
                }
                for r in workload[domain]
            ]
        )
        tool = tools.timed(tools.search if domain == "search-qa" else tools.python)
        env = vf.ToolEnv(tools=[tool], dataset=dataset, rubric=vf.Rubric(funcs=[right]))
        yield f"verifiers {domain}", partial(verifiers_episodes, env, tools)


def verifiers_episodes(env: Any, tools: Canned) -> Figures:
    """Figures of an episode for each row of the dataset; a rollout is timed as one."""
    return asyncio.run(_verifiers_episodes(env, tools))


async def _verifiers_episodes(env: Any, tools: Canned) -> Figures:
    client, taken = Scripted(None), []
    for row in [dict(row) for row in env.get_dataset()]:
        tools.seconds, start = 0.0, clock()
        state = await env.rollout(row, client, "scripted", {})
        await env.rubric.score_rollout(state)
        seconds = clock() - start
        if state["error"] is not None or state["reward"] != 1.0:
            raise RuntimeError(f"the scripted rollout went wrong: {state['error']!r}, reward {state['reward']}")
        whole, tool = (1e6 * value / len(state["trajectory"]) for value in (seconds, tools.seconds))
        taken.append({"whole": whole, "tool": tool, "whole beyond tool": whole - tool})
    return medians(taken)


def main() -> None:
    disable_progress_bars()
    workload = json.loads(Path(sys.argv[1]).read_text())
    chess = textarena.make("Chess-v0")
    rows = dict(gem_rows(workload, int(sys.argv[2]))) | dict(verifiers_rows(workload))
    rows["textarena chess"] = partial(textarena_episodes, chess, len(workload["math"]))
    say({name: version(name) for name in ("gem-llm", "textarena", "verifiers")})
    for domain in sys.stdin:
        say({row: measure() for row, measure in rows.items() if domain.strip() in row})


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
