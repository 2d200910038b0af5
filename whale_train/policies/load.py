"""Policies by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from whale_envs.domains import DOMAINS
from whale_envs.errors import UserError, unknown
from whale_train.policies.base import Sampling
from whale_train.policies.transformers import TransformersPolicy
from whale_train.tiny import MODELS

KINDS = "tiny, hf:DIR or hf:OWNER/NAME"


def load_policy(
    spec: str, domain: str, sampling: Sampling | None = None, max_batch: int = 256, device: str | None = None
) -> TransformersPolicy:
    """The policy that `spec` names: "tiny" (the bundled model of `domain`), "hf:DIR" or a folder (a model on disk in
    the Hugging Face layout), "hf:OWNER/NAME" (a model of the hub).

    Weights are in float32 on a CPU and in the model's own type elsewhere; `device` None takes a GPU if there is one.

    Raises `UserError` when there is no such model, or it is no causal language model with a tokenizer and a chat
    template.
    """
    if spec == "tiny":
        if domain not in DOMAINS:
            raise unknown("domain", domain, DOMAINS)
        folder = MODELS / domain
        if not folder.is_dir():
            raise UserError(
                f"the bundled model for {domain} is not in {folder}: reinstall the package, "
                f"or train it with `python -m whale_train.tiny.pretrain {domain}`"
            )
        return _load(str(folder), f"tiny:{domain}", sampling, max_batch, device)
    kind, colon, where = spec.partition(":")
    if kind == "hf" and where:
        return _load(where, spec, sampling, max_batch, device)
    if not colon and Path(spec).is_dir():
        return _load(spec, f"hf:{spec}", sampling, max_batch, device)
    raise UserError(f"unknown policy {spec!r}: expected {KINDS}")


def _load(where: str, name: str, sampling: Sampling | None, max_batch: int, device: str | None) -> TransformersPolicy:
    folder = Path(where).expanduser()
    if folder.is_dir():
        where = str(folder)
        _check_folder(folder)
    elif folder.exists():
        raise UserError(f"{where} is a file: give the folder that holds config.json, weights and tokenizer")
    elif where.count("/") > 1 or where.startswith((".", "/", "~")):
        raise UserError(f"no folder {where}: give one with config.json, weights and tokenizer, or a hub id OWNER/NAME")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32 if device == "cpu" else "auto")
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        line = " ".join(str(error).split())[:300]
        raise UserError(f"cannot load a causal language model from {where}: {line}") from error
    return TransformersPolicy(model, tokenizer, sampling, name, max_batch, device)


def _check_folder(folder: Path) -> None:
    """Say in a line what a folder lacks, before transformers says it in many."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json: expected a model's folder as save_pretrained() leaves it")
    try:
        json.loads((folder / "config.json").read_bytes())
    except ValueError as error:
        raise UserError(f"{folder}/config.json is no JSON ({error}): save the model again") from None
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise UserError(f"{folder} has no weights (*.safetensors): save the model there with save_pretrained()")
    if not any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        raise UserError(f"{folder} has no tokenizer (tokenizer.json): save it there with tokenizer.save_pretrained()")
