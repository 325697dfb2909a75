"""Prompts for radix trees, and what a tree of prompts is as a subject. Standard library only: peers import it."""

from __future__ import annotations

import random
from abc import abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts(Workload):
    """Prompts of equal length in groups that share their first tokens. An object is the token ids of one.

    Attributes:
        objects: prompts, dealt out to the groups in turn.
        batch: pages per call of eviction.
        prompt_tokens, shared_tokens: length of a prompt, and of what its group shares; whole pages.
    """

    prompt_tokens: int
    shared_tokens: int
    groups: int

    @property
    def object_nbytes(self) -> int:
        return 4 * self.prompt_tokens

    def prompts(self) -> list[list[int]]:
        """Return the token ids of every prompt, the same for the same seed."""
        rng = random.Random(self.seed)
        vocabulary = range(1, 150_000)
        shared = [rng.choices(vocabulary, k=self.shared_tokens) for _ in range(self.groups)]
        tail = self.prompt_tokens - self.shared_tokens
        return [shared[number % self.groups] + rng.choices(vocabulary, k=tail) for number in range(self.objects)]


class Tree(Subject):
    """Inserts prompts, matches them all, and evicts them again.

    What is timed starts with the array of token ids that a request keeps: making a key of it counts.
    """

    page_cache = "in memory"
    workload_kind = Prompts

    def prepare(self, workload: Workload) -> None:
        assert isinstance(workload, Prompts)
        self._workload = workload
        self._prompts = [self._request(number, tokens) for number, tokens in enumerate(workload.prompts())]

    def run(self, operation: str) -> float:
        match operation:
            case "insert":
                self.wipe()
                return timed(lambda: [self._insert(request) for request in self._prompts])
            case "match":
                return timed(lambda: [self._match(request) for request in self._prompts])
        return timed(self._evict_all)

    def wrong_objects(self) -> int:
        """Return how many prompts are not matched in full."""
        whole = self._workload.prompt_tokens
        return sum(self._match(request) != whole for request in self._prompts)

    @abstractmethod
    def _request(self, number: int, tokens: list[int]) -> tuple[array[int], object]:
        """Return what a request keeps: its token ids, and ids of enough pages, unlike those of other requests."""

    @abstractmethod
    def _insert(self, request: tuple[array[int], object]) -> None:
        """Match a prompt and insert what is new of it, as an engine does for each request."""

    @abstractmethod
    def _match(self, request: tuple[array[int], object]) -> int:
        """Return how many tokens of the prompt are in the tree."""

    @abstractmethod
    def _evict_all(self) -> None:
        """Evict batch after batch of pages until nothing is left."""

    def release(self) -> None:
        self.wipe()
        self._prompts = []

    def write(self) -> float:
        return self.run("insert")

    def read(self) -> float:
        return self.run("match")

    def exists(self) -> float:
        raise NotImplementedError

    def clear_memory(self) -> None:
        """Nothing to clear: a tree moves no bytes."""

    def store_some(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        raise NotImplementedError
