"""What a run would cost, worked out without running anything: no model is loaded, no network touched.

Rollouts are counted by the code that the run goes by (`whale_train.whale.plan_of`). All else follows from them and from
assumptions, each a figure with its origin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import tyro

from whale_envs.errors import UserError
from whale_train.config import RunConfig, check_budget

if TYPE_CHECKING:
    from whale_envs.task import Splits, TaskSet
    from whale_train.schedules import Phase, Plan


class Device(NamedTuple):
    """Hardware: what people call it, and its peak in bfloat16 without sparsity, in floating-point operations a second
    (0: what was measured with the bundled models counts)."""

    name: str
    flops: float


#: Peaks are those of NVIDIA's data sheets.
DEVICES = {
    "cpu": Device("2 CPU cores", 0.0),
    "a100": Device("one NVIDIA A100 (312 TFLOP/s)", 312e12),
    "h100": Device("one NVIDIA H100 SXM (989 TFLOP/s)", 989e12),
    "h200": Device("one NVIDIA H200 (989 TFLOP/s)", 989e12),
}
#: What share of its peak a device is taken to reach: sampling waits for memory, prompts and training less so. Rules of
#: thumb, not measured here.
SAMPLING_SHARE, PROMPT_SHARE, TRAINING_SHARE = 0.05, 0.25, 0.25
#: Floating-point operations a token and parameter, forward and backward (Kaplan et al., arXiv 2001.08361, section 2.1).
FORWARD, BACKWARD = 2, 4
#: Tokens a second with the bundled models, on two cores at work on two arms: sampled, read as prompts, trained on. From
#: the processor time of 256 episodes of each domain, and of training on rows of 120 tokens.
CPU_SPEED = (2800.0, 44_000.0, 6000.0)
#: Prompt and sampled tokens of an episode with the bundled models under h0, all calls together (256 of each domain).
BUNDLED_TOKENS = {"search-qa": (170, 14), "math": (138, 29), "chess": (263, 8)}
#: Bytes on disk of an episode's prompt token (its id and text), of a sampled one (its log-probability, too), and of
#: the rest. They give the bundled models' 2,680 to 3,720 bytes an episode to within 13 %.
PROMPT_BYTES, SAMPLED_BYTES, EPISODE_BYTES = 10, 33, 800
#: Tokens of a conversation with a proposer: written to the cache, read from it, put out. Not measured: some 30 answers
#: over a context that grows to 60,000 tokens.
CONVERSATION = (60_000, 900_000, 20_000)


@dataclass(frozen=True)
class PlanConfig(RunConfig):
    """Say what a run would cost, without running anything: rollouts, tokens, steps, dollars, disk, hours.

    It takes the options of `whale run`, and its own for what it assumes."""

    recipe: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]")] = None
    """A recipe that ships, or a TOML file like those."""
    device: Literal["cpu", "a100", "h100", "h200"] | None = None
    """The hardware; by default cpu for the bundled models, h200 for others."""
    parameters: int | None = None
    """Parameters of the model; by default counted in its files."""
    prompt_tokens: int | None = None
    """Prompt tokens of an episode, all calls together."""
    sampled_tokens: int | None = None
    """Sampled tokens of an episode; by default the cap of one reply."""
    accepted: float | None = None
    """The share of episodes that is trained on; by default all of them."""
    sampling_speed: float | None = None
    """Tokens a second that are sampled; by default from the hardware's peak."""
    training_speed: float | None = None
    """Tokens a second that are trained on; by default from the hardware's peak."""
    conversation_dollars: float | None = None
    """What a conversation with the proposer costs; by default a guess at its tokens, by the table of prices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = ("parameters", "prompt_tokens", "sampled_tokens", "accepted", "sampling_speed", "training_speed")
        for name in given:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"--{name.replace('_', '-')} {value:g}: expected more than 0")
        if self.accepted is not None and self.accepted > 1:
            raise UserError(f"--accepted {self.accepted:g}: expected a share, 1 at most")
        if self.conversation_dollars is not None and not 0 <= self.conversation_dollars < math.inf:
            raise UserError(f"--conversation-dollars {self.conversation_dollars:g}: expected 0 or more")


class Assumed(NamedTuple):
    """A figure and where it comes from."""

    value: float
    origin: str


@dataclass(frozen=True)
class Data:
    """The task sets of a run, as far as counting goes."""

    splits: Splits
    origin: str


@dataclass(frozen=True)
class ArmPlan:
    """What an arm is to do: its plan, and its phases with the rollouts of each. `tests` is how many of its snapshots
    are tested, the start not among them."""

    name: str
    plan: Plan
    phases: list[tuple[Phase, int]]
    tests: int

    @property
    def rollouts(self) -> int:
        """Rollouts in all, tests aside."""
        return self.plan.rollouts()

    def units(self, kind: Literal["weights", "harness"]) -> int:
        """RSFT steps, or search rounds."""
        return sum(phase.amount for phase, _ in self.phases if phase.kind == kind)

    @property
    def weight_phases(self) -> int:
        """How many phases train weights."""
        return sum(phase.kind == "weights" for phase, _ in self.phases)


@dataclass(frozen=True)
class Costing:
    """What a run costs. Tokens are of all rollouts, tests among them; hours are those of one device."""

    config: PlanConfig
    data: Data
    arms: list[ArmPlan]

    @property
    def training_rollouts(self) -> int:
        """Rollouts of weight phases."""
        return sum(arm.units("weights") for arm in self.arms) * self.config.prompts * self.config.group

    @property
    def rollouts(self) -> int:
        """Rollouts of all arms, tests aside."""
        return sum(arm.rollouts for arm in self.arms)

    @property
    def test_rollouts(self) -> int:
        """Rollouts of tests; all arms share that of the start."""
        tasks = min(len(self.data.splits.test), self.config.limit or len(self.data.splits.test))
        return (1 + sum(arm.tests for arm in self.arms)) * tasks * self.config.repeats

    @property
    def prompt_tokens(self) -> float:
        """Prompt tokens."""
        return (self.rollouts + self.test_rollouts) * prompt_tokens(self.config).value

    @property
    def sampled_tokens(self) -> float:
        """Sampled tokens."""
        return (self.rollouts + self.test_rollouts) * sampled_tokens(self.config).value

    @property
    def trained_tokens(self) -> float:
        """Sampled tokens that are trained on."""
        return self.training_rollouts * accepted(self.config).value * sampled_tokens(self.config).value

    @property
    def optimiser_steps(self) -> int:
        """Optimiser steps, with a row an episode: the last minibatch of an RSFT step may be a small one."""
        rows = self.config.prompts * self.config.group * accepted(self.config).value
        return sum(arm.units("weights") for arm in self.arms) * math.ceil(rows / self.config.minibatch)

    @property
    def rounds(self) -> int:
        """Search rounds."""
        return sum(arm.units("harness") for arm in self.arms)

    @property
    def proposer_dollars(self) -> tuple[float, float]:
        """Dollars for the proposer: one conversation a round, and at most."""
        cap = self.config.proposer_dollars if conversation(self.config).value else 0.0
        return self.rounds * conversation(self.config).value, self.rounds * conversations(self.config) * cap

    @property
    def checkpoint_bytes(self) -> float:
        """The last checkpoint of each weight phase."""
        kept = sum(arm.weight_phases for arm in self.arms)
        return kept * parameters(self.config).value * parameter_bytes(self.config).value

    def episode_bytes(self, rollouts: int) -> float:
        """Episodes on disk."""
        prompt, sampled = prompt_tokens(self.config).value, sampled_tokens(self.config).value
        return rollouts * (EPISODE_BYTES + prompt * PROMPT_BYTES + sampled * SAMPLED_BYTES)

    @property
    def sampling_hours(self) -> float:
        """Hours of sampling, prompts among them."""
        sampling, prompt = speeds(self.config)[:2]
        return (self.sampled_tokens / sampling.value + self.prompt_tokens / prompt.value) / 3600

    @property
    def training_hours(self) -> float:
        """Hours of training: whole rows go through the model, the prompts in them too."""
        tokens = prompt_tokens(self.config).value + sampled_tokens(self.config).value
        rows = self.training_rollouts * accepted(self.config).value
        return rows * tokens / speeds(self.config)[2].value / 3600


def costing(config: PlanConfig) -> Costing:
    """What a run with these options would cost. Raises `UserError` for options that contradict each other, and for a
    harness that is not there."""
    from whale_train.whale import plan_of

    config.start()
    data = _data(config)
    config.check_prompts(data.splits.weight)
    check_budget(config, data)
    arms = []
    for name in config.arms:
        plan = plan_of(config, name, data)
        phases = list(plan.played())
        arms.append(ArmPlan(name, plan, phases, _tests(config, phases)))
    return Costing(config, data, arms)


def _tests(config: PlanConfig, phases: list[tuple[Phase, int]]) -> int:
    """After how many phases weights and harness are tested."""
    from whale_train.whale import Snapshot, measured

    return len(measured(config, [Snapshot(phase.name, phase.cycle, phase.kind, 0, "", "") for phase, _ in phases]))


def _data(config: PlanConfig) -> Data:
    """The task sets: those that are there, else ones of the paper's sizes, which hold nothing."""
    from whale_envs.data.folder import load_splits
    from whale_envs.data.recipes import SIZES
    from whale_envs.task import SPLITS, Splits

    if config.dataset is None:
        return Data(config.load_domain().splits, "the bundled mini world")
    where = Path(config.dataset.partition(",corpus=")[0]).expanduser()
    if where.exists() or config.recipe is None:
        return Data(load_splits(config.domain, where, config.verifier or ""), f"read from {where}")
    weight, harness, test = (_blank(split, SIZES[config.domain][split]) for split in SPLITS)
    return Data(Splits(weight, harness, test), f"the paper's sizes, as {where} is not there yet")


def _blank(split: str, size: int) -> TaskSet:
    from whale_envs.task import Task, TaskSet

    return TaskSet([Task(f"{split}-{i}", {}, None) for i in range(size)], split)


def _is_bundled(config: PlanConfig) -> bool:
    return config.policy == "tiny" and config.dataset is None


def device(config: PlanConfig) -> Device:
    """The hardware."""
    return DEVICES[config.device or ("cpu" if config.policy == "tiny" else "h200")]


def prompt_tokens(config: PlanConfig) -> Assumed:
    """Prompt tokens of an episode."""
    if config.prompt_tokens is not None:
        return Assumed(config.prompt_tokens, _given(config))
    if _is_bundled(config):
        return Assumed(BUNDLED_TOKENS[config.domain][0], "measured with the bundled model under h0")
    return Assumed(1000, "a guess: give --prompt-tokens")


def sampled_tokens(config: PlanConfig) -> Assumed:
    """Sampled tokens of an episode."""
    from whale_envs.domain import Domain

    if config.sampled_tokens is not None:
        return Assumed(config.sampled_tokens, _given(config))
    if _is_bundled(config):
        return Assumed(BUNDLED_TOKENS[config.domain][1], "measured with the bundled model under h0")
    cap = config.load_domain().max_tokens if config.dataset is None else Domain.max_tokens
    return Assumed(cap, "the cap of one reply: give --sampled-tokens")


def accepted(config: PlanConfig) -> Assumed:
    """The share of episodes that is trained on."""
    if config.accepted is not None:
        return Assumed(config.accepted, _given(config))
    return Assumed(1.0, "all there are: give --accepted")


def parameters(config: PlanConfig) -> Assumed:
    """Parameters of the model. Raises `UserError` where they cannot be counted here."""
    from whale_train.policies.find import find_model

    if config.parameters is not None:
        return Assumed(config.parameters, _given(config))
    kind, _, where = config.policy.partition(":")
    folder = Path(find_model("tiny", config.domain)[0] if kind == "tiny" else where.partition("@")[0]).expanduser()
    if not folder.is_dir():
        raise UserError(f"--policy {config.policy}: its files are not here to count its parameters: give --parameters")
    return Assumed(_counted(folder), f"counted in {folder}")


def _counted(folder: Path) -> int:
    from safetensors import safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb"), safe_open(path, framework="numpy") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    if not total:
        raise UserError(f"{folder} has no weights (*.safetensors) to count parameters in: give --parameters")
    return total


def parameter_bytes(config: PlanConfig) -> Assumed:
    """Bytes of a checkpoint for each parameter."""
    if device(config).flops:
        return Assumed(14, "16 bits, and 32 for its master copy and each of AdamW's moments")
    return Assumed(12, "32 bits, and for each of AdamW's moments")


def speeds(config: PlanConfig) -> tuple[Assumed, Assumed, Assumed]:
    """Tokens a second: sampled, read as prompts, trained on. Raises `UserError` for a device that none is known of."""
    peak = device(config).flops
    if peak:
        size = parameters(config).value
        works = FORWARD * size, FORWARD * size, (FORWARD + BACKWARD) * size
        shares = SAMPLING_SHARE, PROMPT_SHARE, TRAINING_SHARE
        rule = "{:.0%} of the peak at {} operations a parameter and token; a rule of thumb, not measured"
        found = [
            Assumed(peak * share / work, rule.format(share, round(work / size)))
            for share, work in zip(shares, works, strict=True)
        ]
    elif config.policy == "tiny" or (config.sampling_speed and config.training_speed):
        found = [Assumed(speed, "measured with the bundled model") for speed in CPU_SPEED]
    else:
        raise UserError("--device cpu: only the bundled models were timed there: give --sampling-speed and "
                        "--training-speed in tokens a second")  # fmt: skip
    for at, speed in ((0, config.sampling_speed), (2, config.training_speed)):
        if speed is not None:
            found[at] = Assumed(speed, _given(config))
    return found[0], found[1], found[2]


def conversations(config: PlanConfig) -> int:
    """Conversations with the proposer in a round at most: the first, and one for each time that refused candidates are
    filled up; each of them begun again so many times where it breaks off before its own limits."""
    return (1 + config.search.refills) * (1 + config.search.retries)


def conversation(config: PlanConfig) -> Assumed:
    """Dollars of one conversation with the proposer. Raises `UserError` for a model without a price."""
    if config.conversation_dollars is not None:
        return Assumed(config.conversation_dollars, _given(config))
    kind = config.proposer.partition(":")[0]
    if kind == "anthropic":
        from whale_train.meta_harness.proposers.anthropic import PRICED, price_of, priced, read_spec

        model, price = read_spec(config.proposer)
        price = price or price_of(model)
        dollars = priced(price, 0, *CONVERSATION).dollars
        written, read, out = (f"{n:,}" for n in CONVERSATION)
        return Assumed(
            dollars,
            f"a guess: {written} tokens written to the cache, {read} read from it, {out} put out, at {model}'s prices "
            f"of {PRICED} ({price[0]:g} / {price[1]:g} dollars a million)",
        )
    if kind == "openai":
        from whale_train.policies import chat_endpoint

        _, _, per = chat_endpoint.read_spec(config.proposer, "proposer")
        sent, put_out = sum(CONVERSATION[:2]), CONVERSATION[2]
        dollars = (sent * per[0] + put_out * per[1]) / 1e6 if per else 0.0
        return Assumed(dollars, f"a guess: {sent:,} tokens in, {put_out:,} out, at {config.proposer}")
    return Assumed(0.0, f"{config.proposer} asks no model")


def _given(config: PlanConfig) -> str:
    return f"given (recipe {config.recipe})" if config.recipe else "given"
