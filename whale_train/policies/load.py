"""Policies by name."""

from __future__ import annotations

import logging

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from whale_envs.errors import UserError
from whale_train.policies.base import Policy, Sampling
from whale_train.policies.find import find_engine, find_model
from whale_train.policies.openai import load_endpoint
from whale_train.policies.transformers import TransformersPolicy
from whale_train.policies.vllm import VLLMPolicy


def load_policy(
    spec: str, domain: str, sampling: Sampling | None = None, max_batch: int = 256, device: str | None = None
) -> Policy:
    """The policy that `spec` names: an endpoint's (see `load_endpoint`), that of an engine (see `find_engine`), or that
    of a model (see `find_model`).

    `max_batch` is the most sequences that are decoded, or requests that are on their way, at once; for the rest, see
    `load_model`. Raises what these do.
    """
    if spec.startswith("openai:"):
        return load_endpoint(spec, sampling, max_batch)
    if spec.startswith("vllm:"):
        where, share = find_engine(spec)
        return VLLMPolicy(where, sampling, f"vllm:{where}", max_batch, share)
    return load_model(spec, domain, sampling, max_batch, device)


def load_model(
    spec: str, domain: str, sampling: Sampling | None = None, max_batch: int = 256, device: str | None = None
) -> TransformersPolicy:
    """The policy of a model that `find_model` finds.

    Weights are in float32 on a CPU and in the model's own type elsewhere; `device` None takes a GPU if there is one.

    Raises `UserError` when there is no such model, or it is no causal language model with a tokenizer and a chat
    template.
    """
    where, name = find_model(spec, domain)
    device = device or best_device()
    model, tokenizer = open_model(where, device)
    return TransformersPolicy(model, tokenizer, sampling, name, max_batch, device)


def best_device() -> str:
    """A GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def open_model(where: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in a folder or on the hub, on the CPU, in the type for `device`, and its tokenizer.

    Raises `UserError` when there is no causal language model with a tokenizer.
    """
    for library in ("transformers", "huggingface_hub"):  # what went wrong is said once, below
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32 if device == "cpu" else "auto")
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        line = " ".join(str(error).split())[:300]
        if "ignore_mismatched_sizes" in line:  # which points to a table that was not printed
            line = "its weights have other shapes than its config.json says; save both again"
        raise UserError(f"cannot load a causal language model from {where}: {line}") from error
    return model, tokenizer
