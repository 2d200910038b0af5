"""Training and harness search against the `whale_envs` registry.

`RSFTTrainer` and `RSFTConfig` are imported when they are asked for, since they bring torch and TRL with them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whale_train.rsft.config import RSFTConfig
    from whale_train.rsft.trainer import RSFTTrainer

__all__ = ["RSFTConfig", "RSFTTrainer"]


def __getattr__(name: str) -> Any:
    if name == "RSFTConfig":
        from whale_train.rsft.config import RSFTConfig

        return RSFTConfig
    if name == "RSFTTrainer":
        from whale_train.rsft.trainer import RSFTTrainer

        return RSFTTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
