"""SearchQA: questions answered by searching a corpus."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from whale_envs.data.folder import kept_splits
from whale_envs.data.search_world import SearchWorld
from whale_envs.domain import Domain, World, format_followed
from whale_envs.episode import Episode, Verdict
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Message
from whale_envs.task import Splits, Task
from whale_envs.tools.retrieval import BACKENDS, BM25Retriever, LocalRetriever, Retriever, open_retriever
from whale_envs.verifiers.choose import ShortAnswerVerifier, short_answer_verifier
from whale_envs.verifiers.exact_match import normalise

#: The seed of the bundled world; the bundled model was trained on others.
MINI_WORLD_SEED = 0
#: Longest text whose words are kept, in characters.
MAX_KEPT = 4_000


class SearchQA(Domain):
    """The SearchQA domain.

    `dataset` is None for the bundled mini world, or "QUESTIONS,corpus=CORPUS": questions from a prepared folder, a
    file or a folder of files (see `whale_envs.data.folder.load_splits`), and passages from a JSONL file of
    `{id, title, text}` or `{id, contents}`, a folder that `whale index build` wrote, or the URL of a server; with
    ",retriever=rank_bm25" at the end, the slow reference ranks (see `whale_envs.tools.retrieval.open_retriever`).
    A `SearchWorld` may be given instead. `verifier` is "exact-match", "f1", "sub-em" or "judge:PROVIDER:MODEL" (see
    `whale_envs.verifiers`).
    """

    name = "search-qa"

    def __init__(self, dataset: str | SearchWorld | None = None, verifier: str = "exact-match") -> None:
        self.verifier, self._verify = verifier, short_answer_verifier(verifier)
        self.retriever: Retriever
        if dataset is None or isinstance(dataset, SearchWorld):
            self.splits, self.retriever = _bundled() if dataset is None else _opened(dataset)
            self.max_tokens = 64  # the longest useful reply of a mini world is about 30 tokens
        else:
            questions, _, corpus = dataset.partition(",corpus=")
            corpus, _, ranker = corpus.partition(",retriever=")
            if not corpus:
                raise UserError(
                    f"dataset {dataset!r} names no corpus: expected {questions or 'QUESTIONS'},corpus=CORPUS, CORPUS "
                    "being a JSONL file of passages, an index's folder, or a retrieval server's URL"
                )
            self.splits = kept_splits(questions, self.name)
            self.retriever = open_retriever(corpus, ranker or BACKENDS[0])
        self.waits = not isinstance(self.retriever, LocalRetriever) or verifier.startswith("judge:")

    def content(self, task: Task) -> str:
        """See `Domain.content`."""
        return normalise(task.shown["question"])

    def world(self, task: Task) -> SearchQAWorld:
        """See `Domain.world`."""
        return SearchQAWorld(task, self.retriever, self._verify)


class SearchQAWorld(World):
    """One question. Tool: `search(query, k=1) -> list[Passage]`."""

    def __init__(self, task: Task, retriever: Retriever, verify: ShortAnswerVerifier) -> None:
        self.golds: list[str] = task.gold
        self._question: str = task.shown["question"]
        self._verify = verify
        self.tools = {"search": retriever.search}

    def verdict(self, answer: Any) -> Verdict:
        """The verifier's; an answer that is no string is none."""
        return self._verify(self._question, answer if isinstance(answer, str) else None, self.golds)

    def behaviours(self, episode: Episode) -> dict[str, bool]:
        """See `World.behaviours`: among them where the answer was lost (not retrieved, not shown, not extracted)."""
        searches = [call for call in episode.tool_calls if not call.error]
        golds = _golds(*self.golds)
        facts = {
            "format followed": format_followed(episode),
            "answered": isinstance(episode.answer, str),
            "searched": bool(searches),
            "answer retrieved": _stands(golds, [_words(p.text, p.title) for call in searches for p in call.result]),
            "answer shown": bool(searches) and _stands(golds, map(_words, _shown(episode, searches[0].after))),
            "cap hit": episode.truncated,
        }
        for place in ("retrieved", "shown"):
            if facts[f"answer {place}"]:
                facts[f"extracted given {place}"] = episode.solved
        return facts

    def solve(self) -> Any:
        """The first gold answer."""
        return self.golds[0]


def _shown(episode: Episode, found: int) -> set[str]:
    """What was put before the model once something was found, after model call number `found`, whoever is said to
    speak; not what it had seen before."""
    texts: set[str] = set()
    later: list[Message] = []
    for call in reversed(episode.calls[found:]):
        if later[: len(call.messages)] != call.messages:  # most asks are the beginning of the next one
            later = call.messages
            texts.update([m["content"] for m in later if m["role"] != "assistant"])
    return texts.difference([m["content"] for call in episode.calls[:found] for m in call.messages])


@functools.cache
def _bundled() -> tuple[Splits, LocalRetriever]:
    return _opened(SearchWorld(MINI_WORLD_SEED))


def _opened(world: SearchWorld) -> tuple[Splits, LocalRetriever]:
    return world.splits(), BM25Retriever.of(world.passages())


def _stands(golds: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether any of the golds stands in any of the texts; both as `_words` gives them, which has no line breaks."""
    found = "\n".join(texts)
    return any(gold in found for gold in golds)


@functools.lru_cache(maxsize=4096)  # a task comes back with each of its rollouts
def _golds(*golds: str) -> tuple[str, ...]:
    """The words of accepted answers, without those that normalise to nothing."""
    return tuple(words for gold in golds if (words := _words(gold)).strip())


def _words(text: str, title: str = "") -> str:
    """The normalised words of a text and its title, with a space at either end."""
    short = len(text) + len(title) <= MAX_KEPT
    return _kept_words(text, title) if short else _kept_words.__wrapped__(text, title)


@functools.lru_cache(maxsize=4096)  # the rollouts of a group find the same passages, and are shown the same
def _kept_words(text: str, title: str) -> str:
    return f" {normalise(f'{title} {text}')} "
