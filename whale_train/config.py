"""What the commands that make a run take: frozen dataclasses, from which the command line is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from whale_envs.errors import UserError, unknown
from whale_envs.task import SPLITS
from whale_train.options import MOST, Job, SearchOptions, SearchPhases, WeightOptions, WeightPhases
from whale_train.schedules import Schedule

if TYPE_CHECKING:
    from whale_train.meta_harness.search import SearchSettings
    from whale_train.whale import Data


@dataclass(frozen=True)
class RunConfig(WeightPhases, SearchPhases):
    """Run WHALE: weights and harness trained in turn, beside weights alone and harness alone on the same budget."""

    kind: ClassVar[str] = "run"
    # a recipe is what its options are, and more tests after the run change nothing of it
    words: ClassVar[tuple[str, ...]] = ("out", "recipe", "curve")

    recipe: str | None = None
    """A recipe that ships, or a TOML file like those: what is not given beside it is taken from there, not from the
    defaults. `whale plan RECIPE` says what it would cost."""
    cycles: int = 2
    """How often a weight phase and a harness phase follow each other."""
    schedule: Schedule = "fixed"
    """How they take turns: fixed (--epochs, then --rounds, --cycles times); adaptive (a phase ends when its reward, or
    the best harness, gets no better); bandit (a phase after the other, of the kind that gained more a rollout when it
    last ran); stagewise (all training, then all search). weights-only and harness-only run that arm alone."""
    budget_rollouts: int | None = None
    """The most rollouts that each arm may spend; by default what the cycles of the fixed schedule plan. With it, fixed
    goes on for as many cycles as there is room for."""
    final_search: bool = True
    """A search follows the last training: rollouts are kept back for it where the budget decides which that is. Without
    it, fixed ends with its last training, and its budget is less by that search."""
    baselines: bool = True
    """Weights alone and harness alone run beside it, on the same budget."""
    rescore: int = 0
    """How many of the best old harnesses each harness phase scores again under the new weights, before its rounds."""
    curve: bool = False
    """Test where every phase has ended, not every cycle alone: more points on the curves. A run that has ended may be
    given it, too: the tests come after all choices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("cycles", "budget_rollouts")
        if not self.final_search and self.schedule in ("stagewise", "weights-only", "harness-only"):
            raise UserError(
                f"--no-final-search: {self.schedule} has no last cycle to end before its search; give it with "
                "--schedule fixed, adaptive or bandit"
            )
        if not self.final_search and self.cycles == 1 and self.budget_rollouts is None:
            raise UserError(
                "--no-final-search --cycles 1 leaves no search: give more cycles, or --schedule weights-only"
            )
        if not 0 <= self.rescore <= MOST:
            raise UserError(f"--rescore {self.rescore}: expected 0 to {MOST:,}")

    def check(self) -> None:
        """See `Job.check`."""
        if self.recipe and self.dataset:
            from whale_train.recipes import check_data

            check_data(self.recipe, self.domain, self.dataset)
        super().check()
        check_budget(self, self.load_domain())

    @property
    def arms(self) -> tuple[str, ...]:
        """See `ArmOptions.arms`."""
        alone = self.schedule in ("weights-only", "harness-only")
        beside = ("weights-only", "harness-only") if self.baselines else ()
        return (self.schedule,) if alone else ("whale", *beside)

    @property
    def search(self) -> SearchSettings:
        """See `SearchOptions.search`."""
        return replace(super().search, rescore=self.rescore)


@dataclass(frozen=True)
class TrainConfig(WeightPhases):
    """Train the weights under one harness: online rejection-sampling fine-tuning."""

    kind: ClassVar[str] = "train"

    @property
    def arms(self) -> tuple[str, ...]:
        """See `ArmOptions.arms`."""
        return ("weights-only",)


@dataclass(frozen=True)
class SearchConfig(SearchPhases):
    """Search for a better harness under fixed weights."""

    kind: ClassVar[str] = "search"

    @property
    def arms(self) -> tuple[str, ...]:
        """See `ArmOptions.arms`."""
        return ("harness-only",)


@dataclass(frozen=True)
class DiagnoseConfig(WeightOptions, SearchOptions):
    """Say what an agent is bound by: its harness, its model, or both. A training of the weights and a search for a
    harness begin at the same start with the same budget; both ends are measured on shadow tasks of the harness split,
    which neither has seen (the test set stays sealed).

    A gain is real where its 95 % interval, paired over the tasks, lies above 0. The agent is bound by its harness where
    the search gains really, and really more than the training; by its model the other way round; by both where both
    gain really and the difference between them may be chance: then either helps. Otherwise it cannot be told at this
    budget, and how many tasks, or episodes of each, would tell is said."""

    kind: ClassVar[str] = "diagnose"

    repeats: int = 8
    """Episodes for each shadow task."""
    limit: int | None = None
    """Use the first so many shadow tasks only."""
    budget_rollouts: int = 2048
    """The most rollouts that the training, and the search, may spend; what measures them comes on top."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("budget_rollouts")

    def check(self) -> None:
        """See `Job.check`."""
        super().check()
        check_budget(self, self.load_domain())

    @property
    def arms(self) -> tuple[str, ...]:
        """See `ArmOptions.arms`."""
        return ("weights-only", "harness-only")

    @property
    def splits(self) -> tuple[str, ...]:
        """See `Job.splits`: the test split is not looked at."""
        return ("weight", "harness")


@dataclass(frozen=True)
class EvalConfig(Job):
    """Evaluate a policy under a harness: mean@k with its 95 % interval, and every episode."""

    kind: ClassVar[str] = "eval"

    split: str = "test"
    """Which tasks: weight, harness or test."""
    repeats: int = 8
    """Episodes for each task."""
    limit: int | None = None
    """Use the first so many tasks only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split not in SPLITS:
            raise unknown("split", self.split, SPLITS)
        self._positive("repeats", "limit")

    @property
    def splits(self) -> tuple[str, ...]:
        """See `Job.splits`."""
        return (self.split,)


def check_budget(config: RunConfig | DiagnoseConfig, data: Data) -> None:
    """Raise `UserError` for a budget in which an arm can do nothing."""
    from whale_train.whale import plan_of

    least = max(plan_of(config, arm, data).least for arm in config.arms)
    if config.budget_rollouts is not None and config.budget_rollouts < least:
        raise UserError(
            f"--budget-rollouts {config.budget_rollouts}: a step of training, a search of one round, or both take "
            f"{least:,}; give at least that, or smaller --prompts, --group, --tasks or --candidates"
        )
