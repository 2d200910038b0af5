"""A weight phase loses nothing: killed anywhere and called again, it ends with the same weights, bit for bit."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tiny_agent
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import SFTTrainer

from whale_envs import Harness, UserError, Verdict, read_episodes
from whale_train.config import TrainConfig
from whale_train.ledger import Ledger
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.policies.transformers import TransformersPolicy, hash_weights
from whale_train.progress import Silent
from whale_train.rsft import checkpoint
from whale_train.rsft.phase import weight_phase
from whale_train.rsft.trainer import RSFTTrainer

OPTIONS = TrainConfig(prompts=8, group=4, minibatch=4, micro_batch=4, lr=1e-3, seed=3)


def run(
    folder: Path,
    steps: int = 2,
    start: Path | None = None,
    policy: TransformersPolicy | None = None,
    harness: Harness = tiny_agent.TWO_TURNS,
    skip: int = 0,
    **changes: Any,
) -> tuple[TransformersPolicy, Path]:
    """Run (or go on with) the phase in `folder` with a fresh random model; the ledger lies beside it."""
    policy = policy or tiny_agent.policy()
    options = replace(OPTIONS, **changes)
    ledger = Ledger(folder.parent / "ledger.jsonl")
    last, _ = weight_phase(
        policy, tiny_agent.Echo(20), harness, options, steps, folder, ledger, Silent(), "weights", start, skip=skip
    )
    return policy, last


def read_records(folder: Path) -> list[dict[str, Any]]:
    """What was logged of each step."""
    last = checkpoint.latest(folder)
    assert last is not None
    state = msgspec.json.decode((last / "trainer_state.json").read_bytes())
    return [logs for logs in state["log_history"] if "reward" in logs]


def timeless(folder: Path) -> tuple[Any, Any]:
    """Records and ledger without their seconds."""
    records = [
        {k: v for k, v in r.items() if not k.startswith(("seconds", "tokens_per"))} for r in read_records(folder)
    ]
    lines = Ledger(folder.parent / "ledger.jsonl").lines
    return records, {key: msgspec.structs.replace(spent, seconds=0.0) for key, spent in lines.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The weights' hash after two steps that nobody disturbed, and their folder."""
    folder = tmp_path_factory.mktemp("undisturbed") / "w"
    policy, _ = run(folder)
    assert hash_weights(policy.model) != hash_weights(tiny_agent.model())
    return hash_weights(policy.model), folder


class Killed(BaseException):
    """Stands for kill -9: nothing of ours catches it."""


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Counts what is done to the disk, and dies before number `die`."""
    count = {"done": 0, "die": -1}

    def counted(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if count["done"] == count["die"]:
                raise Killed
            count["done"] += 1
            return original(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    monkeypatch.setattr(Path, "write_bytes", counted(Path.write_bytes))
    monkeypatch.setattr(Ledger, "add", counted(Ledger.add))
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", counted(PreTrainedModel.save_pretrained))
    yield count


@pytest.mark.parametrize("done", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_kill_between_any_two_writes_changes_nothing(done: int, tmp_path: Path, writes: dict[str, int]) -> None:
    def small(folder: Path, steps: int = 2) -> tuple[TransformersPolicy, Path]:
        return run(folder, steps, harness=tiny_agent.ONE_TURN, prompts=4, group=4)

    reference = tmp_path / "undisturbed" / "w"
    policy, _ = small(reference)
    expected = hash_weights(policy.model)
    assert all(record["updates"] for record in read_records(reference))
    if done:
        small(tmp_path / "done" / "w", done)
    for die in range(100):
        folder = tmp_path / str(die) / "w"
        if done:
            shutil.copytree(tmp_path / "done", folder.parent)
        writes.update(done=0, die=die)
        try:
            small(folder)
        except Killed:
            writes["die"] = -1
            policy, last = small(folder)
            assert hash_weights(policy.model) == expected, f"killed before write {die}"
            assert timeless(folder) == timeless(reference)
            assert [p.name for p in folder.iterdir() if p.name.startswith(("checkpoint", ".draft"))] == [last.name]
        else:
            break
    # a step: 2 lines of the ledger, episodes, 5 for the checkpoint, the end of the last one if there is one
    assert die >= 9 * (2 - done) - (done == 0)


def test_a_finished_phase_does_nothing_but_load_its_weights(undisturbed: tuple[str, Path]) -> None:
    expected, folder = undisturbed
    before = timeless(folder)
    policy, last = run(folder)
    assert (hash_weights(policy.model), timeless(folder), last.name) == (expected, before, "checkpoint-2")


def test_a_phase_goes_on_from_another_as_if_they_were_one(tmp_path: Path, undisturbed: tuple[str, Path]) -> None:
    expected, _ = undisturbed
    _, first = run(tmp_path / "a" / "w", steps=1)
    second, _ = run(tmp_path / "b" / "w", steps=1, start=first, policy=tiny_agent.policy(seed=9))
    assert hash_weights(second.model) == expected
    more, _ = run(tmp_path / "a" / "w", steps=2)
    assert hash_weights(more.model) == expected


def test_tasks_are_dealt_without_repeats_within_an_epoch(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    run(folder, steps=3, harness=tiny_agent.ONE_TURN)
    dealt = [{e.task_id for e in read_episodes(folder / "episodes" / f"step-000{n}.jsonl")} for n in (1, 2, 3)]
    assert [len(tasks) for tasks in dealt] == [8, 8, 8]
    assert not dealt[0] & dealt[1]
    assert [r["epoch"] for r in read_records(folder)] == [0.5, 1.0, 1.5]


def test_what_was_dealt_to_steps_that_were_given_up_is_not_dealt_again(tmp_path: Path) -> None:
    def dealt(name: str, step: int, **how: Any) -> list[tuple[str, int]]:
        run(tmp_path / name / "w", harness=tiny_agent.ONE_TURN, **how)
        path = tmp_path / name / "w" / "episodes" / f"step-{step:04d}.jsonl"
        return [(e.task_id, e.seed) for e in read_episodes(path)]

    assert dealt("after one", 1, steps=1, skip=1) == dealt("as second", 2, steps=2)
    start = checkpoint.latest(tmp_path / "as second" / "w")
    again = dealt("goes on", 3, steps=1, start=start, skip=2)
    assert again == dealt("undisturbed", 5, steps=5), "the steps before the start count, too"


def test_records_and_ledger_agree_with_the_episodes(undisturbed: tuple[str, Path]) -> None:
    _, folder = undisturbed
    ledger = Ledger(folder.parent / "ledger.jsonl")
    for step, record in enumerate(read_records(folder), 1):
        episodes = list(read_episodes(folder / "episodes" / f"step-{step:04d}.jsonl"))
        sampled = sum(len(c.reply.completion_ids or []) for e in episodes for c in e.calls)
        line = ledger.lines[f"weights/step-{step:04d}/sampling"]
        assert (len(episodes), sampled) == (32, record["tokens/sampled"]) == (line.rollouts, line.sampled_tokens)
        assert record["reward"] == sum(e.score for e in episodes) / 32
        assert record["tokens/trained"] == ledger.lines[f"weights/step-{step:04d}/training"].trained_tokens
        assert record["updates"] == -(-record["rows/trained"] // 4)
    assert ledger.rollouts() == 64


def test_the_final_checkpoint_is_a_model_directory(undisturbed: tuple[str, Path]) -> None:
    expected, folder = undisturbed
    last = checkpoint.latest(folder)
    assert last is not None
    assert hash_weights(AutoModelForCausalLM.from_pretrained(last, dtype=torch.float32)) == expected
    assert AutoTokenizer.from_pretrained(last).chat_template == tiny_agent.TEMPLATE


def test_nothing_accepted_is_no_update_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_agent._Echo, "verdict", lambda self, answer: Verdict(0.5, "not above a half"))
    policy, _ = run(tmp_path / "w", steps=1)
    assert hash_weights(policy.model) == hash_weights(tiny_agent.model())
    (record,) = read_records(tmp_path / "w")
    assert (record["updates"], record["rows/trained"], record["groups/all_wrong"]) == (0, 0, 1.0)
    assert not {"loss", "grad_norm", "entropy"} & record.keys()
    assert Ledger(tmp_path / "ledger.jsonl").rollouts() == 32


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (lambda loss: loss * torch.nan, "training diverged: the loss is nan"),
        (lambda loss: torch.empty(2**60), "out of memory on 4 rows"),
    ],
)
def test_a_failed_step_is_one_line_and_the_phase_goes_on_from_the_last(
    failure: Any, line: str, tmp_path: Path, undisturbed: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "w", steps=1)
    honest = SFTTrainer.training_step
    with monkeypatch.context() as patch:
        patch.setattr(SFTTrainer, "training_step", lambda *args, **kwargs: failure(honest(*args, **kwargs)))
        with pytest.raises(UserError, match=line) as raised:
            run(tmp_path / "w")
    assert "\n" not in str(raised.value)
    assert checkpoint.latest(tmp_path / "w") == tmp_path / "w" / "checkpoint-1"
    policy, _ = run(tmp_path / "w")
    assert hash_weights(policy.model) == undisturbed[0]


def test_a_full_disk_is_one_line_and_the_phase_goes_on(
    tmp_path: Path, undisturbed: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", full)
        with pytest.raises(UserError, match=r"cannot write .*: No space left on device; free some space"):
            run(tmp_path / "w")
    policy, _ = run(tmp_path / "w")
    assert hash_weights(policy.model) == undisturbed[0]


def test_training_raises_the_share_accepted(tmp_path: Path) -> None:
    run(tmp_path / "w", steps=5, harness=tiny_agent.ONE_TURN, prompts=16, group=8, minibatch=8, lr=3e-3)
    shares = [record["accepted"] for record in read_records(tmp_path / "w")]
    assert shares[-1] > shares[0] + 0.1


def test_another_configuration_is_refused_in_the_same_folder(undisturbed: tuple[str, Path]) -> None:
    with pytest.raises(UserError, match=r"holds training with learning_rate=0.001, not 0.1: go on with the same"):
        run(undisturbed[1], lr=0.1)


def test_a_phase_ends_where_its_rewards_are_over_and_stays_ended(tmp_path: Path) -> None:
    heard: list[int] = []

    def phase(steps: int, policy: TransformersPolicy) -> tuple[Path, list[float]]:
        def over(rewards: Sequence[float]) -> str:
            heard.append(len(rewards))
            return "enough" if len(rewards) >= 2 else ""

        ledger = Ledger(tmp_path / "ledger.jsonl")
        args = (tiny_agent.Echo(20), tiny_agent.ONE_TURN, OPTIONS, steps, tmp_path / "w", ledger, Silent(), "weights")
        return weight_phase(policy, *args, over=over)

    ended, rewards = phase(4, tiny_agent.policy())
    assert (ended.name, len(rewards), heard) == ("checkpoint-2", 2, [1, 2])
    assert rewards == [logs["reward"] for logs in read_records(tmp_path / "w")]
    again = tiny_agent.policy()
    assert phase(4, again) == (ended, rewards)
    whole, _ = run(tmp_path / "other" / "w", harness=tiny_agent.ONE_TURN)
    assert again.weights_hash == whole.weights_hash


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    scripted: Any = ScriptedPolicy(["a"])
    args = (tiny_agent.ONE_TURN, OPTIONS, 2, tmp_path / "w", ledger, Silent(), "w")
    with pytest.raises(UserError, match="has its weights elsewhere"):
        weight_phase(scripted, tiny_agent.Echo(20), *args)
    with pytest.raises(UserError, match="policy scripted takes no weights"):
        RSFTTrainer("m", tiny_agent.Echo(20), policy=scripted)
    with pytest.raises(UserError, match="prompts=8, but weight has 4 tasks"):
        weight_phase(tiny_agent.policy(), tiny_agent.Echo(4), *args)
    with pytest.raises(UserError, match=r"is no checkpoint: expected trainer_state.json"):
        run(tmp_path / "v", start=tmp_path)
