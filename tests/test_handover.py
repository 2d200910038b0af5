"""A trainer's engine samples from the weights that were trained, or the run ends in a line that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_agent
import torch
from peft import LoraConfig
from rsft_runs import apart, curve, trainer
from torch import Tensor

from whale_envs import UserError
from whale_train import RSFTTrainer
from whale_train.policies.base import Engine
from whale_train.policies.transformers import TransformersPolicy, hash_weights
from whale_train.rsft import checkpoint
from whale_train.rsft.handover import Handover, score


class Apart(Engine):
    """An engine over a model of its own, which sleeps as one on a GPU does."""

    bits = 32

    def __init__(self) -> None:
        self.inner = TransformersPolicy(tiny_agent.model(5), tiny_agent.tokenizer(), name="apart")
        self.name = "apart"
        self.log: list[str] = []

    @property
    def weights_hash(self) -> str:
        return self.inner.weights_hash

    def sampler(self) -> Any:
        self.log += [] if self.log[-1:] == ["sample"] else ["sample"]
        return self.inner.sampler()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self.inner.load_weights(weights)
        self.log.append(hash_weights(self.inner.model))

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        return score(self.inner.model, rows)

    def sleep(self) -> None:
        self.log.append("sleep")


class Deaf(Apart):
    """Takes no weights after the first."""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        if not self.log:
            super().load_weights(weights)


class Forgetful(Apart):
    """Leaves out one tensor."""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        kept = {name: value for name, value in weights.items() if "layers.1.mlp.down_proj" not in name}
        self.inner.model.load_state_dict(kept, strict=False)
        self.inner.weights_changed()
        self.log.append("loaded")


class Broken(Apart):
    """Finds nothing likely or unlikely."""

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float("nan")] * (len(row) - 1) for row in rows]


def trained(folder: Path, **changes: Any) -> RSFTTrainer:
    made = trainer(folder, **{"harness": tiny_agent.ONE_TURN, "max_steps": 2, **changes})
    made.train()
    return made


def test_an_engine_is_given_the_weights_of_each_step_and_sleeps_while_they_are_made(tmp_path: Path) -> None:
    engine = Apart()
    made, shared = trained(tmp_path / "apart", policy=engine), trained(tmp_path / "shared")
    assert curve(made) == curve(shared)
    assert [entry for entry in engine.log if entry in ("sample", "sleep")] == ["sample", "sleep"] * 2
    handed = [entry for entry in engine.log if entry not in ("sample", "sleep")]
    assert (handed[0], handed[-1]) == (hash_weights(tiny_agent.model()), hash_weights(made.model))
    assert len(handed) == 3
    assert engine.log.index("sleep") < engine.log.index(handed[1])


def test_a_stale_engine_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"policy apart samples from other weights than those that are trained") as info:
        trained(tmp_path, policy=Deaf())
    assert "\n" not in str(info.value)
    assert checkpoint.latest(tmp_path) is None  # a step counts when its weights have been handed over
    again = trainer(tmp_path, harness=tiny_agent.ONE_TURN, policy=Apart())
    again.train(resume_from_checkpoint=True)
    assert apart(again.model, trained(tmp_path.parent / "undisturbed").model) == 0


def test_steps_below_the_tolerance_do_not_hide_a_stale_engine(tmp_path: Path) -> None:
    assert curve(trained(tmp_path / "fresh", policy=Apart(), learning_rate=1e-6))
    with pytest.raises(UserError, match=r"policy apart still samples from the weights before"):
        trained(tmp_path / "stale", policy=Deaf(), learning_rate=1e-6)


def test_weights_that_arrive_in_part_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"log-probabilities are [\d.]+ a token away from the trainer's, expected at"):
        trained(tmp_path / "part", policy=Forgetful())
    with pytest.raises(UserError, match=r"log-probabilities are nan a token away"):
        trained(tmp_path / "nan", policy=Broken())


def test_handing_over_the_same_weights_again_is_no_error() -> None:
    engine, model = Apart(), tiny_agent.model()
    handover = Handover(engine, tiny_agent.tokenizer())
    for _ in range(2):
        handover.to_engine(model)
    assert engine.log[0] == engine.log[1]


def test_sixteen_bits_are_allowed_their_rounding_and_no_more() -> None:
    class Half(Apart):
        bits = 16

        def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
            return score(self.inner.model.bfloat16(), rows)

    model = tiny_agent.model()
    Handover(Half(), tiny_agent.tokenizer()).to_engine(model)
    engine = Half()
    engine.load_weights = lambda weights: None  # type: ignore[method-assign]
    with pytest.raises(UserError, match="samples from other weights"):
        Handover(engine, tiny_agent.tokenizer()).to_engine(model)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT reads it
def test_an_engine_is_given_adapters_merged(tmp_path: Path) -> None:
    engine = Apart()
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    made = trained(tmp_path, policy=engine, peft_config=lora, max_steps=1)
    rows = [[3, 7, 8, 9, 10, 1], [3, 9, 9, 1]]
    ours, theirs = score(made.model, rows), engine.logprobs(rows)
    assert [a for row in theirs for a in row] == pytest.approx([a for row in ours for a in row], abs=1e-5)
    assert engine.inner.model.state_dict().keys() == tiny_agent.model().state_dict().keys()
    assert any("lora" in name for name, _ in made.model.named_parameters())  # its own are as they were


def test_scores_are_the_models_log_probabilities() -> None:
    model = tiny_agent.model().train()
    row = [3, 7, 8, 9]
    (found,) = score(model, [row])
    with torch.no_grad():
        logits = model.eval()(torch.tensor([row])).logits[0].log_softmax(-1)
    assert found == pytest.approx([float(logits[at, token]) for at, token in enumerate(row[1:])])
    model.train()
    score(model, [row])
    assert model.training
