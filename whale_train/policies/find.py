"""Where a policy is: what can be said of it without loading torch."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from whale_envs.domains import DOMAINS
from whale_envs.errors import UserError, unknown
from whale_train.policies.openai import load_endpoint
from whale_train.tiny import MODELS

KINDS = "tiny, hf:DIR, hf:OWNER/NAME, vllm:DIR, vllm:OWNER/NAME or openai:MODEL@http://HOST:PORT/v1"
#: One of these is a tokenizer's.
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
#: The share of a GPU's memory that an engine takes: a run has up to three at once, and a trainer beside one of them.
SHARE = 0.3
_VLLM = re.compile(r"vllm:(?P<where>.+?)(?:@(?P<share>0?\.\d+))?")


def check_policy(spec: str, domain: str) -> None:
    """Look whether there is what `spec` names: the endpoint of "openai:MODEL", or the model of any other.

    Raises `UserError` as `load_endpoint`, `find_engine` and `find_model` do.
    """
    if spec.startswith("openai:"):
        load_endpoint(spec)
    elif spec.startswith("vllm:"):
        find_engine(spec)
    else:
        find_model(spec, domain)


def find_engine(spec: str) -> tuple[str, float]:
    """(folder or hub id, share of the GPU's memory) of "vllm:DIR" or "vllm:OWNER/NAME", with "@SHARE" after it.

    Raises `UserError` when vLLM is not installed, for a malformed spec, and for what is visibly no model.
    """
    found = _VLLM.fullmatch(spec)
    if found is None:
        raise UserError(f"policy {spec!r}: expected vllm:DIR or vllm:OWNER/NAME, with @0.5 for half of a GPU's memory")
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"policy {spec!r}: vLLM is not installed here: pip install 'whale-rl[vllm]', or choose hf:{found['where']}"
        )
    return _checked(found["where"]), float(found["share"] or SHARE)


def moved(spec: str, folder: Path) -> str:
    """The spec of the same kind of policy for the weights in `folder`."""
    found = _VLLM.fullmatch(spec)
    if found is None:
        return f"hf:{folder}"
    return f"vllm:{folder}" + (f"@{found['share']}" if found["share"] else "")


def find_model(spec: str, domain: str) -> tuple[str, str]:
    """(folder or hub id, name of the policy) of "tiny" (the bundled model of `domain`), "hf:DIR" or a folder (a model
    on disk in the Hugging Face layout), or "hf:OWNER/NAME" (a model of the hub).

    Raises `UserError` when there is no such model, and for a folder that is visibly no causal language model with its
    tokenizer.
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
        return str(folder), f"tiny:{domain}"
    kind, colon, where = spec.partition(":")
    if kind == "hf" and where:
        return _checked(where), spec
    if not colon and Path(spec).is_dir():
        return _checked(spec), f"hf:{spec}"
    raise UserError(f"unknown policy {spec!r}: expected {KINDS}")


def _checked(where: str) -> str:
    folder = Path(where).expanduser()
    if folder.is_dir():
        try:
            _check_folder(folder)
        except OSError as error:
            raise UserError(
                f"cannot read {error.filename}: {error.strerror}; expected a model's folder that you may read"
            ) from None
        return str(folder)
    if folder.exists():
        raise UserError(f"{where} is a file: give the folder that holds config.json, weights and tokenizer")
    if where.count("/") != 1 or where.startswith((".", "/", "~")):
        raise UserError(f"no folder {where}: give one with config.json, weights and tokenizer, or a hub id OWNER/NAME")
    return where


def _check_folder(folder: Path) -> None:
    """Say in a line what a folder lacks, before transformers says it in many."""
    if not any(folder.iterdir()):
        raise UserError(f"{folder} is empty: expected a model's folder as save_pretrained() leaves it")
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} has no config.json: expected a model's folder as save_pretrained() leaves it")
    if "model_type" not in _json(folder / "config.json"):
        raise UserError(f"{folder}/config.json names no model_type: expected the config.json of a causal model")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and not any(folder.glob("*.bin")):
        raise UserError(f"{folder} has no weights (*.safetensors): save the model there with save_pretrained()")
    for file in weights:
        try:
            with file.open("rb"), safe_open(file, framework="numpy"):  # reads the header, and holds it against the size
                pass
        except SafetensorError as error:
            raise UserError(f"{file} is not whole ({error}): save the model again, or copy it again") from None
    if not any((folder / name).exists() for name in TOKENIZERS):
        raise UserError(f"{folder} has no tokenizer (tokenizer.json): save it there with tokenizer.save_pretrained()")
    if (folder / "tokenizer.json").exists():
        _json(folder / "tokenizer.json")


def _json(path: Path) -> Mapping[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}): save the model and its tokenizer again") from None
    if not isinstance(found, dict):
        raise UserError(
            f"{path} holds a JSON {type(found).__name__}: expected an object, as save_pretrained() leaves it"
        )
    return found
