"""An `RSFTTrainer` does what TRL's users expect of a trainer, and says in a line what it cannot use."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import tiny_agent
import torch
from rsft_runs import OnRows, apart, config, curve, episode_of, make_rows, trainer
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from trl import SFTTrainer

from whale_envs import Episode, UserError, Verdict, read_episodes
from whale_train import RSFTConfig, RSFTTrainer
from whale_train.rsft import checkpoint
from whale_train.rsft.rows import IGNORE
from whale_train.rsft.update import minibatches
from whale_train.rsft.weights import twin, whole_weights
from whale_train.tiny import MODELS


def one_step(folder: Path, **changes: Any) -> RSFTTrainer:
    made = trainer(folder, **{"harness": tiny_agent.ONE_TURN, "max_steps": 1, "save_strategy": "no", **changes})
    made.train()
    return made


def test_the_loss_is_the_mean_over_the_minibatchs_sampled_tokens(tmp_path: Path) -> None:
    rows, model = make_rows(20, seed=1), tiny_agent.model()
    total, entropy, count = 0.0, 0.0, 0
    with torch.no_grad():
        for row in rows:
            logprobs = model(torch.tensor([row.input_ids])).logits[0].log_softmax(-1)
            for at, label in enumerate(row.labels):
                if label != IGNORE:
                    total, count = total - float(logprobs[at - 1, label]), count + 1
                    entropy -= float((logprobs[at - 1].exp() * logprobs[at - 1]).sum())
    made = OnRows([rows], tmp_path, per_device_train_batch_size=3)
    made.train()
    (update,) = made.updates
    assert update.tokens == count
    assert update.loss == pytest.approx(total / count, abs=1e-5)
    assert update.entropy == pytest.approx(entropy / count, abs=1e-5)
    (logs,) = curve(made)
    assert (logs["loss"], logs["grad_norm"]) == pytest.approx((update.loss, update.grad_norm))
    assert (logs["tokens/trained"], logs["rows/trained"], logs["updates"]) == (count, 20, 1)


def test_minibatches_hold_each_row_once_whatever_their_number() -> None:
    rows = make_rows(150, seed=1)
    batches = minibatches(rows, 64, seed=5)
    assert [len(batch) for batch in batches] == [64, 64, 22]
    assert sorted(map(repr, rows)) == sorted(repr(row) for batch in batches for row in batch)
    assert minibatches(rows, 64, seed=5) == batches != minibatches(rows, 64, seed=6)


def test_the_kl_is_that_of_the_sampled_tokens_to_the_start(tmp_path: Path) -> None:
    made = trainer(tmp_path, max_steps=3, minibatch_size=8, learning_rate=3e-3, kl_sequences=10_000)
    made.train()
    steps = curve(made)
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert 1e-3 < steps[1]["kl"] < steps[2]["kl"]
    start, total, count = tiny_agent.model(), 0.0, 0
    for episode in read_episodes(tmp_path / "episodes" / "step-0003.jsonl"):
        for call in episode.calls:
            prompt, sampled = call.reply.prompt_ids or [], call.reply.completion_ids or []
            with torch.no_grad():
                logits = start(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
            then = logits.log_softmax(-1).gather(-1, torch.tensor(sampled)[:, None])[:, 0].tolist()
            for p, q in zip(call.reply.logprobs or [], then, strict=True):
                total, count = total + math.exp(q - p) - 1 - (q - p), count + 1
    assert steps[2]["kl"] == pytest.approx(total / count, rel=1e-4)


def test_everything_is_logged_for_each_step(tmp_path: Path) -> None:
    logs = one_step(tmp_path).state.log_history[0]
    for name in (
        *("reward", "accepted", "groups/all_right", "groups/all_wrong", "questions", "truncated", "dollars"),
        *("tokens/prompt", "tokens/sampled", "tokens/trained", "rows/trained", "rows/too_long", "updates"),
        *("loss", "entropy", "kl", "grad_norm", "learning_rate", "behaviours/answered", "failures/model"),
        *("tokens_per_second/sampling", "tokens_per_second/training"),
        *("seconds/sampling", "seconds/kl", "seconds/training", "seconds/sync"),
    ):
        assert math.isfinite(logs[name]), name
    assert (logs["staleness"], logs["epoch"], logs["step"]) == (0, 0.5, 1)


def test_a_line_of_the_log_is_the_mean_of_its_steps(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"harness": tiny_agent.ONE_TURN, "max_steps": 4, "save_strategy": "no"}
    each, two = (trainer(tmp_path / str(n), **settings, logging_steps=n) for n in (1, 2))
    each.train()
    two.train()
    steps = curve(each)
    for at, line in enumerate(curve(two)):
        for name in ("reward", "entropy", "updates", "tokens/trained", "kl"):
            assert line[name] == pytest.approx(sum(s[name] for s in steps[2 * at : 2 * at + 2]) / 2), name


def test_nothing_accepted_is_no_update_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_agent._Echo, "verdict", lambda self, answer: Verdict(0.5, "not above a half"))
    made = one_step(tmp_path, max_steps=2)
    assert apart(made.model, tiny_agent.model()) == 0
    for logs in curve(made):
        assert (logs["updates"], logs["groups/all_wrong"], logs["episodes"]) == (0, 1.0, 32)
        assert not {"loss", "grad_norm", "entropy"} & logs.keys()


def test_rows_over_the_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    whole, cut = one_step(tmp_path / "whole"), one_step(tmp_path / "cut", max_row_tokens=6)
    (before,), (after,) = curve(whole), curve(cut)
    assert after["rows/too_long"] > 0 == before["rows/too_long"]
    assert after["rows/trained"] == before["rows/trained"] - after["rows/too_long"]
    assert after["reward"] == before["reward"]


@pytest.mark.parametrize(
    ("option", "trained"),
    [({}, 5), ({"drop_all_correct": True}, 2), ({"max_per_question": 1}, 2), ({"drop_duplicates": True}, 3)],
)
def test_options_leave_out_accepted_episodes(option: dict[str, Any], trained: int, tmp_path: Path) -> None:
    rows = make_rows(3, seed=1)

    class Given(OnRows):
        """Two questions: one is answered three times in two ways, the other twice alike and once wrongly."""

        def sample(self, step: int) -> list[Episode]:
            made = [episode_of(rows[kind], at) for at, kind in enumerate((0, 0, 1, 2, 2, 2))]
            for at, episode in enumerate(made):
                episode.task_id = "ab"[at // 3]
            made[-1].verdict = Verdict(0.0, "")
            return made

    made = Given([rows], tmp_path, **option)
    made.train()
    (logs,) = curve(made)
    assert (logs["rows/trained"], logs["questions"], logs["groups/all_right"]) == (trained, 2, 0.5)
    assert logs["accepted"] == pytest.approx(5 / 6)


def test_several_harnesses_share_a_batch(tmp_path: Path) -> None:
    harnesses = [tiny_agent.ONE_TURN, tiny_agent.TWO_TURNS]
    made = one_step(tmp_path, harness=harnesses, prompts_per_step=7)
    episodes = list(read_episodes(tmp_path / "episodes" / "step-0001.jsonl"))
    order = [task.id for task in made.deal.tasks_of(0)]
    assert [e.task_id for e in episodes] == [task for task in order for _ in range(4)]
    for number, task in enumerate(order):
        assert {e.harness for e in episodes if e.task_id == task} == {harnesses[number % 2].hash}
    assert {len(e.calls) for e in episodes if e.failure is None} == {1, 2}


def test_episodes_that_were_sampled_before_a_kill_are_not_sampled_again(tmp_path: Path) -> None:
    first = one_step(tmp_path)
    path = tmp_path / "episodes" / "step-0001.jsonl"
    written = path.stat().st_mtime_ns
    again = one_step(tmp_path)
    assert path.stat().st_mtime_ns == written
    assert (curve(again), apart(first.model, again.model)) == (curve(first), 0)
    other = one_step(tmp_path, model=tiny_agent.model(1))  # other weights: these episodes are not theirs
    assert path.stat().st_mtime_ns > written
    assert curve(other) != curve(first)


def test_a_twin_stands_apart_from_its_model(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    model, ids = made.model, torch.tensor([[3, 4, 5]])
    copied = twin(model, torch.device("cpu"))
    before = copied(input_ids=ids).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(copied(input_ids=ids).logits, before)
    assert whole_weights(copied).keys() == model.state_dict().keys()


def test_weights_that_are_spread_over_processes_are_put_together(tmp_path: Path) -> None:
    model = tiny_agent.model()
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        found = whole_weights(model)
    finally:
        torch.distributed.destroy_process_group()
    assert found.keys() == whole.keys()
    assert all(type(found[name]) is Tensor and torch.equal(found[name], whole[name]) for name in whole)


class _Seen(TrainerCallback):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(f"step {state.global_step}")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "reward" in logs:
            self.events.append("log")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append("save")


def test_callbacks_steps_saves_and_epochs_are_those_of_trl(tmp_path: Path) -> None:
    seen = _Seen()
    made = trainer(
        tmp_path,
        harness=tiny_agent.ONE_TURN,
        callbacks=[seen],
        max_steps=-1,
        num_train_epochs=2.5,
        save_steps=2,
        save_total_limit=2,
    )
    made.train()
    assert made.total_steps == 5  # 20 tasks, 8 in a step
    wanted = [["step 1", "log"], ["step 2", "log", "save"], ["step 3", "log"], ["step 4", "log", "save"]]
    assert seen.events == [*[event for step in wanted for event in step], "step 5", "log", "save"]
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["checkpoint-4", "checkpoint-5"]
    dealt = [[t.id for t in made.deal.tasks_of(step)] for step in range(5)]
    assert len({*dealt[0], *dealt[1]}) == len({*dealt[2], *dealt[3]}) == 16
    assert dealt[0] != dealt[2]


def test_checkpoints_are_pushed_when_they_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[str] = []

    def push(self: Any, folder: str) -> None:
        assert (Path(folder) / "trainer_state.json").exists() and checkpoint.latest(tmp_path) == Path(folder)
        pushed.append(Path(folder).name)

    monkeypatch.setattr(SFTTrainer, "init_hf_repo", lambda self, token=None, private=None: None)
    monkeypatch.setattr(SFTTrainer, "_push_from_checkpoint", push)
    made = trainer(
        tmp_path, harness=tiny_agent.ONE_TURN, push_to_hub=True, hub_token="t", hub_model_id="somebody/model"
    )
    made.train()
    assert pushed == ["checkpoint-1", "checkpoint-2"]


def test_a_model_by_folder_and_an_env_by_id(tmp_path: Path) -> None:
    args = config(tmp_path, max_steps=1, prompts_per_step=4, num_generations=2, kl_sequences=2)
    made = RSFTTrainer(str(MODELS / "math"), "whale/Math", args=args)
    made.train()
    assert (made.domain.name, [h.name for h in made.harnesses]) == ("math", ["h0"])
    (logs,) = curve(made)
    assert logs["episodes"] == 8
    env = gymnasium.make("whale/Math", harness="strong", verifier="math-verify")
    other = RSFTTrainer(tiny_agent.model(), env, args=args, processing_class=tiny_agent.tokenizer())
    assert (other.domain.verifier, [h.name for h in other.harnesses]) == ("math-verify", ["strong"])
    both = RSFTTrainer(tiny_agent.model(), "whale/Math", ["h0", "strong"], args, tiny_agent.tokenizer())
    assert [h.name for h in both.harnesses] == ["h0", "strong"]


def test_an_output_folder_belongs_to_one_run(tmp_path: Path) -> None:
    first = trainer(tmp_path, harness=tiny_agent.ONE_TURN, max_steps=1)
    first.train(resume_from_checkpoint=True)  # nothing there yet: it begins
    with pytest.raises(UserError, match=r"holds checkpoint-1: give resume_from_checkpoint=True to go on from it"):
        trainer(tmp_path, harness=tiny_agent.ONE_TURN).train()
    with pytest.raises(UserError, match=r"holds training with minibatch_size=4, not 8: go on with the same settings"):
        trainer(tmp_path, harness=tiny_agent.ONE_TURN, minibatch_size=8).train(resume_from_checkpoint=True)
    with pytest.raises(UserError, match=r"elsewhere is no checkpoint: expected trainer_state.json in it"):
        trainer(tmp_path, harness=tiny_agent.ONE_TURN).train(resume_from_checkpoint=str(tmp_path / "elsewhere"))
    ended = trainer(tmp_path, harness=tiny_agent.ONE_TURN, max_steps=1, model=tiny_agent.model(7))
    assert ended.train(resume_from_checkpoint=True).global_step == 1
    assert apart(ended.model, first.model) == 0


def test_what_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot load a model from '.*/nowhere'"):
        trainer(tmp_path, model=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"env 'whale/Maths': .*expected an id such as whale/Math"):
        trainer(tmp_path, env="whale/Maths")
    with pytest.raises(UserError, match=r"expected one of whale_envs"):
        trainer(tmp_path, env=gymnasium.make("CartPole-v1"))
    with pytest.raises(UserError, match=r"harness=\[\]"):
        trainer(tmp_path, harness=[])
    with pytest.raises(UserError, match="prompts=8, but weight has 4 tasks"):
        trainer(tmp_path, tasks=4)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("prompts_per_step", 0, "prompts_per_step=0: expected a whole number of at least 1"),
        ("num_generations", 2.5, "num_generations=2.5"),
        ("minibatch_size", True, "minibatch_size=True"),
        ("max_per_question", 0, "max_per_question=0"),
        ("kl_sequences", -1, "kl_sequences=-1: expected a whole number of at least 0"),
        ("learning_rate", 0.0, "learning_rate=0.0: expected a number above 0"),
        ("learning_rate", float("nan"), "learning_rate=nan"),
        ("max_grad_norm", -1.0, "max_grad_norm=-1.0"),
        ("top_p", 0.0, "top_p=0.0"),
        ("gradient_accumulation_steps", 2, "gradient_accumulation_steps=2: it follows from minibatch_size"),
        ("max_length", 1024, "max_length=1024: rows are never cut"),
        ("packing", True, "packing=True: give padding_free=True"),
        ("eval_strategy", "steps", "eval_strategy='steps': training looks at its own episodes only"),
        ("assistant_only_loss", True, "assistant_only_loss=True: the loss is on the tokens that were sampled"),
        ("loss_type", "dft", "loss_type='dft': the loss is minus the tokens' mean log-probability"),
        ("label_smoothing_factor", 0.1, "label_smoothing_factor=0.1: the loss is"),
        ("eval_on_start", True, "eval_on_start=True: training looks at its own episodes only"),
        ("save_strategy", "best", "save_strategy='best': nothing is evaluated: give 'steps'"),
        ("learning_rate", "1e-6", "learning_rate='1e-6': expected a number"),
        ("temperature", None, "temperature=None: expected a number"),
        ("max_steps", 2.5, r"max_steps=2\.5: expected a whole number of steps"),
        ("num_train_epochs", 0, "num_train_epochs=0: expected a number above 0, or max_steps"),
        ("optim", "adamm", "adamm is not a valid OptimizerNames"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_at_once(field: str, value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        RSFTConfig(output_dir=str(tmp_path), use_cpu=True, **{field: value})


def test_the_defaults_are_the_papers(tmp_path: Path) -> None:
    args = RSFTConfig(output_dir=str(tmp_path), use_cpu=True)
    assert (args.prompts_per_step, args.num_generations, args.minibatch_size) == (256, 8, 64)
    assert (args.temperature, args.top_p, args.top_k, args.max_row_tokens) == (1.0, 1.0, 20, 32768)
    assert (args.learning_rate, args.lr_scheduler_type, args.warmup_steps, args.bf16) == (1e-6, "constant", 0, False)


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (lambda loss: loss * torch.nan, "training diverged: the loss is nan; the weights before this step are kept"),
        (lambda loss: torch.empty(2**60), r"out of memory on 4 rows of up to .* smaller per_device_train_batch_size"),
    ],
)
def test_a_failed_update_is_one_line_and_the_run_is_resumed(
    failure: Any, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"harness": tiny_agent.ONE_TURN, "max_steps": 3, "minibatch_size": 2}
    whole = trainer(tmp_path / "whole", **settings)
    whole.train()
    honest, calls = SFTTrainer.training_step, []

    def fails_later(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        calls.append(self.state.global_step)
        loss = honest(self, *args, **kwargs)
        return failure(loss) if calls.count(1) == 2 else loss

    with monkeypatch.context() as patch:
        patch.setattr(SFTTrainer, "training_step", fails_later)
        with pytest.raises(UserError, match=line) as raised:
            trainer(tmp_path / "w", **settings).train()
    assert "\n" not in str(raised.value)
    assert checkpoint.latest(tmp_path / "w") == tmp_path / "w" / "checkpoint-1"
    resumed = trainer(tmp_path / "w", **settings)
    resumed.train(resume_from_checkpoint=True)
    assert (curve(resumed), apart(resumed.model, whole.model)) == (curve(whole), 0)


def test_a_loss_that_is_not_finite_never_reaches_the_weights(tmp_path: Path) -> None:
    made = OnRows([make_rows(4, seed=1)], tmp_path)
    with torch.no_grad():
        made.model.model.norm.weight[0] = torch.nan  # type: ignore[union-attr]
    before = {k: v.clone() for k, v in made.model.state_dict().items()}
    with pytest.raises(UserError, match="training diverged: the loss is nan"):
        made.train()
    assert all(torch.equal(v, before[k]) or bool(v.isnan().any()) for k, v in made.model.state_dict().items())


def test_the_model_is_given_back_as_it_was(tmp_path: Path) -> None:
    made = one_step(tmp_path)
    assert not made.model.training
    assert all(parameter.grad is None for parameter in made.model.parameters())
    made.close()
    assert "forward" not in made.model.__dict__


def test_the_package_names_its_trainer_without_loading_torch() -> None:
    code = "import sys, whale_train; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ImportError):
        from whale_train import Nothing  # type: ignore[attr-defined]  # noqa: F401
