"""Wrappers for trainers that know strings or arrays: messages as a prompt's text, or as token ids.

Both take a tokenizer of transformers with a chat template (any object that has what `ChatTokenizer` lists), and make
the prompts that the policies of `whale_train` make, token for token.

    env = TokenPrompt(gym.make("whale/Math"), AutoTokenizer.from_pretrained("Qwen/Qwen3.5-2B"))
    ids, info = env.reset(seed=0)                    # int64, shape (n,): what the model is to continue
    ids, reward, terminated, truncated, info = env.step(completion_ids)

Vectorised: `gym.make_vec(id, num_envs, "sync", wrappers=[functools.partial(TokenPrompt, tokenizer=tokenizer)])`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.utils import RecordConstructorArgs

from whale_envs.env import HarnessEnv, Observation
from whale_envs.episode import Call, Reply
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Ask
from whale_envs.prompts import ChatTokenizer, PromptError, Prompts
from whale_envs.spaces import Completion, Prompt, TokenIds

Shown = TypeVar("Shown")


class _Prompted(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs, Generic[Shown]):
    """What the wrappers share: the observation is made from `info["ask"]`, empty where there is none."""

    def __init__(self, env: gymnasium.Env[Observation, Any], tokenizer: ChatTokenizer, eos: Sequence[int] = ()) -> None:
        gymnasium.Wrapper.__init__(self, env)
        inner = env.unwrapped
        if not isinstance(inner, HarnessEnv):
            raise UserError(f"{type(self).__name__} wraps a HarnessEnv, not {type(inner).__name__}")
        self.prompts = Prompts(tokenizer, eos)
        self._env = inner
        self._max_tokens = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        """See `HarnessEnv.reset`. Raises `UserError` when the chat template refuses the messages."""
        _, info = self.env.reset(seed=seed, options=options)
        return self._observe(info), info

    def step(self, action: Any) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """See `HarnessEnv.step`. Raises `UserError` when the chat template refuses the messages."""
        _, reward, terminated, truncated, info = self.env.step(self._reply(action))
        return self._observe(info), float(reward), terminated, truncated, info

    def _observe(self, info: dict[str, Any]) -> Shown:
        self._max_tokens = info.get("max_tokens", 0)
        calls = self._env.episode.calls if self._env.episode else []
        try:
            return self._shown(info["ask"], calls[-1] if calls else None)
        except PromptError as error:
            raise UserError(f"{error}; give another tokenizer or harness") from error

    @abstractmethod
    def _shown(self, ask: Ask | None, previous: Call | None) -> Shown:
        """The observation for an ask."""

    @abstractmethod
    def _reply(self, action: Any) -> str | Reply:
        """The wrapped env's action for one of this env's."""


class PromptText(_Prompted[str]):
    """Observations are prompts as text, with the model's turn opened; "" once the episode has ended.

    Actions stay completions: strings or `Reply`s.

    Args:
        env: a `HarnessEnv`, wrapped or not.
        tokenizer: with a chat template.

    Raises `UserError` for a tokenizer without a chat template that can be used.
    """

    def __init__(self, env: gymnasium.Env[Observation, Any], tokenizer: ChatTokenizer) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, tokenizer=tokenizer)
        super().__init__(env, tokenizer)
        self.observation_space = Prompt()
        self.action_space = Completion()

    def _shown(self, ask: Ask | None, previous: Call | None) -> str:
        return self.prompts.render(ask) if ask else ""

    def _reply(self, action: Any) -> str | Reply:
        return action  # type: ignore[no-any-return]


class TokenPrompt(_Prompted[npt.NDArray[np.int64]]):
    """Observations and actions are token ids: int64 arrays of shape (n,), empty once the episode has ended.

    The next prompt keeps the ids of the last one and of the reply where the harness goes on from them. A reply ends
    with the token that ends the model's turn; one of `info["max_tokens"]` ids without it counts as cut off. The record
    holds prompt and completion ids, as a trainer wants them.

    Args:
        env: a `HarnessEnv`, wrapped or not.
        tokenizer: with a chat template.
        eos: ids that end a turn besides the one that the chat template puts there.

    Raises `UserError` for a tokenizer without a chat template that can be used.
    """

    def __init__(self, env: gymnasium.Env[Observation, Any], tokenizer: ChatTokenizer, eos: Sequence[int] = ()) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, tokenizer=tokenizer, eos=eos)
        super().__init__(env, tokenizer, eos)
        self.observation_space = TokenIds(len(tokenizer))
        self.action_space = TokenIds(len(tokenizer))
        self._prompt: list[int] = []
        self._tools: list[dict[str, Any]] | None = None

    def _shown(self, ask: Ask | None, previous: Call | None) -> npt.NDArray[np.int64]:
        self._tools = ask.tools if ask else None
        if ask is None:
            self._prompt = []
        else:
            (ids,) = self.prompts.ids([(ask, previous)])
            if isinstance(ids, PromptError):
                raise ids
            self._prompt = ids
        return np.array(self._prompt, np.int64)

    def _reply(self, action: Any) -> Reply:
        given = np.asarray(action, np.int64) if isinstance(action, Sequence) and not len(action) else np.asarray(action)
        if given not in self.action_space:
            raise UserError(f"an action is an array of token ids of {self.action_space}, not {action!r:.80}")
        ids: list[int] = given.tolist()
        cut = len(ids) >= self._max_tokens > 0 and ids[-1] not in self.prompts.ends
        text = self.prompts.text(ids)
        calls = self.prompts.calls(text, self._prompt, self._tools)
        return Reply(text, "length" if cut else "stop", calls, self._prompt, ids)
