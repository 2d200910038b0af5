"""The shape of the bundled models: a small Qwen3, a byte-level BPE tokenizer, a chat template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from whale_envs.harness.helpers import Message

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(texts: Iterable[str], whole: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer trained on `texts`, in which digits stand alone and each of `whole` is one token.

    Words keep their leading space, so that a name in a question and the same name in a passage are one token.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    tokenizer.add_tokens([t for t in whole if len(tokenizer.encode(t)) > 1])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(vocab_size: int, pad: int, eos: int, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 of about 0.9 M parameters with tied embeddings, initialised from `seed`.

    The initial standard deviation 0.05 and the gain 2 on the query norm make copying heads form early; with the
    usual 0.02 and 1 they take several times as many tokens at this size.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.05,
        pad_token_id=pad,
        bos_token_id=None,
        eos_token_id=eos,
    )
    model = Qwen3ForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.q_norm.weight, 2.0)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
    """(token ids, which of them the model is to learn) of a conversation, as sampling would meet it.

    What an assistant says is encoded apart from what is before it, since a sampler's tokens never merge with its
    prompt; its tokens and the end of its turn are learned.
    """
    ids: list[int] = []
    learned: list[bool] = []
    pending = ""
    for message in messages:
        pending += f"{START}{message['role']}\n"
        if message["role"] != "assistant":
            pending += f"{message['content']}{END}\n"
            continue
        said = tokenizer.encode(message["content"] + END)
        before = tokenizer.encode(pending)
        ids += before + said
        learned += [False] * len(before) + [True] * len(said)
        pending = "\n"
    return ids, learned
