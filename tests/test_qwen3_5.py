"""The architecture of the paper's models, at a random model of its size: hybrid of linear and full attention.

That it is sampled as in a textbook is in `test_policies.py`. Here: that it trains as it was sampled, and that every
recipe goes its whole way with it.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from policy_models import tiny_model, tiny_tokenizer
from rsft_runs import OnRows, apart, make_rows, trainer
from transformers import PreTrainedTokenizerFast, Qwen3_5Config, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration
from trl.chat_template_utils import qwen3_5_nothink_chat_template, qwen3_5_think_chat_template

from whale_envs import Domain, Harness, UserError, load_domain
from whale_envs.prompts import Prompts
from whale_train import cli
from whale_train.arguments import parse
from whale_train.config import RunConfig
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.plan import PlanConfig, costing
from whale_train.policies.base import Request
from whale_train.policies.load import open_model
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.policies.transformers import TransformersPolicy
from whale_train.recipes import recipe_names
from whale_train.rollout import rollout
from whale_train.rsft.play import Deal

STEPS = [make_rows(20, seed=1), make_rows(9, seed=2)]
#: The recipes' sizes, shrunk; the bundled mini worlds stand in for the hub's sets.
PROMPTS, SEED = 16, 5
SMALL = (
    f"--dataset None --proposer mutation --seed {SEED} --prompts {PROMPTS} --group 2 --minibatch 4 --micro-batch 2 "
    "--lr 1e-4 --steps 1 --cycles 1 --rounds 1 --candidates 1 --tasks 6 --repeats 1 --limit 3"
)


def model() -> Qwen3_5ForCausalLM:
    """Three layers of linear attention and one of full attention."""
    made = tiny_model("qwen3.5", layers=4)
    assert isinstance(made, Qwen3_5ForCausalLM)
    return made


def tokenizer(template: str = qwen3_5_think_chat_template) -> PreTrainedTokenizerFast:
    """A small tokenizer with the chat template of the real models."""
    made = copy.deepcopy(tiny_tokenizer())
    made.chat_template = template
    return made


def test_padding_changes_no_training(tmp_path: Path) -> None:
    together = OnRows(STEPS, tmp_path / "a", model=model(), learning_rate=3e-4, per_device_train_batch_size=64)
    split = OnRows(STEPS, tmp_path / "b", model=model(), learning_rate=3e-4, per_device_train_batch_size=1)
    for made in (together, split):
        made.train()
    assert [u.loss for u in split.updates] == pytest.approx([u.loss for u in together.updates], rel=1e-4)
    assert [u.grad_norm for u in split.updates] == pytest.approx([u.grad_norm for u in together.updates], rel=1e-3)
    assert apart(together.model, split.model) < apart(together.model, model()) / 5


def test_rows_without_padding_are_refused_where_they_would_run_into_each_other(tmp_path: Path) -> None:
    made = OnRows(STEPS, tmp_path, model=model(), padding_free=True)
    with pytest.raises(UserError, match=r"padding_free=True.*causal_conv1d"):
        made.train()


def test_it_trains_on_what_it_sampled(tmp_path: Path) -> None:
    """The loss of the first minibatch is the sampler's own figure for the same tokens."""
    made = trainer(tmp_path, model=model(), processing_class=tokenizer(), max_steps=1, minibatch_size=99,
                   learning_rate=1e-5, prompts_per_step=6, num_generations=2, kl_sequences=0)  # fmt: skip
    made.select = lambda episodes: list(episodes)  # type: ignore[method-assign]
    made.train()
    (logs,) = [entry for entry in made.state.log_history if "reward" in entry]
    episodes = Path(tmp_path, "episodes", "step-0001.jsonl").read_text().splitlines()
    replies = [call["reply"] for line in episodes for call in json.loads(line)["calls"]]
    logprobs = [x for reply in replies for x in reply["logprobs"]]
    assert logs["updates"] == 1 and logs["tokens/trained"] == len(logprobs) > 0
    assert logs["loss"] == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-4)


def test_a_model_that_also_sees_is_read_as_its_language_model(tmp_path: Path) -> None:
    """As on the hub: the checkpoint has a vision tower, and its language model's weights have other names."""
    text = model()
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
    seeing = Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(text_config=text.config.to_dict(), vision_config=vision, tie_word_embeddings=True)
    )
    seeing.model.language_model.load_state_dict(text.model.state_dict())
    seeing.tie_weights()
    seeing.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    found, _ = open_model(str(tmp_path), "cpu")
    assert type(found) is Qwen3_5ForCausalLM
    ids = torch.tensor([[5, 9, 3, 77]])
    with torch.no_grad():
        torch.testing.assert_close(found(input_ids=ids).logits, text(input_ids=ids).logits)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_goes_its_whole_way(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample, select, train, save, search, test, report. The model has learnt one reply, which is right for some of the
    tasks that are dealt, so that there is something to train on."""
    monkeypatch.chdir(tmp_path)
    argv = ["--recipe", name, *SMALL.split(), "--policy", "hf:model"]
    config = parse(["run", *argv])
    assert isinstance(config, RunConfig)
    domain = load_domain(config.domain)
    template = qwen3_5_think_chat_template if config.domain == "chess" else qwen3_5_nothink_chat_template
    made, words = model(), tokenizer(template)
    _teach(made, words, domain, config.start(), _reply(domain))
    made.save_pretrained("model")
    words.save_pretrained("model")

    assert cli.main(["run", *argv, "--out", "run"]) == 0

    result = json.loads(Path("run", "result.json").read_bytes())
    assert 0 <= result["final"]["mean@1"] <= 1
    assert Path("run", "report.html").stat().st_size > 10_000
    arm = Path("run", "arms", "whale")
    first, trained, searched = json.loads((arm / "state.json").read_bytes())
    assert trained["weights"] != first["weights"] and searched["weights"] == trained["weights"]
    assert (arm / trained["model"] / "model.safetensors").exists()
    spent = Ledger(arm / "ledger.jsonl").by_kind()
    assert spent["training"].trained_tokens > 0 and spent["sampling"].sampled_tokens > 0
    (round,) = Archive(arm / "archive", config.domain).rounds
    assert any(tried.mean is not None for tried in round.tried)

    plan = parse(["plan", *argv[1:]])
    assert isinstance(plan, PlanConfig)
    cost = costing(plan)
    assert spent["sampling"].rollouts == cost.training_rollouts
    assert spent["sampling"].rollouts + spent["search"].rollouts == cost.rollouts
    tests = [json.loads(p.read_bytes())["rollouts"] for p in Path("run", "test").glob("*/evaluation.json")]
    assert sum(tests) == cost.test_rollouts


def _reply(domain: Domain) -> str:
    """The reply that is right for the most of the tasks that the first step deals."""
    replies: Counter[str] = Counter()
    for task in Deal(domain.splits.weight, PROMPTS, SEED).tasks_of(0):
        if domain.name == "chess" and task.gold.mate_in != 1:
            continue
        answer = str(domain.world(task).solve())
        form = {"search-qa": "<answer> {} </answer>", "math": "\\boxed{{{}}}", "chess": "<move>{}</move>"}[domain.name]
        replies["</think>\n\n" + form.format(answer)] += 1
    return replies.most_common(1)[0][0]


def _teach(
    model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, domain: Domain, start: Harness, reply: str
) -> None:
    """Train a model to reply so, whatever it is asked."""
    prompts = Prompts(tokenizer)
    asked: list[Request] = []

    def silent(request: Request) -> str:
        asked.append(request)
        return "none"

    rollout(ScriptedPolicy(silent), domain, start, domain.splits.weight[-8:], "weight", SEED)
    said = [*prompts.encode([reply])[0], tokenizer.eos_token_id]
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(40):
        (ids,) = prompts.ids([(asked[step % len(asked)].ask, None)])
        assert isinstance(ids, list)
        labels = [-100] * len(ids) + said
        loss = model(input_ids=torch.tensor([ids + said]), labels=torch.tensor([labels])).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.eval()
    policy = TransformersPolicy(model, tokenizer)
    (sampled,) = policy.generate([Request(asked[0].ask, 1, 64)])
    assert getattr(sampled, "text", None) == reply, f"it has not learnt to: {sampled}"
