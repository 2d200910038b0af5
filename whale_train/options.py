"""Options that commands share: frozen dataclasses, checked as soon as they are made (`whale_train.config` has the
commands).

Only the standard library and `whale_envs` are imported here, so that a mistake on the command line is answered
before torch is loaded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from whale_envs.domain import Domain
from whale_envs.domains import DOMAINS, load_domain
from whale_envs.errors import UserError, unknown
from whale_envs.harness.load import Harness, load_harness, seed_names
from whale_envs.task import SPLITS, TaskSet
from whale_train.meta_harness.proposers import check_kind, check_proposer
from whale_train.policies.find import check_policy

if TYPE_CHECKING:
    from whale_train.meta_harness.proposers.agent import Limits
    from whale_train.meta_harness.search import SearchSettings

#: Most of anything that is counted, and the largest seed: what is larger was not meant, and fits no file's numbers.
MOST, MOST_SEED = 1_000_000, 2**63 - 1


def check_seed(seed: int) -> None:
    """Raise `UserError` for a seed that is none."""
    if not 0 <= seed <= MOST_SEED:
        raise UserError(f"--seed {seed}: expected 0 to {MOST_SEED}")


@dataclass(frozen=True)
class Job:
    """What every command that makes a run folder takes."""

    kind: ClassVar[str]
    #: Fields that decide nothing of the result.
    words: ClassVar[tuple[str, ...]] = ("out",)

    domain: str = "search-qa"
    """search-qa, math or chess."""
    dataset: str | None = None
    """Real data in place of the bundled mini world: a folder that `whale data prepare` wrote, a file (CSV, JSONL, JSON,
    parquet), or a folder of train.csv, test.csv and the like; for search-qa QUESTIONS,corpus=CORPUS, where CORPUS is a
    JSONL file of passages, an index's folder or a server's URL."""
    verifier: str | None = None
    """How answers are scored, in place of the domain's own way: f1, sub-em or judge:PROVIDER:MODEL for search-qa (the
    last asks a model, which costs), math-verify for math."""
    harness: str = "h0"
    """The harness that is played, or that a search starts from: h0, strong, or a path to a .py file (runs jailed)."""
    policy: str = "tiny"
    """The model: tiny (bundled); hf:DIR, a causal language model in a folder or on the hub; vllm:DIR, the same sampled
    by vLLM in this process (vllm:DIR@0.5 with half of the GPU's memory; 0.3 otherwise); or, where nothing is trained,
    openai:MODEL@http://HOST:PORT/v1, an endpoint that speaks OpenAI's API (without a URL, OPENAI_BASE_URL or
    OpenAI's own, with its price: openai:MODEL@IN/OUT, dollars a million tokens). The key is in OPENAI_API_KEY."""
    seed: int = 0
    """Decides all randomness."""
    out: Path | None = None
    """The run folder; by default runs/<command>-<domain>-<seed>. The same command takes up a run that was stopped."""
    unsafe: bool = False
    """Go on where this machine cannot isolate untrusted code (see `whale doctor`)."""

    def __post_init__(self) -> None:
        if self.domain not in DOMAINS:
            raise unknown("domain", self.domain, DOMAINS)
        kind, _, where = self.policy.partition(":")
        if kind in ("hf", "vllm", "openai") and not where:
            raise UserError(f"--policy {self.policy!r}: expected tiny or hf:DIR, a folder with a model's files")
        if self.policy != "tiny" and kind not in ("hf", "vllm", "openai"):
            raise unknown("policy", self.policy, ("tiny", "hf:DIR", "vllm:DIR", "openai:MODEL@URL"))
        check_seed(self.seed)

    def check(self) -> None:
        """Read all that was given, as far as that goes without torch: a mistake is heard of within a second or two.

        Raises `UserError` for what cannot be used.
        """
        self.start()
        check_policy(self.policy, self.domain)
        self.load_domain()

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits whose tasks decide the result."""
        return SPLITS

    def hashes(self) -> dict[str, str]:
        """The hashes of the harness and the data that decide the result."""
        sets = self.load_domain().splits
        return {"harness": self.start().hash, "data": "-".join(sets[split].hash for split in self.splits)}

    def load_domain(self) -> Domain:
        """The domain with its data and its verifier. Raises `UserError` for what cannot be used."""
        return load_domain(self.domain, self.dataset, self.verifier)

    def start(self) -> Harness:
        """The harness to start from. One that does not ship runs jailed, since nobody here has read it."""
        return load_harness(self.harness, self.domain, trusted=self.harness in seed_names(self.domain))

    @property
    def folder(self) -> Path:
        """Where the run goes."""
        return self.out or Path("runs") / f"{self.kind}-{self.domain}-{self.seed}"

    def resolved(self) -> Self:
        """The same with `out` filled in."""
        return replace(self, out=self.folder)

    def identity(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON values: all fields but `words`."""
        return {name: value for name, value in asdict(self).items() if name not in self.words}

    def _positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value <= MOST:
                limit = "more than 0" if not value > 0 else f"at most {MOST:,}"
                raise UserError(f"--{name.replace('_', '-')} {value:.10g}: expected {limit}")


@dataclass(frozen=True)
class ArmOptions(Job):
    """What the commands take that run arms and then test them."""

    repeats: int = 8
    """Episodes for each test task."""
    limit: int | None = None
    """Use the first so many test tasks only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("repeats", "limit")

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that the command runs, the one that it is about first."""
        raise NotImplementedError


@dataclass(frozen=True)
class WeightOptions(ArmOptions):
    """How weights are trained. The defaults suit the bundled models; the paper's are 256 prompts, minibatches of 64
    and a learning rate of 1e-7 to 1e-6."""

    prompts: int = 64
    """Tasks sampled in each RSFT step."""
    group: int = 8
    """Episodes sampled of each of them."""
    minibatch: int = 16
    """Sequences in one optimiser step."""
    micro_batch: int = 8
    """Sequences in one forward pass: decides memory and speed, not the result."""
    lr: float = 2e-4
    """Learning rate of AdamW, constant."""

    def check(self) -> None:
        """See `Job.check`."""
        super().check()
        self.check_prompts(self.load_domain().splits.weight)

    def check_prompts(self, tasks: TaskSet) -> None:
        """Raise `UserError` where there are fewer weight tasks than a step takes."""
        if self.prompts > len(tasks):
            raise UserError(f"--prompts {self.prompts}: {tasks.name} has {len(tasks)} tasks; give at most as many")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("prompts", "group", "minibatch", "micro_batch", "lr")
        if self.policy.startswith("openai:"):
            raise UserError(
                f"--policy {self.policy}: its weights are behind an API, and cannot be trained from here; give tiny or "
                "hf:DIR (whale eval and whale search take an endpoint)"
            )


@dataclass(frozen=True)
class WeightPhases(WeightOptions):
    """Weight phases whose length the user gives."""

    epochs: float = 0.2
    """Epochs over the weight tasks in each weight phase."""
    steps: int | None = None
    """RSFT steps in each weight phase, in place of --epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("epochs", "steps")


@dataclass(frozen=True)
class SearchOptions(ArmOptions):
    """How a harness is searched for. The paper evaluates on 256 tasks."""

    proposer: str = "mutation"
    """Who writes new harnesses: mutation (no model: edits of the source); anthropic or anthropic:MODEL (needs
    ANTHROPIC_API_KEY); openai:MODEL@http://HOST:PORT/v1, an endpoint that speaks OpenAI's API (spelled as for
    --policy); scripted:FILE.py,FILE.py, harnesses of yours; module:attribute, a proposer of yours."""
    proposer_dollars: float = 8.0
    """The most that one conversation with a proposer that is a model may cost, by its table of prices. There is one a
    round, and up to two more for candidates that were refused; one that breaks off before this is begun again, three
    times at most."""
    proposer_tokens: int = 8_000_000
    """The most tokens in it, counted each time that they are sent."""
    proposer_minutes: float = 40.0
    """The longest that it may last."""
    candidates: int = 3
    """New harnesses in each round."""
    tasks: int = 128
    """Tasks of the harness split that each of them plays."""
    edits: Literal["all", "prompt-only"] = "all"
    """What a new harness may change: all of it, or the text of its strings alone (the paper's FST control)."""
    acceptance: Literal["best", "paired"] = "best"
    """best takes the highest mean; paired replaces the accepted harness only where a paired test over the tasks says
    so, and says so again under fresh seeds."""
    level: float = 0.1
    """The level of each of the two tests of paired."""
    racing: bool = False
    """Look at a candidate every 16 tasks, and drop it where it is very unlikely to come out best."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(self.proposer)
        if not 0 < self.level < 1:
            raise UserError(f"--level {self.level:g}: expected a level of a test, between 0 and 1 (0.1, say)")
        self._positive("candidates", "tasks", "proposer_dollars", "proposer_minutes")
        if not 0 < self.proposer_tokens <= MOST_SEED:
            raise UserError(f"--proposer-tokens {self.proposer_tokens}: expected more than 0")

    def check(self) -> None:
        """See `Job.check`."""
        check_proposer(self.proposer)
        super().check()

    @property
    def limits(self) -> Limits:
        """The limits of a proposer that is a model."""
        from whale_train.meta_harness.proposers.agent import Limits

        return Limits(dollars=self.proposer_dollars, tokens=self.proposer_tokens, minutes=self.proposer_minutes)

    @property
    def search(self) -> SearchSettings:
        """A harness phase's settings, but for its rounds, which the plan decides."""
        from whale_train.meta_harness.search import SearchSettings

        return SearchSettings(
            candidates=self.candidates,
            tasks=self.tasks,
            acceptance=self.acceptance,
            level=self.level,
            edits=self.edits,
            racing=self.racing,
        )


@dataclass(frozen=True)
class SearchPhases(SearchOptions):
    """Harness phases whose length the user gives."""

    rounds: int = 4
    """Rounds in each harness phase."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("rounds")
