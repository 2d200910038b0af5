"""A model's weights apart from its trainer: frozen copies, whole weights of a model that is spread out."""

from __future__ import annotations

import copy

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

Model = PreTrainedModel | PeftModel


def base_of(model: Model) -> PreTrainedModel:
    """The model itself, without what PEFT has put around it."""
    found: PreTrainedModel = model.get_base_model() if isinstance(model, PeftModel) else model  # type: ignore[assignment]
    return found


def twin(model: Model, device: torch.device) -> Model:
    """A frozen copy on `device`, in evaluation mode, without the fused head that TRL has given to the model."""
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    nn.Module.to(copied, device)
    base_of(copied).__dict__.pop("forward", None)  # the copied one would still call the first model's
    return copied


def whole_weights(model: Model) -> dict[str, Tensor]:
    """The state dict of a model, with tensors that FSDP has spread over processes put together in each of them."""
    return {name: _whole(value) for name, value in model.state_dict().items()}


def merged_weights(model: Model) -> dict[str, Tensor]:
    """The whole weights under the names that the model has without PEFT, which is added to a copy of them."""
    if isinstance(model, PeftModel):
        return whole_weights(copy.deepcopy(model).merge_and_unload())
    return whole_weights(model)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor.detach()
