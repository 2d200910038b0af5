"""A toy domain, a random Qwen3 of 60 k parameters and a character tokenizer, for tests of sampling and training."""

from __future__ import annotations

import gc
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from whale_envs import Domain, Episode, Harness, Splits, Task, TaskSet, Verdict, World
from whale_train.policies.transformers import TransformersPolicy

gc.freeze()  # every training begins with a collection of garbage, which looks at all that was ever imported

SPECIAL = ["<pad>", "<end>", "<user>", "<assistant>", "<system>", "<tool>", "<unk>"]
LETTERS = "abcdefgh"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

ONE_TURN = Harness(
    "def run(task, tools):\n    reply = yield [{'role': 'user', 'content': task.letter}]\n    return reply.text\n",
    "one",
    True,
)
#: asks twice, the second time with the first reply in its history
TWO_TURNS = Harness(
    "def run(task, tools):\n"
    "    messages = [{'role': 'user', 'content': task.letter}]\n"
    "    first = yield messages\n"
    "    second = yield [*messages, first.message, {'role': 'user', 'content': 'h'}]\n"
    "    return first.text + second.text\n",
    "two",
    True,
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a letter."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *LETTERS])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unk>")
    fast.chat_template = TEMPLATE
    return fast


def model(seed: int = 0) -> Qwen3ForCausalLM:
    """A random Qwen3, d = 64, two layers, in float32."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(SPECIAL) + len(LETTERS),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    ).eval()


def policy(seed: int = 0) -> TransformersPolicy:
    """A policy over a fresh random model."""
    return TransformersPolicy(model(seed), tokenizer(), name="tiny")


class _Echo(World):
    """The answer must hold the task's letter."""

    def __init__(self, task: Task) -> None:
        self.tools = {}
        self.gold = task.gold

    def verdict(self, answer: Any) -> Verdict:
        right = isinstance(answer, str) and self.gold in answer
        return Verdict(float(right), "holds the letter" if right else "does not")

    def behaviours(self, episode: Episode) -> dict[str, bool]:
        return {"answered": bool(episode.answer)}

    def solve(self) -> str:
        return str(self.gold)


class Echo(Domain):
    """Say the letter that you were shown."""

    name = "search-qa"
    max_tokens = 12

    def __init__(self, tasks: int = 24) -> None:
        def made(split: str, n: int) -> TaskSet:
            letters = [LETTERS[i % len(LETTERS)] for i in range(n)]
            return TaskSet([Task(f"{split}-{i}", {"letter": x}, x) for i, x in enumerate(letters)], split)

        self.splits = Splits(made("weight", tasks), made("harness", 4), made("test", 4))

    def world(self, task: Task) -> World:
        """A fresh world."""
        return _Echo(task)
