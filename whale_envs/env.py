"""`HarnessEnv`: the one loop between a model and a world, through a harness. Everything else in the project runs it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import msgspec

from whale_envs.domain import Domain, World
from whale_envs.domains import load_domain
from whale_envs.episode import Call, Episode, Failure, Reply, Verdict
from whale_envs.errors import EpisodeError, UserError, unknown
from whale_envs.harness.helpers import Ask, Message
from whale_envs.harness.jail import Jail, JailedSession
from whale_envs.harness.load import Harness, load_harness
from whale_envs.harness.session import Answer, InProcessSession, Session, Toolbox
from whale_envs.harness.wire import MAX_CHARS, plain
from whale_envs.spaces import Completion, Messages
from whale_envs.task import Task

Observation = tuple[Message, ...]
#: What a `Reply` has lists of, and what is in them: arrays and tensors could not be written to a record.
_NUMBERS = (("prompt_ids", (int,)), ("completion_ids", (int,)), ("logprobs", (float, int)))


class HarnessEnv(gymnasium.Env[Observation, Any]):
    """An agent environment whose dynamics are a harness.

    Observation: the messages of the next model call. Action: the completion, a string or a `Reply`. The reward is
    the verifier's score when the episode ends, 0 before. `info["task_id"]` says which task it is. While the episode
    goes on, `info["ask"]` is the whole `Ask` (tool schemas and stop strings among it) and `info["max_tokens"]` the
    most tokens that the completion may have. At the end `info["record"]` is the finished `Episode`, and of it
    `info["verdict"]`, `info["behaviours"]` and `info["failure"]` (None, or why it failed and who owns that).

    Args:
        domain: a domain's name ("search-qa", "math", "chess") or a loaded `Domain` to share between envs.
        dataset: real data in place of the bundled mini world, a prepared folder or files (see the README).
        harness: a shipped name, a path, a `Harness` or a module's `run`; one that is not trusted runs jailed.
        split: "weight", "harness" or "test"; which tasks `reset` deals, each once an epoch.
        jail: a running `Jail` of the harness to share between envs; by default an env starts its own when needed.
        render_mode: None (`render` prints the transcript), "ansi" (`render` returns it), "human" (it is also
            printed by itself when an episode ends), or "html" (`render` returns a page to be saved and opened).
        verifier: how answers are scored, in place of the domain's default, e.g. "math-verify" (see the README).
        max_asks: most model calls in one episode, where that is less than the domain's. The last one truncates the
            episode, which is scored and recorded all the same; Gymnasium's own `max_episode_steps` cuts it off from
            outside, without a verdict.

    Raises `UserError` for data, a harness, a limit or a render mode that cannot be used.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human", "html"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        domain: str | Domain,
        dataset: str | Path | None = None,
        harness: str | Path | Harness = "h0",
        split: str = "weight",
        jail: Jail | None = None,
        render_mode: str | None = None,
        verifier: str | None = None,
        max_asks: int | None = None,
    ) -> None:
        if max_asks is not None and (type(max_asks) is not int or max_asks < 1):
            raise UserError(f"max_asks is {max_asks!r}: expected a whole number from 1 up")
        # Gymnasium only warns of it, and `render` would print and return nothing
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise unknown("render mode", render_mode, self.metadata["render_modes"])
        self.domain = as_domain(domain, dataset, verifier)
        self.harness = load_harness(harness, self.domain.name)
        self.tasks = self.domain.splits[split]
        #: Most model calls in one episode; the next one truncates it.
        self.max_asks = min(self.domain.max_asks, max_asks or self.domain.max_asks)
        self.render_mode = render_mode
        self.observation_space = Messages()
        self.action_space = Completion()
        self.episode: Episode | None = None
        self._open = False
        self._jail, self._own_jail = jail, jail is None
        self._order: list[int] = []
        self._session: Session | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode. `options={"task": id}` names the task; otherwise the next of a shuffled epoch.

        `seed` also seeds the harness's own randomness. Gymnasium's `reset` cannot end an episode, so one whose
        harness fails or answers before its first ask ends at the next `step`, whatever the action.
        """
        super().reset(seed=seed)
        for option in options or {}:
            if option != "task":
                raise unknown("reset option", option, ["task"])
        if seed is not None:
            self._order = []
        if options:
            task = self.tasks.by_id(options["task"])
        else:
            if not self._order:
                self._order = self.np_random.permutation(len(self.tasks)).tolist()
            task = self.tasks[self._order.pop()]
        return self.begin(task, seed if seed is not None else int(self.np_random.integers(2**31)))

    def begin(self, task: Task, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Start an episode of `task`, dealt by the caller; `seed` is the harness's own. Returns what `reset` does."""
        self._drop()
        self._open = False  # until there is an episode: isolation may be refused
        self._world: World = self.domain.world(task)
        self._toolbox = Toolbox(self._world.tools)
        self.episode = Episode(
            task.id, self.domain.name, self.harness.hash, seed, calls=[], tool_calls=self._toolbox.calls
        )
        self._outcome: Ask | Answer | EpisodeError
        self._started = time.perf_counter()
        if self.harness.trusted:
            self._session = InProcessSession(self.harness, task.shown, self._toolbox, seed)
        else:
            self._jail = self._jail or Jail(self.harness)
            self._session = JailedSession(self._jail, task.shown, self._toolbox, seed)
        self._advance(None)
        self._open = True
        return self._observation(), self._info()

    def step(self, action: str | Reply) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Give the model's reply to the harness. Returns (messages, reward, terminated, truncated, info).

        Lone surrogates in the reply, which JSON cannot carry, become U+FFFD. Raises `UserError` when the episode has
        ended or the action is neither a string nor a valid `Reply`.
        """
        if self.episode is None or not self._open:
            raise UserError("this episode has ended (or never began): call reset() before step()")
        reply = as_reply(action)
        if isinstance(self._outcome, Ask):
            ask = self._outcome
            messages = ask.messages.copy()
            self.episode.calls.append(Call(messages, reply, ask.max_tokens, ask.tools, ask.template_kwargs, ask.stop))
            self._advance(reply)
        if isinstance(self._outcome, Ask) and len(self.episode.calls) < self.max_asks and not self._world.over:
            return self._observation(), 0.0, False, False, self._info()
        truncated = self._finish()
        return self._observation(), self.episode.score, not truncated, truncated, self._info()

    def fail(self, failure: Failure) -> Episode:
        """End the episode for a reason outside the harness (a policy that failed); returns its record."""
        if self.episode is None or not self._open:
            raise UserError("this episode has ended (or never began): there is nothing to fail")
        self._outcome = EpisodeError(failure.owner, failure.message)
        self._finish()
        return self.episode

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.episode is not None and not self._open

    def render(self) -> str | None:
        """The episode so far, as text or as an HTML page: returned with "ansi" and "html", otherwise printed.

        Raises `UserError` before the first `reset`.
        """
        if self.episode is None:
            raise UserError("there is no episode to render yet: call reset() first")
        waiting = self._outcome.messages if self._open and isinstance(self._outcome, Ask) else None
        if self.render_mode == "html":
            from whale_envs.render import page  # not needed to play, and chess.svg takes its time to import

            return page(self.episode, waiting)
        text = self.episode.transcript(waiting)
        if self.render_mode == "ansi":
            return text
        print(text)
        return None

    def close(self) -> None:
        """Drop the episode and end the env's own jail. May be called again."""
        self._drop()
        self._open = False
        if self._own_jail and self._jail is not None:
            self._jail.close()
            self._jail = None

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._world.close()
            self._session = None

    def _advance(self, reply: Reply | None) -> None:
        assert self._session is not None
        try:
            self._outcome = self._session.resume(reply.view() if reply else None)
        except EpisodeError as error:
            self._outcome = error

    def _finish(self) -> bool:
        """Score the episode and close it; True when a limit ended it rather than the harness."""
        episode, outcome = self.episode, self._outcome
        assert episode is not None and self._session is not None
        truncated = False
        if isinstance(outcome, EpisodeError):
            episode.failure = Failure(outcome.owner, str(outcome))
            episode.verdict = Verdict(0.0, f"failed: {outcome.owner}")
        elif isinstance(outcome, Ask) and not self._world.over:
            truncated = True
            episode.verdict = Verdict(0.0, f"cut off after {self.max_asks} model calls")
        else:
            episode.answer = outcome.value if isinstance(outcome, Answer) else None
            try:
                episode.verdict = self._world.verdict(episode.answer)
            except EpisodeError as error:  # a verifier that has to run something can fail at it
                episode.failure = Failure(error.owner, str(error))
                episode.verdict = Verdict(0.0, f"failed: {error.owner}", error.dollars)
        episode.behaviours = self._world.behaviours(episode)
        episode.seconds = time.perf_counter() - self._started
        self._drop()
        self._open = False
        if self.render_mode == "human":
            self.render()
        return truncated

    def _observation(self) -> Observation:
        # copies, so that a caller who changes an observation changes no record
        return tuple(map(dict.copy, self._outcome.messages)) if isinstance(self._outcome, Ask) else ()

    def _info(self) -> dict[str, Any]:
        episode, outcome = self.episode, self._outcome
        assert episode is not None
        if not self._open:
            return {
                "task_id": episode.task_id,
                "ask": None,
                "verdict": episode.verdict,
                "behaviours": episode.behaviours,
                "failure": episode.failure,
                "record": episode,
            }
        if not isinstance(outcome, Ask):
            return {"task_id": episode.task_id, "ask": None}
        return {"task_id": episode.task_id, "ask": outcome, "max_tokens": self.domain.cap(outcome.max_tokens)}


def as_domain(domain: str | Domain, dataset: str | Path | None, verifier: str | None) -> Domain:
    """The domain that the arguments of an env ask for; `UserError` for one that is loaded already and options of it."""
    if not isinstance(domain, Domain):
        return load_domain(domain, dataset, verifier)
    if dataset is not None or verifier is not None:
        raise UserError(f"{domain.name} is a loaded domain: give its dataset and verifier where it is loaded")
    return domain


def as_reply(action: str | Reply) -> Reply:
    """An action as a `Reply` that JSON can carry; `UserError` if it is none."""
    if type(action) is str and len(action) < MAX_CHARS // 2 and action.isascii():
        return Reply(action)  # as almost all are
    if not isinstance(action, str | Reply):
        raise UserError(f"an action is a string or a whale_envs.Reply, not {type(action).__name__}")
    reply = Reply(action) if isinstance(action, str) else action
    if not isinstance(reply.text, str) or reply.finish_reason not in ("stop", "length"):
        given = f"text {reply.text!r:.80} and finish_reason {reply.finish_reason!r:.80}"
        raise UserError(f'a Reply has a text and the finish_reason "stop" or "length", not {given}')
    for name, kinds in _NUMBERS:
        numbers = getattr(reply, name)
        if numbers is not None and not (type(numbers) in (list, tuple) and all(type(n) in kinds for n in numbers[:1])):
            raise UserError(
                f"a Reply's {name} are a list of Python's numbers, not {numbers!r:.80}: give .tolist() of it"
            )
    if reply.tool_calls == [] and type(reply.text) is str and reply.text.isascii() and len(reply.text) < MAX_CHARS // 2:
        return reply
    try:
        text, tool_calls = plain([reply.text, list(reply.tool_calls)], "a reply")
    except (ValueError, TypeError) as error:
        raise UserError(f"an action has to be JSON: {error}") from None
    return msgspec.structs.replace(reply, text=text, tool_calls=tool_calls)
