"""What an `RSFTTrainer` cannot use is refused before anything is sampled, in a line that says what to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import tiny_agent
from httpx2 import ConnectError
from rsft_runs import trainer
from trl import SFTConfig

from whale_envs import UserError
from whale_train import RSFTTrainer
from whale_train.tiny import MODELS


def nameless() -> Any:
    model = tiny_agent.model()
    model.config.name_or_path = "no/where/at/all"
    return model


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, "model is a NoneType: expected an id or a folder as text, or a model"),
        ({"model": Path("x")}, "model is a PosixPath"),
        ({"processing_class": "x"}, "processing_class is a str: expected a tokenizer"),
        ({"processing_class": None}, "the model has no name by which its tokenizer could be found"),
        ({"model": nameless, "processing_class": None}, "cannot load a tokenizer .*from 'no/where/at/all'"),
        ({"policy": "tiny"}, "policy 'tiny' takes no weights"),
        ({"env": 5}, "env=5: expected an id such as whale/Math"),
        ({"harness": 5}, "harness=5: expected a name, a path or a Harness, or a list"),
        ({"harness": [tiny_agent.ONE_TURN, None]}, "harness=.*expected a name, a path or a Harness, or a list"),
        ({"report_to": "wandbb"}, "report_to: wandbb is not supported, only"),
    ],
)
def test_what_is_of_another_kind(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as error:
        trainer(tmp_path, **{name: v() if v is nameless else v for name, v in changes.items()})
    assert "\n" not in str(error.value)


def test_settings_of_another_trainer(tmp_path: Path) -> None:
    args = SFTConfig(output_dir=str(tmp_path), use_cpu=True, activation_checkpointing=False)
    with pytest.raises(UserError, match="args is a SFTConfig: expected an RSFTConfig"):
        RSFTTrainer(tiny_agent.model(), tiny_agent.Echo(), tiny_agent.ONE_TURN, args, tiny_agent.tokenizer())  # type: ignore[arg-type]


def test_an_output_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(UserError, match=f"cannot write .*{place}: .*give another output folder"):
            trainer(tmp_path / place)


@pytest.mark.parametrize("model", [str(MODELS / "math"), tiny_agent.model])
def test_a_push_without_a_token_or_a_hub(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"model": model if isinstance(model, str) else model(), "push_to_hub": True, "hub_model_id": "some/body"}
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UserError, match="push_to_hub=True, but there is no token: set HF_TOKEN"):
        trainer(tmp_path, **made)

    def unreachable(*args: Any, **kwargs: Any) -> None:
        raise ConnectError("no such\nhost")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", unreachable)
    with pytest.raises(UserError, match="push_to_hub=True, but the hub cannot be used: no such host; mend it"):
        trainer(tmp_path, **made, hub_token="hf_x")
