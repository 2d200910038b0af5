"""The archive: a folder of harness candidates that a person, a proposer and a program can all read.

    archive.json                    the index: phase, accepted harness, every candidate with its scores
    rounds.jsonl                    one line a finished round: what was proposed, what came of it
    frontier.json                   the harnesses that solve what the best does not, as of the last round
    proposals/<phase>-<round>-<ask>.json  what the proposer handed in, as it was handed in
    exchanges/<phase>-<round>-<ask>.jsonl what it said to a service and heard, one line an exchange
    candidates/<hash>/harness.py    the source
                      hypothesis.md what its author expected
                      parents.json  what it was made from, along which axes, and what the gate said
                      audit.json    why it was refused, if it was: each finding's layer, reason and place
                      scores.json   one score a (weights, data, seed)
                      outcomes.jsonl one line a score and task
                      episodes.jsonl.zst the raw episodes, whole, packed by zstandard

Every file is written atomically and what makes others count last (`archive.json`, and `rounds.jsonl` for a round), so
that a kill leaves either the old state or the new one; work that was lost that way is done again with the same result.
Nothing in the folder stems from the shadow tasks or the test split. One process writes to an archive at a time.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from whale_envs import Episode, Harness
from whale_envs.episode import read_episodes, read_json, read_json_lines, write_atomic, write_episodes
from whale_envs.errors import UserError
from whale_envs.harness.audit import Finding
from whale_train.meta_harness.records import Candidate, Outcome, Phase, Proposals, Round, Score, ScoreKey, outcome
from whale_train.rollout import episode_seed

#: A candidate's file of raw episodes.
EPISODES = "episodes.jsonl.zst"
#: What helps when the index is damaged: without it the archive is lost, so removing it would not help.
_REMEDY = "put back a copy of it, or search in another folder; without it the archive is lost"


class _Index(msgspec.Struct):
    domain: str
    phase: Phase | None = None
    accepted: str = ""
    candidates: list[Candidate] = []


class Archive:
    """An archive folder, made when something is filed. Raises `UserError` for a broken one or one of another domain."""

    def __init__(self, folder: Path, domain: str) -> None:
        self.folder = folder
        self._index = _Index(domain)
        self.rounds: list[Round] = []
        if (folder / "archive.json").exists():
            self._index = _read_index(folder)
        if (folder / "rounds.jsonl").exists():
            self.rounds = list(read_json_lines(folder / "rounds.jsonl", Round))
        if self._index.domain != domain:
            raise UserError(
                f"archive {folder} holds harnesses of {self._index.domain}, not of {domain}: give another folder"
            )
        self._by_hash = {c.hash: c for c in self._index.candidates}

    @property
    def domain(self) -> str:
        """The domain whose harnesses it holds."""
        return self._index.domain

    @property
    def phase(self) -> Phase | None:
        """The search that goes on, None before the first."""
        return self._index.phase

    @property
    def accepted(self) -> str:
        """The hash of the accepted harness."""
        return self._index.accepted

    @property
    def candidates(self) -> list[Candidate]:
        """Every candidate, in the order of arrival, refused ones among them."""
        return self._index.candidates

    def __contains__(self, hash: str) -> bool:
        return hash in self._by_hash

    def __getitem__(self, hash: str) -> Candidate:
        try:
            return self._by_hash[hash]
        except KeyError:
            raise UserError(f"no harness {hash!r} in archive {self.folder}: `whale archive` lists them") from None

    def files(self, hash: str) -> Path:
        """The folder of one candidate."""
        return self.folder / "candidates" / hash

    def source(self, hash: str) -> str:
        """The source of one candidate. Raises `UserError` where its file is gone or is no text."""
        path = self.files(hash) / "harness.py"
        try:
            return path.read_text(encoding="utf-8")
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"{path} cannot be read ({why}): put back a copy of it, or search in another folder"
            ) from None

    def harness(self, hash: str) -> Harness:
        """A candidate as a harness, not trusted: it runs jailed, whoever wrote it."""
        return Harness(self.source(hash), name=hash, trusted=False)

    def with_tree(self, tree: str) -> Candidate | None:
        """The candidate with this normalised syntax tree, if there is one."""
        return next((c for c in self.candidates if c.tree == tree), None)

    def scored(self, key: ScoreKey | None = None) -> list[Candidate]:
        """The candidates scored on all tasks under `key` (by default the current phase's) and not refused: best mean
        first, ties to fewer turns."""
        if key is None and self.phase is None:
            return []
        name = str(key or self.phase.score_key)  # type: ignore[union-attr]
        found = [c for c in self.candidates if name in c.scores and not c.scores[name].dropped and not c.gate]
        return sorted(found, key=lambda c: (-c.scores[name].mean, c.scores[name].turns))

    def best_before(self, key: ScoreKey, count: int, but: str) -> list[Candidate]:
        """The `count` best harnesses, by their last scores, of those that were scored under other weights than `key`'s
        and not refused before they were scored under it; `but` is left out."""
        found: list[tuple[float, Candidate]] = []
        for candidate in self.candidates:
            old = [s for k, s in candidate.scores.items() if not k.startswith(f"{key.weights}-") and not s.dropped]
            if old and candidate.hash != but and (not candidate.gate or str(key) in candidate.scores):
                found.append((old[-1].mean, candidate))
        return [c for _, c in sorted(found, key=lambda f: -f[0])[:count]]

    def episodes(self, hash: str, key: ScoreKey | None = None) -> list[Episode]:
        """A candidate's raw episodes, all of them or those that played under `key`."""
        path = self.files(hash) / EPISODES
        played = list(read_episodes(path)) if path.exists() else []
        if key is None:
            return played
        wanted = {(task, key.weights, episode_seed(key.seed, task, 0)) for task in self.outcomes(hash, key)}
        return [e for e in played if _identity(e) in wanted]

    def outcomes(self, hash: str, key: ScoreKey | str) -> dict[str, Outcome]:
        """What came of each task under `key`, by task id."""
        path = self.files(hash) / "outcomes.jsonl"
        found, name = read_json_lines(path, Outcome) if path.exists() else (), str(key)
        return {o.task: o for o in found if o.key == name}

    def frontier(self) -> dict[str, list[str]]:
        """What there is to merge from: harnesses with the tasks that they solve and the best under the current phase's
        key does not, by hash.

        The one that adds most tasks comes first, then the one that adds most to those two, and so on until nobody adds
        any; each is given with the tasks that it adds. Refused ones are left out, dropped ones are not.
        """
        ranked = self.scored()
        if not ranked:
            return {}
        key = self.phase.score_key  # type: ignore[union-attr]
        others = [c.hash for c in self.candidates if str(key) in c.scores and not c.gate]
        solved = {h: [t for t, o in self.outcomes(h, key).items() if o.solved] for h in others}
        best, found = set(solved[ranked[0].hash]), dict[str, list[str]]()
        more = {h: [t for t in tasks if t not in best] for h, tasks in solved.items()}
        while more := {h: tasks for h, tasks in more.items() if tasks}:
            now = max(more, key=lambda h: len(more[h]))
            found[now] = more[now]
            added = set(more[now])
            more = {h: [t for t in tasks if t not in added] for h, tasks in more.items()}
        return found

    def add(
        self,
        source: str,
        hypothesis: str,
        parents: Sequence[str],
        axes: Sequence[str],
        born: str,
        refused: Sequence[Finding] = (),
    ) -> Candidate:
        """File a harness, and why it was refused if it was; one that is there already stays as it is."""
        hash = hashlib.sha256(source.encode()).hexdigest()[:12]
        if hash in self._by_hash:
            return self._by_hash[hash]
        gate = str(refused[0]) if refused else ""
        candidate = Candidate(hash, tree_hash(source), hypothesis, list(parents), list(axes), born, gate)
        made_from = {"parents": candidate.parents, "axes": candidate.axes, "born": born, "gate": gate or "passed"}
        write_atomic(self.files(hash) / "harness.py", source.encode())
        write_atomic(self.files(hash) / "hypothesis.md", (hypothesis.strip() + "\n").encode())
        write_atomic(self.files(hash) / "parents.json", _pretty(made_from))
        if refused:
            write_atomic(self.files(hash) / "audit.json", _pretty(refused))
        self._index.candidates.append(candidate)
        self._by_hash[hash] = candidate
        self._save()
        return candidate

    def record(self, hash: str, key: ScoreKey, score: Score, episodes: Sequence[Episode]) -> None:
        """File a score with its episodes, beside those under other keys."""
        candidate, files = self[hash], self.files(hash)
        fresh = {_identity(e) for e in episodes}  # a kill may have left these very episodes without their score
        write_episodes(files / EPISODES, [*(e for e in self.episodes(hash) if _identity(e) not in fresh), *episodes])
        self._keep_outcomes(hash, key, episodes)
        candidate.scores[str(key)] = score
        write_atomic(files / "scores.json", _pretty(candidate.scores))
        self._save()

    def mend(self, key: ScoreKey, tasks: Iterable[str]) -> None:
        """Write what is missing of the outcomes under `key` again, from the raw episodes of these tasks. Raises
        `UserError` where those are missing, too: races and paired tests would go by a part of the tasks."""
        wanted = {(task, key.weights, episode_seed(key.seed, task, 0)) for task in tasks}
        for candidate in self.candidates:
            score = candidate.scores.get(str(key))
            if score is None or len(self.outcomes(candidate.hash, key)) >= score.n:
                continue
            played = [e for e in self.episodes(candidate.hash) if _identity(e) in wanted]
            if len(played) != score.n:
                raise UserError(
                    f"{self.files(candidate.hash)}: outcomes.jsonl and {EPISODES} have less than the {score.n} tasks "
                    f"of the score {key}: put back copies of them, or search in another folder"
                )
            self._keep_outcomes(candidate.hash, key, played)

    def _keep_outcomes(self, hash: str, key: ScoreKey, episodes: Sequence[Episode]) -> None:
        path = self.files(hash) / "outcomes.jsonl"
        kept = [o for o in read_json_lines(path, Outcome) if o.key != str(key)] if path.exists() else []
        kept += [outcome(e, key) for e in episodes]
        write_atomic(path, b"".join(msgspec.json.encode(o) + b"\n" for o in kept))

    def refuse(self, hash: str, refused: Sequence[Finding]) -> None:
        """Mark a candidate that was caught after it had played; it keeps its scores and is accepted no more."""
        write_atomic(self.files(hash) / "audit.json", _pretty(refused))
        self[hash].gate = str(refused[0])
        self._save()

    def begin(self, phase: Phase, accepted: str) -> None:
        """A search begins, or goes on. From here to its end, nobody else writes here."""
        for draft in self.folder.rglob(".*.tmp"):  # what a killed process had begun to write
            draft.unlink()
        self._index.phase, self._index.accepted = phase, accepted
        self._save()

    def proposals(self, phase: str, round: int, ask: int) -> Proposals | None:
        """What was proposed when a round's proposer was asked for the `ask`-th time (from 0), if it was heard."""
        path = self._proposals(phase, round, ask)
        return read_json(path, Proposals) if path.exists() else None

    def keep_proposals(self, phase: str, round: int, ask: int, proposals: Proposals) -> None:
        """File what was proposed, so that a killed round goes on with it and not with others."""
        write_atomic(self._proposals(phase, round, ask), _pretty(proposals))

    def keep_exchanges(self, phase: str, round: int, ask: int, exchanges: Sequence[str]) -> None:
        """File what a proposer said and heard, after what an attempt that was broken off has left."""
        path = self.folder / "exchanges" / (self._proposals(phase, round, ask).stem + ".jsonl")
        before = path.read_bytes() if path.exists() else b""
        if exchanges:
            write_atomic(path, before + "".join(line + "\n" for line in exchanges).encode())

    def finish_round(self, done: Round) -> None:
        """File a finished round and what it accepted, and the frontier."""
        write_atomic(self.folder / "frontier.json", _pretty(self.frontier()))
        self._index.accepted = done.accepted
        self._save()
        self.rounds.append(done)
        write_atomic(self.folder / "rounds.jsonl", b"".join(msgspec.json.encode(r) + b"\n" for r in self.rounds))

    def _proposals(self, phase: str, round: int, ask: int) -> Path:
        return self.folder / "proposals" / f"{re.sub(r'[^A-Za-z0-9]+', '-', phase)}-{round}-{ask}.json"

    def _save(self) -> None:
        write_atomic(self.folder / "archive.json", _pretty(self._index))


def read_archive(folder: Path) -> Archive:
    """The archive in a folder, of whatever domain. Raises `UserError` for one that is broken."""
    return Archive(folder, _read_index(folder).domain)


def _read_index(folder: Path) -> _Index:
    return read_json(folder / "archive.json", _Index, _REMEDY)


def tree_hash(source: str) -> str:
    """A hash of the source's syntax tree without docstrings and layout; of the text when it does not parse."""
    try:
        text = ast.dump(without_docstrings(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # deep nesting may parse and still not dump
        text = source
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree itself, from which docstrings have been taken."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return tree


def _identity(episode: Episode) -> tuple[str, str, int]:
    return episode.task_id, episode.weights, episode.seed


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
