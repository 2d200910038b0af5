"""A policy over a vLLM server that is given weights: sampling on other GPUs than those that train.

    VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3.5-2B
    RSFTTrainer(..., policy=VLLMServerPolicy("Qwen/Qwen3.5-2B", "http://127.0.0.1:8000/v1"))

Covers: prompts as token ids, built here, so that turns append tokens; asking again, as `OpenAIPolicy` does; weights by
way of a file that both can read. Does not cover: weights from GPU to GPU (NCCL), several trainers of one server.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from whale_envs.episode import Reply
from whale_envs.errors import UserError
from whale_envs.services import ServiceError, asked
from whale_train.policies.base import Engine, Request, Sampling
from whale_train.policies.chat_api import Refused
from whale_train.policies.chat_endpoint import response_type
from whale_train.policies.openai import OpenAIPolicy
from whale_train.policies.row import Desk
from whale_train.policies.vllm import hash_weights, read_model


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Listing(msgspec.Struct):
    data: list[_Model]


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[str, _Logprob] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class _Reset(msgspec.Struct):
    success: bool


class VLLMServerPolicy(OpenAIPolicy, Engine):
    """Samples replies at a vLLM server, as `VLLMPolicy` does in this process.

    Weights go there through a file, in the folder for temporary files (set TMPDIR to one that both machines have); the
    server has to be started with VLLM_SERVER_DEV_MODE=1, which lets whoever reaches it do so.

    Args:
        model: the model's name there, which is a folder or hub id: its tokenizer is read here.
        url: the server's base URL, which ends in /v1.
        sampling: temperature, top-k, top-p.
        max_batch: most requests on their way at once.

    Raises `UserError` as `OpenAIPolicy` does, and for a server that takes no weights.
    """

    _path = "/completions"
    bits = 16  # it may be 32, which allows less; the server does not say

    def __init__(self, model: str, url: str, sampling: Sampling | None = None, max_batch: int = 64) -> None:
        super().__init__(model, url, sampling, max_batch=max_batch)
        if not self._dialect.token_ids:
            raise UserError(f"the server at {url} is no vLLM: expected one, which takes weights and returns token ids")
        self.name = f"vllm:{model}"
        _, self.tokenizer, self.prompts = read_model(model)
        listing = self._ask(_Listing, lambda: self._client.get("/models", cast_to=response_type()))
        context = next(found.max_model_len for found in listing.data if found.id == model) or 2**31
        self._desk, self._desk_lock = Desk(self.prompts, context), threading.Lock()
        self._root = url.rstrip("/").removesuffix("/v1")
        self._hash: str | None = None

    @property
    def weights_hash(self) -> str:
        """12 hex digits of a hash of the weights that it was given last, and the sampling."""
        return self._hash or super().weights_hash

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """See `Engine.load_weights`."""
        # tied ones twice: on a CPU, vLLM keeps a packed copy of a head, which it renews only when it is given one
        whole = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()
        }
        with tempfile.TemporaryDirectory(prefix="whale-weights-") as folder:
            save_file(whole, Path(folder) / "model.safetensors")
            self._tell("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        if not msgspec.json.decode(self._tell("/reset_prefix_cache", {}), type=_Reset).success:
            raise UserError(f"the server of {self.name} still samples for someone else: one trainer at a time")
        self._hash = hash_weights(weights.values(), torch.float32, self.sampling)

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.logprobs`."""
        return [self._score(list(row)) for row in rows]

    def sleep(self) -> None:
        """See `Engine.sleep`: its memory is not the trainer's."""

    def _score(self, row: list[int]) -> list[float]:
        body = {"model": self._endpoint.model, "prompt": row, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        post = self._client.post
        found = self._ask(_Completion, lambda: post(self._path, cast_to=response_type(), body=body))
        given = found.choices[0].prompt_logprobs or []
        return [each[str(token)].logprob for each, token in zip(given[1:], row[1:], strict=True) if each]

    def _ask(self, kind: type[Any], send: Any) -> Any:
        """An answer of that kind. Raises `UserError` when there is none."""
        try:
            return asked(
                self._endpoint, self._sdk, lambda: msgspec.json.decode(send().content, type=kind), self._patience
            )
        except ServiceError as error:
            raise UserError(f"{error}: mend it, then run the same again") from None

    def _tell(self, path: str, body: dict[str, Any]) -> bytes:
        def send() -> bytes:
            content: bytes = self._client.post(self._root + path, cast_to=response_type(), body=body).content
            return content

        try:
            found: bytes = asked(self._endpoint, self._sdk, send, self._patience)
            return found
        except (ServiceError, UserError) as error:
            raise UserError(f"{error}; a server that takes weights is started with VLLM_SERVER_DEV_MODE=1") from None

    def _write(self, request: Request) -> dict[str, Any]:
        with self._desk_lock:  # what was rendered is remembered
            (row,) = self._desk.make([request], [0])
        if row.error:
            raise ValueError(row.error)
        return {
            "model": self._endpoint.model,
            "prompt": row.prompt,
            "max_tokens": row.cap,
            "seed": int(row.stream >> 1),
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "top_k": self.sampling.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop": list(request.ask.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": sorted(self.prompts.ends),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
        }

    def _read(self, body: bytes, request: Request) -> Reply:
        try:
            (choice,) = msgspec.json.decode(body, type=_Completion).choices
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"the body is no completion: {error}") from None
        prompt, completion = choice.prompt_token_ids, choice.token_ids
        logprobs = [x for x in (choice.logprobs.token_logprobs if choice.logprobs else []) if x is not None]
        if not prompt or completion is None or len(logprobs) != len(completion):
            raise ValueError("the answer has no token ids, or no log-probabilities")
        if choice.finish_reason not in ("stop", "length"):
            raise Refused(f"the reply was broken off: finish_reason {choice.finish_reason!r}")
        text = self.prompts.text(completion)
        calls = self.prompts.calls(text, prompt, request.ask.tools)
        return Reply(text, choice.finish_reason, calls, prompt, completion, logprobs)  # type: ignore[arg-type]
