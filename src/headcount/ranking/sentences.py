"""Sentences to rank heads on: read, tokenised, and left out where the model cannot use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headcount.data.splitting import spread
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import read_lines
from headcount.run import Run

Lines = Path | str | Sequence[str]

REASONS = {
    "empty": "without a token",
    "too_long": "longer than the model's positions",
    "unknown": "of unknown tokens only",
}


@dataclass(frozen=True)
class Sentences:
    """Usable sentences as token ids without EOS, their references, and how many were left out."""

    sources: list[list[int]]
    references: list[list[int]] | None
    reference_lines: list[str] | None
    skipped: dict[str, int]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> list[int]:
        """Source tokens of each sentence, EOS not counted."""
        return [len(tokens) for tokens in self.sources]


def load_sentences(
    run: Run, source: Lines, reference: Lines | None = None, limit: int | None = None
) -> Sentences:
    """Read sentences (a file with one per line, or a list) and leave out what cannot be used.

    `limit` takes that many of the lines that are not empty, evenly spread.
    """
    lines = _lines(source, "Give source sentences, one per line.")
    targets = None if reference is None else _lines(reference, "Give references, one per line.")
    if targets is not None and len(targets) != len(lines):
        raise UserError(
            f"{len(lines)} source sentences, but {len(targets)} references.",
            "Both must have the same number of lines.",
        )
    if limit is not None:
        if limit < 1:
            raise UserError(f"{limit} sentences are too few.", "Ask for at least one.")
        chosen = spread([i for i, line in enumerate(lines) if line.strip()], limit)
        lines = [lines[i] for i in chosen]
        targets = None if targets is None else [targets[i] for i in chosen]
    return _usable(run, lines, targets)


def _usable(run: Run, lines: list[str], targets: list[str] | None) -> Sentences:
    longest = run.config.model.max_positions - 1  # EOS, or START, takes one
    sources = run.source_tokenizer.encode_batch(lines)
    references = None if targets is None else run.target_tokenizer.encode_batch(targets)
    skipped: Counter[str] = Counter()
    kept = []
    for i, tokens in enumerate(sources):
        target = [] if references is None else references[i]
        if not tokens or (references is not None and not target):
            skipped["empty"] += 1
        elif max(len(tokens), len(target)) > longest:
            skipped["too_long"] += 1
        elif _nothing_known(run.source_tokenizer, tokens):
            skipped["unknown"] += 1
        else:
            kept.append(i)
    if not kept:
        counts = ", ".join(f"{skipped[key]} {REASONS[key]}" for key in REASONS if skipped[key])
        raise UserError(
            f"None of the {len(lines)} sentences can be used ({counts}).",
            "Give sentences in the language that the model translates from.",
        )
    return Sentences(
        [sources[i] for i in kept],
        None if references is None else [references[i] for i in kept],
        None if targets is None else [targets[i] for i in kept],
        {key: skipped[key] for key in REASONS},
    )


def _nothing_known(tokenizer: Tokenizer, tokens: list[int]) -> bool:
    """Whether there is nothing but unknown tokens and marks of word starts."""
    return tokenizer.unk in tokens and not tokenizer.decode(tokens)


def _lines(source: Lines, remedy: str) -> list[str]:
    if not isinstance(source, str | Path):
        lines, name = list(source), "The list of sentences"
    else:
        lines, name = list(read_lines(Path(source))), str(source)
    if not lines:
        raise UserError(f"{name} is empty.", remedy)
    return lines
