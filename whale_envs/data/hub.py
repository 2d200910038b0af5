"""The sets of the Hugging Face hub that the paper's tasks come from, loaded through `datasets`.

Each set is pinned to a commit, and another revision can be asked for. No hub was at hand when this was written: the
commits are those that public code which uses the sets pins. What the hub resolved at download, and the licence that
the set states of itself there, go into the card of what is made from it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whale_envs.data.folder import Source
from whale_envs.errors import UserError, unknown

if TYPE_CHECKING:
    from datasets import Dataset

NOT_STATED = "not stated"


@dataclass(frozen=True)
class HubSet:
    """A set: its repository and commit, its files (a glob), the columns that are read, and what its tasks' `source`
    says where a row has no `data_source`."""

    repo: str
    revision: str
    files: str
    columns: tuple[str, ...]
    label: str = ""


NQ_HOTPOTQA = HubSet(
    "PeterJinGo/nq_hotpotqa_train",
    "b7d80abfee334a7a91cb377544f09180d58b34f6",
    "train.parquet",
    ("question", "golden_answers", "data_source"),
)
#: The seven test sets, each in the split that has answers.
FLASHRAG = tuple(
    HubSet(
        "RUC-NLPIR/FlashRAG_datasets",
        "bcafb8dd07d453be3cbeeeb3f78be1841bddf92c",
        f"{name}/{split}.jsonl",
        ("question", "golden_answers"),
        name,
    )
    for name, split in {
        "nq": "test",
        "triviaqa": "test",
        "popqa": "test",
        "hotpotqa": "dev",
        "2wikimultihopqa": "dev",
        "musique": "dev",
        "bamboogle": "test",
    }.items()
)
DAPO = HubSet(
    "BytedTsinghua-SIA/DAPO-Math-17k",
    "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
    "data/dapo-math-17k.parquet",
    ("prompt", "reward_model", "data_source"),
)
AIME = (
    HubSet(
        "Maxwell-Jia/AIME_2024",
        "8d88b2876a82a080e2f172cc9b25d0d9d2cb4792",
        "aime_2024_problems.parquet",
        ("Problem", "Answer"),
        "aime2024",
    ),
    HubSet(
        "yentinglin/aime_2025",
        "6f71d77b0b89b9dabe07ab466c51df33f514df7f",
        "data/train-*.parquet",
        ("problem", "answer"),
        "aime2025",
    ),
)
LICHESS = HubSet(
    "Lichess/chess-puzzles",
    "479ea9bc9f681385f5adb23fa27a96c2dc8ae599",
    "data/train-*.parquet",
    ("PuzzleId", "FEN", "Moves"),
)
#: The 2018 Wikipedia corpus, 21,015,324 passages: a tar archive of one JSONL file within gzip, 5.1 GB.
WIKI_18 = HubSet(
    "PeterJinGo/wiki-18-corpus", "69c1c00ffe7c5554c68d8548355cb22e46aabc51", "wiki-18.jsonl.gz", ("id", "contents")
)
#: The sets of each domain: where D_weight and D_harness are drawn from, then where the test set is.
SETS = {"search-qa": (NQ_HOTPOTQA, *FLASHRAG), "math": (DAPO, *AIME), "chess": (LICHESS,)}


@dataclass(frozen=True)
class Hub:
    """The hub, or copies of its repositories in a folder.

    Args:
        mirror: a folder that holds `OWNER/NAME/...` as the hub does; None for the hub itself.
        revisions: a commit, branch or tag by repository, in place of the pinned commits.

    Raises `UserError` for a revision of a repository that is not read.
    """

    mirror: Path | None = None
    revisions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {s.repo for sets in SETS.values() for s in sets} | {WIKI_18.repo}
        for repo in self.revisions:
            if repo not in known:
                raise unknown("repository", repo, known)

    def revision(self, hub_set: HubSet) -> str:
        """The revision that is asked for; a mirror's is the SHA-256 of its files' SHA-256."""
        if self.mirror is None:
            return self.revisions.get(hub_set.repo, hub_set.revision)
        return files_hash(self.copies(self.mirror, hub_set))

    def source(self, hub_set: HubSet, rows: int) -> Source:
        """Where `rows` rows come from: the commit that the revision stands for, and the licence stated there."""
        from huggingface_hub import DatasetCard, HfApi

        name, revision = f"{hub_set.repo}/{hub_set.files}", self.revision(hub_set)
        if self.mirror is not None:
            path = self.mirror / hub_set.repo / "README.md"
            card = DatasetCard.load(path).data if path.exists() else None
            return Source(name, revision, _licence(card), rows)
        with _fetching(hub_set.repo, revision):
            info = HfApi().dataset_info(hub_set.repo, revision=revision)
        return Source(name, info.sha or revision, _licence(info.card_data), rows)

    def load(self, hub_set: HubSet) -> Dataset:
        """A set's rows with the columns that are read; downloaded once, and memory-mapped."""
        import datasets

        if self.mirror is None:
            where = self.revision(hub_set)
            files = [f"hf://datasets/{hub_set.repo}@{where}/{hub_set.files}"]
        else:  # `source` hashes the copies, once
            where, files = str(self.mirror), [str(path) for path in self.copies(self.mirror, hub_set)]
        columns = list(hub_set.columns)
        with _fetching(hub_set.repo, where):
            if ".jsonl" in hub_set.files:
                return datasets.load_dataset("json", data_files=files, split="train").select_columns(columns)
            return datasets.load_dataset("parquet", data_files=files, split="train", columns=columns)

    def fetch_corpus(self, folder: Path) -> Path:
        """The file of the 2018 Wikipedia corpus, downloaded into a folder unless the mirror has it."""
        if self.mirror is not None:
            return self.copies(self.mirror, WIKI_18)[0]
        from huggingface_hub import hf_hub_download

        revision = self.revision(WIKI_18)
        with _fetching(WIKI_18.repo, revision):
            return Path(
                hf_hub_download(WIKI_18.repo, WIKI_18.files, repo_type="dataset", revision=revision, local_dir=folder)
            )

    @staticmethod
    def copies(mirror: Path, hub_set: HubSet) -> list[Path]:
        """A mirror's copies of a set's files. Raises `UserError` when there are none."""
        if found := sorted((mirror / hub_set.repo).glob(hub_set.files)):
            return found
        raise UserError(
            f"{mirror} holds no {hub_set.repo}/{hub_set.files}: expected a copy as `hf download {hub_set.repo} "
            f"--repo-type dataset --revision {hub_set.revision} --local-dir {mirror / hub_set.repo}` makes it"
        )


def files_hash(paths: list[Path]) -> str:
    """The SHA-256 of a file, of several files that of theirs. Raises `UserError` for one that cannot be read."""
    digests = []
    for path in paths:
        try:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; check the path") from None
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _licence(card: Any) -> str:
    """What a dataset card says of the licence."""
    stated = card.get("license") if card is not None else None
    return ", ".join(stated) if isinstance(stated, list) else str(stated or NOT_STATED)


@contextlib.contextmanager
def _fetching(repo: str, where: str) -> Iterator[None]:
    """Failures as `UserError`; `where` is the revision, or the mirror's folder."""
    import httpx2  # what huggingface_hub speaks HTTP with
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (OSError, ValueError, httpx2.HTTPError, DatasetsError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        why = str(error.__cause__ or error).partition("\n")[0]
        raise UserError(
            f"cannot load {repo} at {where}: {why}; check the network and HF_TOKEN, "
            "or give --source hub:DIR with copies of the hub's repositories"
        ) from None
