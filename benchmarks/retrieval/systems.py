"""The systems that are compared, each used as its own documentation has it, with the same tokens where it lets one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import bm25s

from whale_envs.data.corpus import read_corpus
from whale_envs.tools.retrieval import BM25Retriever, ReferenceRetriever
from whale_envs.tools.retrieval_build import build_index
from whale_envs.tools.retrieval_tokens import passage_tokens, tokens


class System(ABC):
    """A system: built from a corpus into a folder, opened from it, asked."""

    name: ClassVar[str]
    #: The name of the system whose build it opens.
    built_by: ClassVar[str] = ""

    @staticmethod
    @abstractmethod
    def build(corpus: Path, folder: Path) -> None:
        """Index the corpus file into the folder."""

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """Open what was built."""

    @abstractmethod
    def ask(self, queries: Sequence[str], k: int, threads: int = 1) -> Any:
        """The best k for each query, from its text."""


class Ours(System):
    """`whale_envs.tools.retrieval`, memory-mapped; rows and scores, as the others give them."""

    name = "whale"

    @staticmethod
    def build(corpus: Path, folder: Path) -> None:
        """See `System`."""
        build_index(corpus, folder)

    def __init__(self, folder: Path) -> None:
        self.retriever = BM25Retriever.open(folder)

    def ask(self, queries: Sequence[str], k: int, threads: int = 1) -> Any:
        """See `System`."""
        return self.retriever.rank([tokens(q) for q in queries], k, threads)


class OursWithPassages(Ours):
    """The same as an env has it: with each passage's title and text, read from the mapped file."""

    name, built_by = "whale with passages", Ours.name

    def ask(self, queries: Sequence[str], k: int, threads: int = 1) -> Any:
        """See `System`."""
        return self.retriever.search_batch(queries, k, threads)


class Bm25s(System):
    """bm25s used directly: its numba backend, held in memory."""

    name = "bm25s"

    @staticmethod
    def build(corpus: Path, folder: Path) -> None:
        """See `System`."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        ids = [[numbers[t] for t in passage_tokens(p)] for p in read_corpus(corpus)]
        index = bm25s.BM25(backend="numba")
        index.index((ids, dict(numbers)), show_progress=False)
        rows = ({"id": p.id, "title": p.title, "text": p.text} for p in read_corpus(corpus))
        index.save(folder, corpus=rows, show_progress=False)

    def __init__(self, folder: Path, mmap: bool = False, load_corpus: bool = False) -> None:
        self.index = bm25s.BM25.load(folder, mmap=mmap, load_corpus=load_corpus, show_progress=False)

    def ask(self, queries: Sequence[str], k: int, threads: int = 1) -> Any:
        """See `System`."""
        asked = [tokens(q) for q in queries]
        return self.index.retrieve(asked, k=k, show_progress=False, n_threads=0 if threads == 1 else threads)


class MappedBm25s(Bm25s):
    """bm25s used directly, memory-mapped."""

    name, built_by = "bm25s mapped", Bm25s.name

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, mmap=True)


class Bm25sWithPassages(Bm25s):
    """bm25s used directly, with the passages too, all in memory."""

    name, built_by = "bm25s with passages", Bm25s.name

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, load_corpus=True)


class Tantivy(System):
    """tantivy with its default tokeniser; it has no batches."""

    name = "tantivy"

    @staticmethod
    def build(corpus: Path, folder: Path) -> None:
        """See `System`."""
        import tantivy

        folder.mkdir(parents=True, exist_ok=True)
        schema = tantivy.SchemaBuilder().add_text_field("id", stored=True, tokenizer_name="raw")
        index = tantivy.Index(schema.add_text_field("text").build(), path=str(folder))
        writer = index.writer(heap_size=512_000_000, num_threads=1)
        for passage in read_corpus(corpus):
            writer.add_document(tantivy.Document(id=passage.id, text=f"{passage.title} {passage.text}"))
        writer.commit()
        writer.wait_merging_threads()

    def __init__(self, folder: Path) -> None:
        import tantivy

        self.index = tantivy.Index.open(str(folder))
        self.searcher = self.index.searcher()

    def ask(self, queries: Sequence[str], k: int, threads: int = 1) -> Any:
        """See `System`."""
        return [self.searcher.search(self.index.parse_query(" ".join(tokens(q)), ["text"]), k).hits for q in queries]


class RankBm25(System):
    """rank_bm25, which knows no files: it is built when it is opened."""

    name = "rank_bm25"

    @staticmethod
    def build(corpus: Path, folder: Path) -> None:
        """See `System`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "corpus").symlink_to(corpus.resolve())

    def __init__(self, folder: Path) -> None:
        self.retriever = ReferenceRetriever(list(read_corpus((folder / "corpus").resolve())))

    def ask(self, queries: Sequence[str], k: int, threads: int = 1) -> Any:
        """See `System`."""
        return self.retriever.rank([tokens(q) for q in queries], k)
