"""What the answers of a server to a replayed trace come to: hits by tier, times, and whether they are the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hicache_storage.cli import exit_codes
from hicache_storage.cli.output import counted, print_json, print_table
from hicache_storage.cli.replay.resend import Answer
from hicache_storage.engine_integration.replay import Trace

_TIERS = ("device", "host", "store")
_QUANTILES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1.0}
_SHOWN_NUMBERS = 10


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers of one server, in the order of the trace."""

    trace: Trace
    url: str
    model: str
    all: Sequence[Answer]

    @property
    def whole(self) -> list[Answer]:
        return [answer for answer in self.all if answer.failure is None]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts that were answered."""
        return sum(answer.prompt_tokens for answer in self.whole)

    @property
    def hit_tokens(self) -> dict[str, int]:
        """Tokens of those prompts that the server had: by tier, and all."""
        tiers = {tier: sum(answer.cached.get(tier, 0) for answer in self.whole) for tier in _TIERS}
        return tiers | {"all": sum(answer.cached_tokens for answer in self.whole)}

    @property
    def verdicts(self) -> dict[str, int]:
        """How many answers are the trace's own."""
        counts = Counter(answer.same for answer in self.whole)
        return {"same": counts[True], "different": counts[False], "not_compared": counts[None]}

    @property
    def different(self) -> list[int]:
        """Which requests, counted from 1, have another answer than in the trace."""
        return [number for number, answer in enumerate(self.all, 1) if answer.same is False]

    @property
    def failures(self) -> dict[str, int]:
        """How many requests have no whole answer, by reason."""
        return dict(Counter(answer.failure for answer in self.all if answer.failure is not None).most_common())

    @property
    def status(self) -> int:
        """The exit status that stands for them."""
        if self.different:
            return exit_codes.CORRUPT
        return exit_codes.UNREACHABLE if self.failures else exit_codes.DONE


def print_document(answers: Answers) -> None:
    """Write everything as JSON to stdout."""
    failed = sum(answers.failures.values())
    print_json(
        {
            "trace": str(answers.trace.path),
            "url": answers.url,
            "model": answers.model,
            "requests": len(answers.all),
            "requests_failed": failed,
            "failures": answers.failures,
            "prompt_tokens": answers.prompt_tokens,
            "hit_tokens": answers.hit_tokens,
            "hit_rate": answers.hit_tokens["all"] / answers.prompt_tokens if answers.prompt_tokens else None,
            "answers": answers.verdicts,
            "different": answers.different,
        }
        | {name: _quantiles(values) for name, values in _times(answers).items()}
    )


def print_report(answers: Answers) -> None:
    """Write the tables to stdout."""
    print(f"trace    {answers.trace.path.name}: {counted(len(answers.all), 'request')}")
    print(f"server   {answers.url}, model {answers.model}")
    print()
    hits, total = answers.hit_tokens, answers.prompt_tokens
    rows = [(f"{tier} hits", hits[tier]) for tier in (*_TIERS, "all")] + [("computed", total - hits["all"])]
    shares = [f"{100 * tokens / total:.2f}" if total else "-" for _, tokens in rows]
    print_table(
        ["prompts", "tokens", "%"],
        [[name, f"{tokens:,}", share] for (name, tokens), share in zip(rows, shares, strict=True)],
    )
    print()
    times = [
        [name.removesuffix("_s").replace("_", " "), *(f"{value:.3f}" for value in _quantiles(values).values())]
        for name, values in _times(answers).items()
        if values
    ]
    print_table(["seconds", *_QUANTILES], times)
    print()
    print_table(["answers", "requests"], [[name.replace("_", " "), count] for name, count in answers.verdicts.items()])
    if answers.different:
        shown = ", ".join(map(str, answers.different[:_SHOWN_NUMBERS]))
        print(f"\ndifferent: request {shown}{', ...' if len(answers.different) > _SHOWN_NUMBERS else ''} of the trace")
    if answers.failures:
        print()
        print_table(["failed because", "requests"], answers.failures.items())


def _times(answers: Answers) -> dict[str, list[float]]:
    return {
        "first_token_s": [answer.first_token_s for answer in answers.whole if answer.first_token_s is not None],
        "answer_s": [answer.total_s for answer in answers.whole],
        "late_s": [answer.late_s for answer in answers.all],
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return what so many of *values* are at most; nothing where there are none."""
    ranked = sorted(values)
    return {name: ranked[math.ceil(share * len(ranked)) - 1] for name, share in _QUANTILES.items() if ranked}
