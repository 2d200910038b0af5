"""What an `RSFTTrainer` is given, looked at before anything is loaded or made of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import huggingface_hub
from httpx2 import HTTPError
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from whale_envs import UserError
from whale_train.policies.base import Engine
from whale_train.policies.transformers import TransformersPolicy
from whale_train.rsft.config import RSFTConfig


def check(model: Any, args: Any, processing_class: Any, policy: Any) -> None:
    """Raise `UserError` for arguments of another kind than `RSFTTrainer` takes."""
    if not isinstance(model, str | PreTrainedModel | PeftModel):
        raise UserError(f"model is a {type(model).__name__}: expected an id or a folder as text, or a model")
    if not isinstance(args, RSFTConfig):
        raise UserError(
            f"args is a {type(args).__name__}: expected an RSFTConfig, which has the fields of SFTConfig and more"
        )
    if processing_class is not None and not isinstance(processing_class, PreTrainedTokenizerBase | ProcessorMixin):
        raise UserError(
            f"processing_class is a {type(processing_class).__name__}: expected a tokenizer, or a processor with one"
        )
    if processing_class is None and not (isinstance(model, str) or model.config.name_or_path):
        raise UserError("the model has no name by which its tokenizer could be found: give that as processing_class")
    if policy is not None and not isinstance(policy, Engine | TransformersPolicy):
        raise UserError(
            f"policy {getattr(policy, 'name', repr(policy))} takes no weights (it is no Engine), so that it would go "
            "on sampling from those of the start: leave it out, and the model samples itself"
        )


@contextmanager
def making(model: str | PreTrainedModel | PeftModel) -> Iterator[None]:
    """Turn a model, a tokenizer or a `report_to` that is not there into a `UserError`."""
    try:
        yield
    except OSError as error:
        name = model if isinstance(model, str) else model.config.name_or_path
        what = "a model" if isinstance(model, str) else "a tokenizer (give one as processing_class)"
        raise UserError(f"cannot load {what} from {name!r}: {' '.join(str(error).split())[:300]}") from None
    except (RuntimeError, ValueError) as error:
        if "to be installed" not in str(error) and "is not supported, only" not in str(error):
            raise
        raise UserError(f"report_to: {' '.join(str(error).split())}") from None


@contextmanager
def asking_the_hub(token: str | None) -> Iterator[None]:
    """Turn what the hub refuses to somebody who wants to push there into a `UserError`; without a token, at once."""
    if not token and not huggingface_hub.get_token():
        raise UserError(
            "push_to_hub=True, but there is no token: set HF_TOKEN or hub_token to one, or run `hf auth login`"
        )
    try:
        yield
    except (OSError, HTTPError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"push_to_hub=True, but the hub cannot be used: {reason}; mend it or leave it out") from error
