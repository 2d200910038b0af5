"""Settings that must not matter do not: one curve of losses, committed, whatever way it is computed.

`rsft_curve.json` holds the losses of each optimiser step on three steps of fixed rows, in minibatches of 64.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_agent
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from datasets import Dataset
from peft import LoraConfig
from rsft_runs import OnRows, apart, curve, make_rows, trainer
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, TrainerCallback
from trl import SFTConfig, SFTTrainer

from whale_train.rsft.attention import NAME, row_by_row
from whale_train.rsft.rows import Row
from whale_train.rsft.update import minibatches

# peft 0.21 asks transformers by a name that this has given up
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes" / "accelerate"
CURVE: list[float] = json.loads((HERE / "rsft_curve.json").read_bytes())["loss"]
#: whole minibatches, and one that is not
STEPS = [make_rows(128, seed=1), make_rows(80, seed=2), make_rows(20, seed=3)]
# small, since AdamW makes a step of the learning rate even of a gradient that is all rounding
LR = 3e-4
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def of_rsft(folder: Path, **changes: Any) -> tuple[list[float], nn.Module]:
    made = OnRows(STEPS, folder, learning_rate=LR, **changes)
    made.train()
    return [update.loss for update in made.updates], made.model


def of_plain_sft(folder: Path, micro_batch: int) -> tuple[list[float], nn.Module]:
    """TRL's own trainer, on the same rows in the same order, a call for each optimiser step's rows."""
    args = SFTConfig(
        output_dir=str(folder),
        learning_rate=LR,
        lr_scheduler_type="constant",
        num_train_epochs=1,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=64 // micro_batch,
        max_length=None,
        train_sampling_strategy="sequential",
        activation_checkpointing=False,
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    deal = OnRows(STEPS, folder).deal
    batches = [batch for step, rows in enumerate(STEPS) for batch in minibatches(rows, 64, deal.seed_of(step))]
    # its minibatches are all of 64: those that are not are filled with rows that carry no label
    filled = [[*batch, *[Row([2, 2], [-100, -100])] * (64 - len(batch))] for batch in batches]
    rows = [row for batch in filled for row in batch]
    data = Dataset.from_dict({"input_ids": [r.input_ids for r in rows], "labels": [r.labels for r in rows]})
    args.dataset_kwargs = {"skip_prepare_dataset": True}
    plain = SFTTrainer(model=tiny_agent.model(), args=args, train_dataset=data, processing_class=tiny_agent.tokenizer())
    plain.train()
    return [entry["loss"] for entry in plain.state.log_history if "loss" in entry], plain.model


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    """The weights that the curve leads to."""
    losses, model = of_rsft(tmp_path_factory.mktemp("reference"), per_device_train_batch_size=64)
    assert losses == pytest.approx(CURVE, abs=1e-5)
    assert apart(model, tiny_agent.model()) > 10 * LR / 3
    return model


@pytest.mark.parametrize("micro_batch", [1, 8, 5])
def test_the_micro_batch_does_not_matter(micro_batch: int, tmp_path: Path, reference: nn.Module) -> None:
    losses, model = of_rsft(tmp_path, per_device_train_batch_size=micro_batch)
    assert losses == pytest.approx(CURVE, abs=1e-5)
    assert apart(model, reference) < 1e-5


@pytest.mark.parametrize("micro_batch", [64, 8])
def test_rows_without_padding_give_what_padded_ones_give(
    micro_batch: int, tmp_path: Path, reference: nn.Module
) -> None:
    losses, model = of_rsft(tmp_path, per_device_train_batch_size=micro_batch, padding_free=True)
    assert losses == pytest.approx(CURVE, abs=1e-5)
    assert apart(model, reference) < 1e-5


def experts() -> nn.Module:
    """A random mixture of experts, whose config asks for a loss that balances their load."""
    torch.manual_seed(0)
    made = tiny_agent.model().config.to_dict() | {"moe_intermediate_size": 32, "router_aux_loss_coef": 0.1}
    shape = {name: value for name, value in made.items() if name not in ("model_type", "architectures", "dtype")}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, num_experts=4, num_experts_per_tok=2)).eval()


@pytest.mark.parametrize(("given", "within"), [({}, 1e-5), ({"router_aux_loss_coef": 0.1}, 0.01)])
def test_the_micro_batch_does_not_weigh_the_load_of_experts(
    given: dict[str, Any], within: float, tmp_path: Path
) -> None:
    rows, losses = STEPS[2][:8], []
    for micro_batch in (8, 1):
        made = OnRows([rows], tmp_path, model=experts(), per_device_train_batch_size=micro_batch, **given)
        made.train()
        losses.append(made.updates[0].loss)
    assert losses[0] == pytest.approx(losses[1], abs=within)


def test_rows_without_padding_are_attended_to_one_by_one() -> None:
    """No mask over all of them together, whose cost grows with the square of their joint length."""
    model = tiny_agent.model()
    ids = torch.arange(7)[None] + 2
    ends = torch.tensor([0, 3, 7], dtype=torch.int32)
    apart = [model(row).logits for row in (ids[:, :3], ids[:, 3:])]
    with row_by_row(model):
        positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
        logits = model(ids, position_ids=positions, cu_seq_lens_q=ends, cu_seq_lens_k=ends, use_cache=False).logits
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == "sdpa"
    assert torch.allclose(logits, torch.cat(apart, 1), atol=1e-6)
    model.config.layer_types = ["sliding_attention"] * model.config.num_hidden_layers
    with row_by_row(model):
        assert model.config._attn_implementation == "sdpa", "a window is part of a mask"


def test_checkpointed_activations_do_not_matter(tmp_path: Path, reference: nn.Module) -> None:
    losses, model = of_rsft(tmp_path, per_device_train_batch_size=16, activation_checkpointing=True)
    assert losses == pytest.approx(CURVE, abs=1e-5)
    assert apart(model, reference) < 1e-5


def test_plain_sft_on_the_same_rows_gives_the_same(tmp_path: Path, reference: nn.Module) -> None:
    losses, model = of_plain_sft(tmp_path, micro_batch=16)
    assert losses == pytest.approx(CURVE, abs=1e-5)
    assert apart(model, reference) < 1e-5


class _Stop(TrainerCallback):
    """Ends training after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step == self.step


@pytest.mark.parametrize("adapted", [False, True])
def test_a_resumed_run_ends_as_an_undisturbed_one(adapted: bool, tmp_path: Path) -> None:
    def made(folder: str, stop: int = 0) -> Any:
        settings: dict[str, Any] = {"peft_config": LORA, "learning_rate": 1e-2} if adapted else {}
        settings |= {"lr_scheduler_type": "linear", "warmup_steps": 2, "max_steps": 4, "prompts_per_step": 5}
        return trainer(tmp_path / folder, 14, harness=tiny_agent.ONE_TURN, callbacks=[_Stop(stop)], **settings)

    whole = made("whole")
    whole.train()
    for stop in (1, 2):  # within an epoch of 2 steps, and at the end of one
        stopped = made(str(stop), stop)
        stopped.train()
        assert stopped.state.global_step == stop
        resumed = made(str(stop))
        resumed.train(resume_from_checkpoint=True)
        assert curve(resumed) == curve(whole)
        assert apart(resumed.model, whole.model) == 0
    rates = [entry["learning_rate"] for entry in curve(whole)]
    assert rates == pytest.approx([r * whole.args.learning_rate for r in (0, 1 / 2, 1, 1 / 2)])


def test_adapters_are_trained_and_nothing_else(tmp_path: Path) -> None:
    start = tiny_agent.model()
    made = trainer(tmp_path, peft_config=LORA, learning_rate=1e-2, max_steps=3, minibatch_size=8)
    made.train()
    steps = curve(made)
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert steps[-1]["kl"] > 1e-4
    changed = [name for name, p in made.model.named_parameters() if p.requires_grad and bool(p.any())]
    assert changed and all("lora_" in name for name in changed)
    # sampled with the adapters, trained without touching what is under them
    assert made.policy.model is made.model
    assert apart(made.model.unload(), start) == 0
    assert (tmp_path / "checkpoint-3" / "adapter_model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["rows", "online"])
def test_two_processes_give_the_curve_of_one(script: str, tmp_path: Path) -> None:
    found = {}
    for processes in (1, 2):
        out = tmp_path / str(processes)
        # the launcher for several GPUs is torchrun's, which starts processes on CPUs as well; that for CPUs needs MPI
        kind = "--multi_gpu" if processes > 1 else "--cpu"
        command = [sys.executable, "-m", "accelerate.commands.launch", kind, "--num_machines", "1"]
        command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", str(processes)]
        command += ["--main_process_port", "0", str(HERE / "rsft_launched.py"), script, str(out)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parent}:{HERE}"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr[-3000:]
        found[processes] = json.loads((out / "curve.json").read_bytes())
        assert found[processes].pop("processes") == processes
    one, two = found[1]["steps"], found[2]["steps"]
    assert len(one) == len(two) == 3
    for before, after in zip(one, two, strict=True):
        assert after == pytest.approx(before, abs=1e-5, rel=1e-5)
    if script == "rows":
        assert [entry["loss"] for entry in found[2]["updates"]] == pytest.approx(CURVE, abs=1e-5)


@pytest.mark.parametrize("recipe", sorted(path.name for path in RECIPES.glob("*.yaml")))
def test_accelerate_knows_each_setting_of_a_recipe(recipe: str) -> None:
    read = load_config_from_file(str(RECIPES / recipe))
    assert read.num_processes == 8
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(read.fsdp_config) <= known
    assert set(read.deepspeed_config) <= known
