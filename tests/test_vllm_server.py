"""A vLLM server samples what the transformers policy does, and from the weights that it was last given.

Runs in an environment of its own: `make test-vllm`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from whale_envs import UserError, load_domain
from whale_envs.episode import Call, Reply
from whale_envs.harness.helpers import Ask, user
from whale_envs.services import Patience
from whale_train import RSFTConfig, RSFTTrainer
from whale_train.policies.base import Policy, PolicyError, Request, Sampling
from whale_train.policies.load import load_model, load_policy, open_model
from whale_train.policies.transformers import TransformersPolicy
from whale_train.policies.vllm_server import VLLMServerPolicy
from whale_train.rsft.handover import Handover, score
from whale_train.tiny import MODELS

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

MATH = str(MODELS / "math")
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the bundled model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    log = tmp_path_factory.mktemp("server") / "log"
    # `vllm serve` looks for a distribution of that name, which the one for CPUs is not
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MATH]
    with log.open("w") as out:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"],
            env={**os.environ, **settings}, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        until = time.monotonic() + 800
        while "Application startup complete" not in log.read_text():
            assert server.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(scope="module")
def plain() -> TransformersPolicy:
    return load_model(f"hf:{MATH}", "math", GREEDY, device="cpu")


def requests(count: int) -> list[Request]:
    tasks = load_domain("math").splits.weight[:count]
    return [Request(Ask([user(task.shown["question"])]), seed, 1 + 7 * seed % 30) for seed, task in enumerate(tasks)]


def replied(policy: Policy, asked: list[Request]) -> list[tuple[object, ...]]:
    """What was replied, but for log-probabilities."""
    replies = policy.generate(asked)
    assert all(isinstance(reply, Reply) for reply in replies), replies
    return [(r.text, r.finish_reason, r.prompt_ids, r.completion_ids) for r in replies if isinstance(r, Reply)]


def test_a_server_that_is_given_weights_samples_from_them(url: str, plain: TransformersPolicy) -> None:
    server, asked = VLLMServerPolicy(MATH, url, GREEDY), requests(16)
    before = replied(server, asked)
    assert before == replied(plain, asked)
    model, tokenizer = open_model(MATH, "cpu")
    handover = Handover(server, tokenizer)
    handover.to_engine(model)
    start = server.weights_hash
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    handover.make_room()
    handover.to_engine(model)
    after, wanted = replied(server, asked), replied(TransformersPolicy(model, tokenizer, GREEDY), asked)
    assert after == wanted != before
    assert server.weights_hash != start
    handover.to_engine(plain.model)
    assert server.weights_hash == start
    assert replied(server, asked) == before


def test_a_server_that_does_not_take_them_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = VLLMServerPolicy(MATH, url, GREEDY)
    model, tokenizer = open_model(MATH, "cpu")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.5)
    monkeypatch.setattr(VLLMServerPolicy, "load_weights", lambda self, weights: None)
    with pytest.raises(UserError, match="samples from other weights than those that are trained"):
        Handover(server, tokenizer).to_engine(model)


def test_a_request_that_cannot_be_answered_fails_alone(url: str) -> None:
    bad, good = VLLMServerPolicy(MATH, url, GREEDY).generate([Request(Ask([user("x " * 9000)]), 0, 5), requests(1)[0]])
    assert isinstance(bad, PolicyError) and "expected 1 to 2047" in str(bad)
    assert isinstance(good, Reply)


def test_turns_append_tokens(url: str) -> None:
    server = VLLMServerPolicy(MATH, url)
    first = requests(1)[0]
    (reply,) = server.generate([first])
    assert isinstance(reply, Reply)
    more = Ask([*first.ask.messages, reply.view().message, user("And then?")])
    (later,) = server.generate([Request(more, 1, 5, Call(first.ask.messages, reply))])
    assert isinstance(later, Reply) and later.prompt_ids
    past = [*(reply.prompt_ids or []), *(reply.completion_ids or [])]
    assert later.prompt_ids[: len(past)] == past


def test_an_rsft_trainer_samples_at_the_server(url: str, tmp_path: Path) -> None:
    args = RSFTConfig(
        output_dir=str(tmp_path), max_steps=1, prompts_per_step=4, num_generations=4, minibatch_size=4,
        learning_rate=1e-3, use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True, kl_sequences=0,
    )  # fmt: skip
    server = VLLMServerPolicy(MATH, url)
    model, tokenizer = open_model(MATH, "cpu")
    trainer = RSFTTrainer(model, "whale/Math", "h0", args, tokenizer, policy=server)
    trainer.train()
    (logs,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert logs["failures/policy"] == 0 and logs["updates"] > 0
    row = [[5, 6, 7, 8]]
    assert server.logprobs(row)[0] == pytest.approx(score(trainer.model, row)[0], abs=1e-3)


def test_the_openai_policy_gets_token_ids_of_a_server(url: str) -> None:
    (reply,) = load_policy(f"openai:{MATH}@{url}", "math").generate(requests(3)[2:])
    assert isinstance(reply, Reply) and reply.prompt_ids and reply.completion_ids
    assert len(reply.logprobs or []) == len(reply.completion_ids)


def test_a_server_that_is_gone_is_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = VLLMServerPolicy(MATH, url)
    server._patience = Patience(retries=1, backoff=0.01, max_wait=0.1, silence=1.0, total=2.0)
    server._root = "http://127.0.0.1:9"
    with pytest.raises(UserError, match="a server that takes weights is started with VLLM_SERVER_DEV_MODE=1") as info:
        server.load_weights({"a": torch.zeros(2)})
    assert "\n" not in str(info.value)
