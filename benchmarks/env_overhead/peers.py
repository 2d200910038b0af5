"""The same episodes with other libraries, run by `run.py` in a Python that has them: prints one JSON object.

Each plays with its own environment for such tasks; tools give canned results, whose time is taken off. Covered:

- gem-llm: `QaEnv` and `MathEnv` in `ToolEnvWrapper` with `SearchTool` and `PythonCodeTool`, bare (an observation is the
  latest text) and in `ObservationWrapper` (the whole history, as a model needs it), and in `SyncVectorEnv`.
- textarena: `Chess` with the board and the valid moves shown. The chess library's work is part of its step.
- verifiers: `ToolEnv.rollout` with a scripted client, the whole rollout with its scoring per model call. Its tool calls
  are those of the chat API, not tags.

Usage: python peers.py WORKLOAD.json NUM_ENVS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gem.tools.python_code_tool as code_tool
import textarena
import verifiers.legacy as vf
from datasets import Dataset, disable_progress_bars
from gem.envs.math_env import MathEnv
from gem.envs.qa_env import QaEnv
from gem.tools.python_code_tool import PythonCodeTool
from gem.tools.search_tool import SearchTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from gem.vector.sync_vector_env import SyncVectorEnv
from gem.wrappers.observation_wrapper import ObservationWrapper
from verifiers.legacy.clients import Client
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

clock = time.perf_counter
Figures = dict[str, float]
GAME = ["[a1a1]", "[f2f3]", "[e7e5]", "[g2g4]", "[d8h4]"]  # one illegal move, then the shortest mate


class Tools:
    """Canned tools that add up their own time."""

    def __init__(self, found: dict[str, str]) -> None:
        self.found, self.seconds = found, 0.0

    def timed(self, tool: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return tool(*args, **kwargs)
            finally:
                self.seconds += clock() - start

        call.__name__, call.__doc__, call.__annotations__ = tool.__name__, tool.__doc__, tool.__annotations__
        return call

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


def gem_env(domain: str, rows: list[dict[str, Any]], tools: Tools, seed: int = 0) -> Any:
    """A gem environment with the domain's tool."""
    dataset = Dataset.from_list([{"question": r["question"], "answer": r["answer"]} for r in rows])
    if domain == "math":
        code_tool.run_python = tools.timed(lambda code, *args, **kwargs: (True, tools.python(code), ""))
        return ToolEnvWrapper(
            MathEnv(dataset=dataset, question_key="question", use_mp=False, seed=seed), [PythonCodeTool()]
        )
    tool = SearchTool(search_url="http://unused", topk=1)
    find = tools.timed(lambda query: [{"document": {"contents": tools.found[query]}}])
    tool._search = lambda query: tool._passages2string(find(query))
    return ToolEnvWrapper(QaEnv(dataset=dataset, seed=seed), [tool])


def gem_rows(workload: dict[str, Any], num_envs: int) -> Iterator[tuple[str, Figures]]:
    for domain in ("search-qa", "math"):
        rows, tools = workload[domain], Tools(workload["found"])
        scripts = {r["answer"]: r["replies"] for r in rows}
        yield f"gem-llm {domain}", gem_episodes(gem_env(domain, rows, tools), len(rows), scripts, tools)
        history = ObservationWrapper(gem_env(domain, rows, tools), include_chat_template=False)
        yield f"gem-llm {domain}, with history", gem_episodes(history, len(rows), scripts, tools)
        makers = [lambda seed=n: gem_env(domain, rows, tools, seed) for n in range(num_envs)]  # noqa: B023
        yield (
            f"gem-llm {domain}, vector of {num_envs}",
            gem_vector(SyncVectorEnv([""] * num_envs, makers), len(rows), scripts, tools),
        )


def gem_episodes(env: Any, episodes: int, scripts: dict[str, list[str]], tools: Tools) -> Figures:
    tools.seconds, steps, stepping, resetting = 0.0, 0, 0.0, 0.0
    for _ in range(episodes):
        start = clock()
        env.reset()
        resetting += clock() - start
        for reply in scripts[env.unwrapped.answer]:
            start = clock()
            _, _, terminated, truncated, _ = env.step(reply)
            stepping += clock() - start
            steps += 1
            if terminated or truncated:
                break
    return per_step(steps, tools.seconds, stepping, resetting)


def gem_vector(envs: Any, episodes: int, scripts: dict[str, list[str]], tools: Tools) -> Figures:
    envs.reset()
    tools.seconds, steps, taken = 0.0, 0, 0.0
    turns = [0] * envs.num_envs
    while steps < 2 * episodes:
        replies = [scripts[env.unwrapped.answer][turn] for env, turn in zip(envs.envs, turns, strict=True)]
        start = clock()
        _, _, terminations, truncations, _ = envs.step(replies)
        taken += clock() - start
        steps += envs.num_envs
        turns = [0 if ended else turn + 1 for turn, ended in zip(turns, terminations | truncations, strict=True)]
    figures = per_step(steps, tools.seconds, taken, 0.0)
    return {name: figures[name] for name in ("step", "tool", "beyond_tool")}


def textarena_rows(episodes: int) -> Iterator[tuple[str, Figures]]:
    env = textarena.make("Chess-v0-raw")
    steps, stepping, resetting = 0, 0.0, 0.0
    for _ in range(episodes):
        start = clock()
        env.reset(num_players=2)
        env.get_observation()
        resetting += clock() - start
        for move in GAME:
            start = clock()
            done, _ = env.step(move)
            env.get_observation()
            stepping += clock() - start
            steps += 1
            if done:
                break
    figures = per_step(steps, 0.0, stepping, resetting)
    yield "textarena chess, boards included", {name: figures[name] for name in ("step", "reset")}


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


def verifiers_rows(workload: dict[str, Any]) -> Iterator[tuple[str, Figures]]:
    for domain in ("search-qa", "math"):
        rows, tools = workload[domain], Tools(workload["found"])

        def right(completion: Any, answer: str) -> float:
            return float(answer.lower() in str(completion[-1].content).lower())

        dataset = Dataset.from_list(
            [
                {
                    "question": r["question"],
                    "answer": r["answer"],
                    "info": json.dumps({"replies": json.dumps(r["replies"])}),
                }
                for r in rows
            ]
        )
        tool = tools.timed(tools.search if domain == "search-qa" else tools.python)
        env = vf.ToolEnv(tools=[tool], dataset=dataset, rubric=vf.Rubric(funcs=[right]))
        yield f"verifiers {domain}", asyncio.run(verifiers_episodes(env, tools))


async def verifiers_episodes(env: Any, tools: Tools) -> Figures:
    inputs, client = [dict(row) for row in env.get_dataset()], Scripted(None)
    tools.seconds, steps, taken = 0.0, 0, 0.0
    for row in inputs:
        start = clock()
        state = await env.rollout(row, client, "scripted", {})
        await env.rubric.score_rollout(state)
        taken += clock() - start
        if state["error"] is not None or state["reward"] != 1.0:
            raise RuntimeError(f"the scripted rollout went wrong: {state['error']!r}, reward {state['reward']}")
        steps += len(state["trajectory"])
    figures = per_step(steps, tools.seconds, taken, 0.0)
    return {name: figures[name] for name in ("tool", "beyond_tool")}


def per_step(steps: int, tool: float, stepping: float, resetting: float) -> Figures:
    figures = {"step": stepping, "reset": resetting, "tool": tool, "beyond_tool": stepping + resetting - tool}
    return {name: 1e6 * seconds / steps for name, seconds in figures.items()}


def main() -> None:
    disable_progress_bars()
    workload = json.loads(Path(sys.argv[1]).read_text())
    rows = dict(gem_rows(workload, int(sys.argv[2])))
    rows |= dict(textarena_rows(len(workload["math"]) // 4))
    rows |= dict(verifiers_rows(workload))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
