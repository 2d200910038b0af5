"""What the study says: means, differences and their intervals, as tables that go into README.md.

Arms of one domain and seed are tested on the same tasks with the same seeds, so that differences are paired by both.
Seeds and tasks are crossed, and both are samples: the variance of a mean is that of the seeds' means over the number of
seeds plus that of the tasks' means over the number of tasks (what a two-level bootstrap gives in the limit; Owen 2007,
"The pigeonhole bootstrap"), its interval Student's t with Satterthwaite's degrees of freedom.

    python benchmarks/recipe/findings.py       # writes the tables of README.md, from results.json and matrices.json
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from results import Row, load
from study import ARMS, BUDGET, LARGE, REPEATS, SIZES, START

from whale_envs.episode import read_json, write_atomic
from whale_train.matrix import PARTS
from whale_train.metrics import t_quantile

HERE = Path(__file__).parent
BEGIN, END = "<!-- tables: written by findings.py -->", "<!-- end of tables -->"
NAMES = {"search-qa": "SearchQA", "math": "Math", "chess": "Chess"}
#: The paper's main table has WHALE at (0.6, 6), which is what the others are held against: chosen before the study.
WHALE = "fixed-0.6-6"
FIXED = tuple(arm for arm in ARMS if arm.startswith("fixed"))
Scores = NDArray[np.float64]
#: Seeds x tasks: the share of a task's episodes that were right.
Table = Mapping[str, Mapping[int, Scores]]


class Interval(NamedTuple):
    """A mean with its 95 % interval, of no bound where one seed says nothing of the spread over seeds."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{100 * self.mean:.1f}"
        return f"{100 * self.mean:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def within(rows: Sequence[Row], budget: int) -> list[Row]:
    """The lines of a budget; the start, which spends nothing, is of each."""
    return [row for row in rows if row.budget == budget or row.arm == START]


def domains_of(rows: Sequence[Row]) -> list[str]:
    """The domains that have lines of an arm."""
    return [domain for domain in SIZES if any(row.domain == domain and row.arm != START for row in rows)]


def scores(rows: Sequence[Row], domain: str) -> dict[str, dict[int, Scores]]:
    """By arm and seed, the test tasks' scores."""
    found: dict[str, dict[int, Scores]] = {}
    for row in rows:
        if row.domain == domain:
            found.setdefault(row.arm, {})[row.seed] = np.array([int(c) for c in row.by_task]) / REPEATS
    return found


def crossed(values: Scores) -> Interval:
    """The mean of seeds x tasks with its interval; see the module."""
    seeds, tasks = values.shape
    mean = float(values.mean())
    if seeds < 2 or tasks < 2:
        return Interval(mean, -math.inf, math.inf)
    parts = [float(values.mean(axis=1).var(ddof=1)) / seeds, float(values.mean(axis=0).var(ddof=1)) / tasks]
    total = sum(parts)
    if not total:
        return Interval(mean, mean, mean)
    freedom = total**2 / (parts[0] ** 2 / (seeds - 1) + parts[1] ** 2 / (tasks - 1))
    half = t_quantile(max(1, math.floor(freedom))) * math.sqrt(total)
    return Interval(mean, mean - half, mean + half)


def of_arm(table: Table, arm: str) -> Interval | None:
    """An arm's mean over its seeds, its interval cut to what a mean can be; None when it has not been run."""
    if not table.get(arm):
        return None
    found = crossed(np.array([table[arm][seed] for seed in sorted(table[arm])]))
    return found if math.isinf(found.low) else Interval(found.mean, max(0.0, found.low), min(1.0, found.high))


def difference(table: Table, arm: str, other: str) -> Interval | None:
    """The mean of `arm` minus that of `other` over the seeds that both have; None when they share none."""
    shared = sorted(table.get(arm, {}).keys() & table.get(other, {}).keys())
    return crossed(np.array([table[arm][s] - table[other][s] for s in shared])) if shared else None


def best_fixed(table: Table) -> str | None:
    """Of several fixed schedules that with the best mean on the test set: a choice in hindsight, which flatters it."""
    means = {arm: found.mean for arm in FIXED if (found := of_arm(table, arm))}
    return max(means, key=lambda arm: means[arm]) if len(means) > 1 else None


def above(found: Interval | None) -> str:
    """Whether one is above another, in words."""
    if found is None or math.isinf(found.low):
        return "not run" if found is None else "one seed"
    return "**yes**" if found.low > 0 else "no, below" if found.high < 0 else "not to be told"


def not_below(found: Interval | None) -> str:
    """Whether one keeps up with another, in words."""
    if found is None or math.isinf(found.low):
        return "not run" if found is None else "one seed"
    return "no, below" if found.high < 0 else "**yes**, above" if found.low > 0 else "within noise"


def early(rows: Sequence[Row], domain: str) -> Interval | None:
    """By how much (0.2, 6) after its first cycle is above harness only at its end, t over seeds."""
    first = {r.seed: r.curve[0][1] for r in rows if (r.domain, r.arm) == (domain, "fixed-0.2-6") and r.curve}
    last = {r.seed: r.mean for r in rows if (r.domain, r.arm) == (domain, "harness-only")}
    gains = [first[s] - last[s] for s in sorted(first.keys() & last.keys())]
    if not gains:
        return None
    mean = statistics.fmean(gains)
    half = t_quantile(len(gains) - 1) * statistics.stdev(gains) / math.sqrt(len(gains)) if gains[1:] else math.inf
    return Interval(mean, mean - half, mean + half)


#: A finding of the paper: what it says, what speaks for it here in a domain, and how that is read.
Finding = tuple[str, Callable[[Sequence[Row], str], Interval | None], Callable[[Interval | None], str]]


def _minus(arm: str, other: str) -> Callable[[Sequence[Row], str], Interval | None]:
    return lambda rows, domain: difference(scores(rows, domain), arm, other)


def _adaptive_minus_best(rows: Sequence[Row], domain: str) -> Interval | None:
    table = scores(rows, domain)
    best = best_fixed(table)
    return difference(table, "adaptive", best) if best else None


FINDINGS: list[Finding] = [
    ("(0.6, 6) is above weights only", _minus(WHALE, "weights-only"), above),
    ("(0.6, 6) is above harness only", _minus(WHALE, "harness-only"), above),
    ("(0.6, 6) is above FST, which may change prompts only", _minus(WHALE, "fst"), above),
    ("(0.6, 6) is above stagewise", _minus(WHALE, "stagewise"), above),
    ("short phases of weights are better: (0.2, 6) is above (1.0, 10)", _minus("fixed-0.2-6", "fixed-1.0-10"), above),
    ("search needs rounds: (0.2, 6) is above (0.2, 2)", _minus("fixed-0.2-6", "fixed-0.2-2"), above),
    ("bound by its harness: harness only is above weights only", _minus("harness-only", "weights-only"), above),
    ("adaptive is above weights only", _minus("adaptive", "weights-only"), above),
    ("adaptive is above harness only", _minus("adaptive", "harness-only"), above),
    ("adaptive is above FST", _minus("adaptive", "fst"), above),
    ("adaptive is above stagewise", _minus("adaptive", "stagewise"), above),
    ("adaptive keeps up with (0.6, 6)", _minus("adaptive", WHALE), not_below),
    ("adaptive keeps up with the best fixed schedule (picked on the test set)", _adaptive_minus_best, not_below),
    ("(not in the paper) bandit keeps up with adaptive", _minus("bandit", "adaptive"), not_below),
    (
        "a little training makes search work: (0.2, 6) after one cycle is above harness only at its end (over seeds "
        "alone)",
        early,
        above,
    ),
]


def label(arm: str) -> str:
    """How people call an arm."""
    if arm in FIXED:
        _, epochs, rounds = arm.split("-")
        return f"({epochs}, {rounds})"
    return {"fst": "FST", START: "start"}.get(arm, arm.replace("-", " "))


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def sizes_table() -> str:
    """What the parts of an arm cost."""
    rows = []
    for domain, size in SIZES.items():
        step, turn = size.prompts * size.group, size.candidates * size.tasks
        counts = [str(size.prompts), str(size.group), str(size.candidates), str(size.tasks)]
        rows.append([NAMES[domain], *counts, f"{step} / {size.tasks} / {turn}"])
    heads = ["", "prompts", "group", "candidates", "tasks", "rollouts of a step / baseline / round"]
    return markdown(heads, rows)


def means_table(rows: Sequence[Row]) -> str:
    """Test mean@8 of each arm."""
    tables = {domain: scores(rows, domain) for domain in domains_of(rows)}
    lines = []
    for arm in (START, *ARMS):
        found = [of_arm(table, arm) for table in tables.values()]
        seeds = {len(table.get(arm, {})) for table in tables.values()} - {0}
        if seeds:
            lines.append([label(arm), "/".join(map(str, sorted(seeds))), *(str(f) if f else "" for f in found)])
    return markdown(["arm", "seeds", *(NAMES[domain] for domain in tables)], lines)


def findings_table(rows: Sequence[Row]) -> str:
    """What the paper found, and whether it shows here: points with their interval."""
    lines, domains = [], domains_of(rows)
    for name, differ, read in FINDINGS:
        found = [differ(rows, domain) for domain in domains]
        if any(found):
            lines.append([name, *(f"{read(f)}{f': {f}' if f else ''}" for f in found)])
    return markdown(["the paper's finding", *(NAMES[domain] for domain in domains)], lines)


def lengths_table(rows: Sequence[Row]) -> str:
    """How long the phases are that adaptive chose: median and range, but for those that the budget cut."""
    lines = []
    for domain in SIZES:
        cells = [NAMES[domain]]
        for kind, unit in (("weights", "epochs"), ("harness", "rounds")):
            found = [
                units
                for row in rows
                if (row.domain, row.arm) == (domain, "adaptive")
                for k, units, _, why in row.phases
                if k == kind and why
            ]
            spread = (
                f"{statistics.median(found):g} ({min(found):g} to {max(found):g}), n = {len(found)}" if found else ""
            )
            cells.append(f"{spread} {unit}" if found else "")
        lines.append(cells)
    return markdown(["", "weight phases (paper: 0.24 / 0.29 epochs)", "harness phases (paper: 7 rounds)"], lines)


def behaviours_table(rows: Sequence[Row], domain: str) -> str:
    """How often each behaviour was seen in the test episodes, in per cent, mean over seeds."""
    arms = [arm for arm in (START, "weights-only", "harness-only", WHALE, "adaptive") if scores(rows, domain).get(arm)]
    names = sorted({name for row in rows if row.domain == domain for name in row.behaviours})
    lines = []
    for name in names:
        cells = []
        for arm in arms:
            seen = [r.behaviours[name] for r in rows if (r.domain, r.arm) == (domain, arm) and name in r.behaviours]
            cells.append(f"{100 * statistics.fmean(seen):.0f}" if seen else "")
        lines.append([name, *cells])
    return markdown([f"{NAMES[domain]}, %", *map(label, arms)], lines)


def gains_table(matrices: Mapping[str, Any]) -> str:
    """Where the gain of one run stems from, in points, by the matrix of `matrices.py`."""
    domains = [domain for domain in SIZES if domain in matrices]
    lines = []
    for part, name in PARTS.items():
        gains = [matrices[domain]["gain"].get(part) for domain in domains]
        lines.append([name, *(str(Interval(g["mean"], *g["ci95"])) if g else "" for g in gains)])
    return markdown(["", *(NAMES[domain] for domain in domains)], lines)


def section(rows: Sequence[Row], matrices: Mapping[str, Any]) -> str:
    """All tables."""
    large, rows = within(rows, LARGE), within(rows, BUDGET)
    behaviours = [behaviours_table(rows, domain) for domain in domains_of(rows)]
    return "\n\n".join(
        [
            sizes_table(),
            f"Test mean@8 in % after {BUDGET:,} rollouts, mean over seeds with 95 % intervals over seeds and tasks:",
            means_table(rows),
            "Whether the paper's findings show here, in points with 95 % intervals, paired by seed and task:",
            findings_table(rows),
            f"The same after {LARGE:,} rollouts:",
            means_table(large),
            findings_table(large),
            "Phases that adaptive ended by itself:",
            lengths_table(rows),
            f"Where the gain of {label(WHALE)}, seed 0, stems from, in points, intervals over tasks:",
            gains_table(matrices),
            "Behaviours in the test episodes at the end:",
            *behaviours,
        ]
    )


def kept_matrices(path: Path = HERE / "matrices.json") -> dict[str, Any]:
    """What `matrices.py` wrote."""
    return read_json(path, dict[str, Any]) if path.exists() else {}


def write(readme: Path, rows: Sequence[Row], matrices: Mapping[str, Any]) -> None:
    """Put the tables between their markers, in place of what is there."""
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    write_atomic(readme, f"{before}{BEGIN}\n\n{section(rows, matrices)}\n\n{END}{after}".encode())


if __name__ == "__main__":
    write(HERE / "README.md", load(HERE / "results.json").results, kept_matrices())
