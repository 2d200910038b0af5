"""AdamW for weights in 16 bits, whose steps are smaller than what such a number can take.

A step moves a weight by about the learning rate. In bfloat16 a weight of 0.02 is 1.2e-4 away from the next number, so
that a step of 1e-6, the paper's learning rate, is rounded away, each time: nothing is learnt, and no figure says so.
So each weight has a copy in 32 bits, which is what is trained, and the model has that rounded. Sampler, gradients and
saved weights stay in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

#: What is kept of a parameter in 32 bits.
_KEPT = ("master", "exp_avg", "exp_avg_sq")


def in_16_bits(model: nn.Module) -> bool:
    """Whether a model trains weights of 16 bits."""
    return any(p.requires_grad and p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())


def check_kept(optimizer: torch.optim.Optimizer) -> None:
    """Raise `ValueError` for an optimiser that was given the state of a `MasterAdamW` and is none."""
    own = getattr(optimizer, "optimizer", optimizer)  # accelerate puts its own around it
    if not isinstance(own, MasterAdamW) and any("master" in state for state in own.state.values()):
        raise ValueError("its optimiser trained weights of 16 bits, and these have 32")


class MasterAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) on copies in 32 bits.

    With parameters of 32 bits it does what `torch.optim.AdamW` does. It takes 12 bytes a parameter.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """See `torch.optim.Optimizer.step`."""
        with torch.enable_grad():
            loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, self._state_of(p), group)
        return loss

    def _state_of(self, p: Tensor) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            master = p.detach().to(torch.float32, copy=True)
            state.update(step=0, master=master, exp_avg=torch.zeros_like(master), exp_avg_sq=torch.zeros_like(master))
        return state

    @staticmethod
    def _step(p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        assert p.grad is not None
        (b1, b2), lr, grad = group["betas"], group["lr"], p.grad.float()
        master, mean, square = (state[name] for name in _KEPT)
        state["step"] += 1
        mean.lerp_(grad, 1 - b1)
        square.mul_(b2).addcmul_(grad, grad, value=1 - b2)
        spread = (square.sqrt() / (1 - b2 ** state["step"]) ** 0.5).add_(group["eps"])
        master.mul_(1 - lr * group["weight_decay"]).addcdiv_(mean, spread, value=-lr / (1 - b1 ** state["step"]))
        p.copy_(master)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer.load_state_dict`, which would round what is kept to the type of the parameter.

        Raises `ValueError` for the state of another optimiser.
        """
        if not all(state.keys() >= set(_KEPT) for state in state_dict["state"].values()):
            raise ValueError("its optimiser trained weights of 32 bits, and these have 16")
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(saved, own, strict=True):
            for name in _KEPT:
                if number in state_dict["state"]:
                    self.state[p][name] = state_dict["state"][number][name].to(p.device, torch.float32, copy=True)
