"""A policy over vLLM, in this process: paged keys and values, continuous batching, kernels for GPUs.

Covers: exact prompts (`whale_envs.prompts`) as token ids, prefix caching, seeds of their own, errors that stay with
their request, new weights from a trainer in the same process, sleep while that trains. Does not cover: several GPUs,
several processes, LoRA without merging, images.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from whale_envs.errors import UserError
from whale_envs.prompts import Prompts
from whale_train.policies.base import Ended, Engine, Request, Sampler, Sampling
from whale_train.policies.find import SHARE
from whale_train.policies.row import Desk, Row
from whale_train.policies.transformers import end_tokens

#: Bytes for keys and values on a CPU, where memory is the tools' and the trainer's, too. VLLM_CPU_KVCACHE_SPACE (in
#: GiB) goes before it.
CPU_CACHE_BYTES = 2**30
#: Read when vLLM is imported or an engine is opened. Without a process of its own, an engine takes weights from memory
#: and ends with its policy.
SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
#: Set unless the user has: no report of how it is used goes out, no log of every start, and on a CPU, threads stay
#: where they are.
DEFAULTS = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
#: What is fetched of a model on the hub.
FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
#: How to end the engine that was opened last. The end of one takes from all in a process what vLLM keeps in globals, so
#: that there is one at a time, and none ends by chance, when garbage is collected, after the next has been opened.
_last: list[Callable[[], object]] = []


class VLLMPolicy(Engine):
    """Samples replies with vLLM.

    Replies are as those of `TransformersPolicy`, their token ids, log-probabilities (of the plain model: temperature
    1, no top-k, no top-p) and finish reasons among them. A reply is decided by weights, prompt and `Request.seed`; what
    else is in the batch changes logits in the last bits only. On a CPU, computations are in float32, elsewhere in 16
    bits.

    Args:
        where: a folder with a causal language model and its tokenizer in the Hugging Face layout, or a hub id.
        sampling: temperature, top-k, top-p.
        name: how people call the policy.
        max_batch: most requests that are decoded at once.
        share: the share of the GPU's memory that the engine may take, weights included.

    A process has one engine at a time: with the next policy, the one before ends.

    Raises `UserError` for a model that vLLM cannot open, a tokenizer without a usable chat template, and among several
    processes; from a sampler, when the engine stops.
    """

    def __init__(
        self,
        where: str,
        sampling: Sampling | None = None,
        name: str = "vllm",
        max_batch: int = 256,
        share: float = SHARE,
    ) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError(
                "vLLM samples in one process, and there are several: leave the policy out, and each process samples "
                "from the model that it trains"
            )
        self.name, self.sampling = name, sampling or Sampling()
        self.folder, self.tokenizer, self.prompts = read_model(where)
        while _last:
            _last.pop()()
        with _opening(where):
            self._engine, self._vllm = _open(self.folder, max_batch, share)
        cpu = self._engine.vllm_config.device_config.device_type == "cpu"
        self._eager = partial(torch.compiler.set_stance, "force_eager" if cpu else "default")
        self._end = weakref.finalize(self, self._engine.engine_core.shutdown)
        _last.append(self._end)
        #: What vLLM raises for a request that it does not take.
        self.refusals = (ValueError, self._vllm.exceptions.VLLMClientError)
        self.desk = Desk(self.prompts, self._engine.model_config.max_model_len)
        self._tickets = count()
        self._live: dict[str, Callable[[Any], None]] = {}  # by request, what is done with its output
        self._asleep = False
        self._hash: str | None = None

    @property
    def weights_hash(self) -> str:
        """12 hex digits of a hash of the weights, as the engine has them, and the sampling."""
        if self._hash is None:
            self._hash = hash_weights(_tensors(self.folder), self._engine.model_config.dtype, self.sampling)
        return self._hash

    @property
    def bits(self) -> int:
        """See `Engine.bits`."""
        return int(torch.finfo(self._engine.model_config.dtype).bits)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """See `Engine.load_weights`. What was computed with the weights before is forgotten."""
        assert not self._live, "requests are on their way"
        self._wake()
        with self._calls():
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
            self._engine.reset_prefix_cache()
        self._hash = hash_weights(weights.values(), self._engine.model_config.dtype, self.sampling)

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.logprobs`."""
        self._wake()
        found: dict[int, list[float]] = {}
        params = self._vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, **self._fixed)
        for at, row in enumerate(rows):

            def then(output: Any, at: int = at, row: Sequence[int] = row) -> None:
                given = output.prompt_logprobs[1:]  # the first token has none
                found[at] = [each[token].logprob for each, token in zip(given, row[1:], strict=True)]

            self.send(row, params, then)
        while self._live:
            self.step()
        return [found[at] for at in range(len(rows))]

    def sleep(self) -> None:
        """See `Engine.sleep`: weights go to the CPU's memory, keys and values away. On a CPU, nothing moves."""
        with self._calls():
            self._engine.sleep(level=1)
        self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            with self._calls():
                self._engine.wake_up()
            self._asleep = False

    def sampler(self) -> Sampler:
        """See `Policy.sampler`."""
        self._wake()
        return VLLMSampler(self)

    def params(self, row: Row) -> Any:
        """How a row is sampled, as vLLM takes it."""
        stop = list(row.request.ask.stop)
        return self._vllm.SamplingParams(
            temperature=self.sampling.temperature,
            top_k=self.sampling.top_k or -1,
            top_p=self.sampling.top_p,
            seed=int(row.stream >> 1),  # near seeds far apart, and a sign is not taken
            max_tokens=row.cap,
            stop=stop,
            include_stop_str_in_output=True,
            stop_token_ids=sorted(self.prompts.ends),
            logprobs=0,
            detokenize=bool(stop),
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )

    @property
    def _fixed(self) -> dict[str, Any]:
        return {
            "temperature": 0.0,
            "detokenize": False,
            "output_kind": self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        }

    def send(self, prompt: Sequence[int], params: Any, then: Callable[[Any], None]) -> str:
        """Hand a request to the engine; `then` gets its output. Raises `refusals`."""
        name = str(next(self._tickets))
        self._engine.add_request(name, self._vllm.inputs.tokens_input(list(prompt)), params)
        self._live[name] = then
        return name

    def step(self) -> None:
        """Sample one token for each request at work."""
        with self._calls(), self._eager():
            outputs = self._engine.step()
        for output in outputs:
            if output.finished and (then := self._live.pop(output.request_id, None)):
                then(output)

    def drop(self, names: Iterable[str]) -> None:
        """Forget requests that have not ended."""
        left = [name for name in names if self._live.pop(name, None)]
        with self._calls():
            self._engine.abort_request(left)

    def close(self) -> None:
        """End the engine, and give its memory back; so does the end of the policy."""
        self._end()

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Around calls of the engine: what goes wrong in it is nothing that it goes on from."""
        if not self._end.alive:
            raise UserError(f"policy {self.name} was ended: a process has one vLLM engine, that of its last policy")
        try:
            yield
        except Exception as error:
            raise UserError(
                f"the vLLM engine of {self.name} stopped ({_line(error)}): run the same again, and it goes on from "
                "what is on disk"
            ) from error


class VLLMSampler(Sampler):
    """A sampler over a policy's engine."""

    def __init__(self, policy: VLLMPolicy) -> None:
        self._policy = policy
        self._tickets = count()
        self._open: dict[int, str] = {}  # ticket: the engine's name for it
        self._ended: list[Ended] = []

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """See `Sampler.submit`."""
        tickets = [next(self._tickets) for _ in requests]
        for row in self._policy.desk.make(requests, tickets):
            try:
                if not row.error:
                    self._open[row.ticket] = self._policy.send(row.prompt, self._policy.params(row), self._then(row))
            except self._policy.refusals as error:
                row.error = f"vLLM refused the request: {_line(error)}"
            if row.error:
                self._ended.append(self._policy.desk.ended(row))
        return tickets

    def _then(self, row: Row) -> Callable[[Any], None]:
        def then(output: Any) -> None:
            (found,) = output.outputs
            for token, given in zip(found.token_ids, found.logprobs, strict=True):
                row.add(token, given[token].logprob)
            if found.finish_reason in ("stop", "length"):
                row.finish = found.finish_reason
            else:
                row.error = f"vLLM ended the request: {found.finish_reason}"
            del self._open[row.ticket]
            self._ended.append(self._policy.desk.ended(row))

        return then

    def collect(self) -> list[Ended]:
        """See `Sampler.collect`. Raises `UserError` when the engine stops."""
        while self._open and not self._ended:
            self._policy.step()
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """See `Sampler.close`."""
        if self._open:
            self._policy.drop(self._open.values())
            self._open = {}


def read_model(where: str) -> tuple[Path, PreTrainedTokenizerBase, Prompts]:
    """The folder of a model in a folder or on the hub, its tokenizer, and its prompts. Raises `UserError`."""
    with _opening(where):
        folder = Path(where) if Path(where).is_dir() else Path(snapshot_download(where, allow_patterns=FILES))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        named = (folder / "generation_config.json").exists()
        generation = GenerationConfig.from_pretrained(folder) if named else None
    return folder, tokenizer, Prompts(tokenizer, end_tokens(generation, tokenizer))


def hash_weights(weights: Iterable[Tensor], dtype: torch.dtype, sampling: Sampling) -> str:
    """12 hex digits of a hash of what weights hold in a type, and the sampling: names are left out, since a tensor that
    is tied to another goes by one name or two, and so are repetitions."""
    found = set()
    for tensor in weights:
        data = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        digest = hashlib.sha256(f"{tuple(data.shape)}".encode())
        digest.update(data.flatten().view(torch.uint8).numpy().data)
        found.add(digest.digest())
    return hashlib.sha256(b"".join(sorted(found)) + str(sampling).encode()).hexdigest()[:12]


def _tensors(folder: Path) -> Iterator[Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} has its weights in another format: expected *.safetensors; save the model again")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                yield opened.get_tensor(name)


def _open(folder: Path, max_batch: int, share: float) -> tuple[Any, Any]:
    """The engine of a model, and vLLM."""
    os.environ.update(SETTINGS)
    for setting, value in DEFAULTS.items():
        os.environ.setdefault(setting, value)
    with warnings.catch_warnings():  # of use to who works on vLLM
        warnings.simplefilter("ignore")
        import vllm
        import vllm.exceptions
        import vllm.inputs
        from vllm.platforms import current_platform

        cpu = current_platform.is_cpu()
        # on a CPU, compiling takes longer than most runs, and sizes are known without a trial
        only_cpu = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES}
        args = vllm.EngineArgs(
            model=str(folder),
            generation_config="vllm",  # sampling is spelled out in each request
            seed=0,  # of what has no seed of its own: nothing here
            max_model_len=-1,  # the model's, or what fits
            max_num_seqs=max_batch,
            enable_prefix_caching=True,
            enable_sleep_mode=not cpu,
            gpu_memory_utilization=share,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **(only_cpu if cpu else {}),
        )
        return vllm.LLMEngine.from_engine_args(args), vllm


@contextmanager
def _opening(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of any kind: a file, a shape, a type, a size, a kernel that it does not have
        raise UserError(f"vLLM cannot open {where}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
