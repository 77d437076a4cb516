"""Lines of text in, translations out, in the same order, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, overload

from headcount.data.batches import evaluation_batches, padded
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.model.decoding import Hypothesis, Search, beam_search
from headcount.progress import Progress, silent
from headcount.run import Run, open_run

# Padded source tokens and sentences in a batch: larger batches are no faster on a CPU, and each
# hypothesis needs memory for a vocabulary of scores.
BATCH_TOKENS = 2000
BATCH_SENTENCES = 64

# Lines read ahead, so that sentences of similar length can be translated together.
READ_AHEAD = 4000

STAGE = "Translating"


@dataclass(frozen=True)
class Translation:
    """A translation and its score: the log-probability over the length penalty."""

    text: str
    score: float


@overload
def translate(
    run: Run | Path | str,
    lines: str,
    *,
    beam: int | None = ...,
    length_penalty: float | None = ...,
    batch_tokens: int = ...,
) -> str: ...


@overload
def translate(
    run: Run | Path | str,
    lines: list[str] | tuple[str, ...],
    *,
    beam: int | None = ...,
    length_penalty: float | None = ...,
    batch_tokens: int = ...,
) -> list[str]: ...


def translate(
    run: Run | Path | str,
    lines: str | Sequence[str],
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> str | list[str]:
    """Translate text, one sentence per line, into exactly as many lines.

    lines         one sentence, which gives a string, or a list of them, which gives a list
    beam          hypotheses per sentence; 1 is greedy. Default: the run's own
    batch_tokens  source tokens translated at once; less takes less memory
    """
    run = open_run(run)
    search = Search.of(run.config.search, beam=beam, length_penalty=length_penalty)
    translations = translate_lines(run, sentence_list(lines), search, batch_tokens=batch_tokens)
    return translations[0] if isinstance(lines, str) else translations


def sentence_list(lines: Any) -> list[str]:
    """One sentence or several as a list; stops if they are anything else than text."""
    one = isinstance(lines, str) or not isinstance(lines, Iterable)
    sentences = [lines] if one else list(lines)
    for sentence in sentences:
        if not isinstance(sentence, str):
            raise UserError(
                f"{sentence!r} is not text.", "Give a sentence, or a list of sentences."
            )
    return sentences


def translate_lines(
    run: Run,
    lines: Iterable[str],
    search: Search | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress = silent,
) -> list[str]:
    """The best translation of every line."""
    total = len(lines) if isinstance(lines, Sized) else None
    stream = translate_stream(
        run, lines, search, batch_tokens=batch_tokens, total=total, progress=progress
    )
    return [translations[0].text for translations in stream]


def translate_stream(
    run: Run,
    lines: Iterable[str],
    search: Search | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
    read_ahead: int = READ_AHEAD,
    total: int | None = None,
    progress: Progress = silent,
) -> Iterator[list[Translation]]:
    """The `search.nbest` best translations of every line, in the order of the lines.

    Lines are read ahead and translated in the order of their lengths. A line without any token
    (empty, or only whitespace) gives empty translations. A line with more tokens than the model has
    positions is translated in parts. `total` is the number of lines, where it is known, for
    `progress`, which is told after every batch.
    """
    search = search or Search.of(run.config.search)
    remaining = iter(lines)
    before = 0

    def in_chunk(stage: str, parts: int, of: int | None) -> None:
        progress(stage, before + len(chunk) * parts // (of or 1), total)

    while chunk := list(islice(remaining, read_ahead)):
        yield from _translate_chunk(run, chunk, search, batch_tokens, in_chunk)
        before += len(chunk)
    progress(STAGE, before, total)  # the last lines may have been empty


def _translate_chunk(
    run: Run, lines: list[str], search: Search, batch_tokens: int, progress: Progress
) -> list[list[Translation]]:
    """Translate lines by length and put the translations in the order of the lines."""
    most = run.config.model.max_positions - 1  # EOS takes one
    parts = [split_tokens(run.source_tokenizer, line, most) for line in lines]
    owners = [line for line, tokens in enumerate(parts) for _ in tokens]
    tokens = [part for line in parts for part in line]
    hypotheses = translate_tokens(run, tokens, search, batch_tokens=batch_tokens, progress=progress)
    translated: list[list[list[Hypothesis]]] = [[] for _ in lines]
    for owner, best in zip(owners, hypotheses, strict=True):
        translated[owner].append(best)
    return [_joined(run, best, search.nbest) for best in translated]


def translate_tokens(
    run: Run,
    sources: Sequence[Sequence[int]],
    search: Search,
    *,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress = silent,
) -> list[list[Hypothesis]]:
    """The hypotheses of tokenised sentences (without EOS), in their order."""
    model, source, target = run.model, run.source_tokenizer, run.target_tokenizer
    device = model.output_weight.device
    best_of: list[list[Hypothesis]] = [[] for _ in sources]
    was_training = model.training
    model.eval()
    done = 0
    try:
        for indices in _batches([len(tokens) for tokens in sources], batch_tokens):
            rows = [[*sources[i], source.eos] for i in indices]
            batch = padded(rows, source.pad, device)
            hypotheses = beam_search(model, batch, search, start=target.start, eos=target.eos)
            for i, best in zip(indices, hypotheses, strict=True):
                best_of[i] = best
            done += len(indices)
            progress(STAGE, done, len(sources))
    finally:
        model.train(was_training)
    return best_of


def split_tokens(tokenizer: Tokenizer, line: str, most: int) -> list[list[int]]:
    """The tokens of a line in as few parts of at most `most` tokens as whole words allow."""
    tokens = tokenizer.encode(line)
    if len(tokens) <= most:
        return [tokens] if tokens else []
    parts: list[list[int]] = [[]]
    most -= len(tokenizer.before) + len(tokenizer.after)
    for word in line.split():
        tokens = tokenizer.inside(word)
        if len(parts[-1]) + len(tokens) > most and parts[-1]:
            parts.append([])
        while len(tokens) > most:  # one word longer than the model
            parts[-1:] = [tokens[:most], []]
            tokens = tokens[most:]
        parts[-1].extend(tokens)
    return [tokenizer.framed(part) for part in parts if part]


def _joined(run: Run, parts: list[list[Hypothesis]], nbest: int) -> list[Translation]:
    """The n-th best translation of a line from the n-th best of its parts."""
    if not parts:
        return [Translation("", 0.0)] * nbest
    joined = []
    for rank in range(nbest):
        # A part can have fewer hypotheses than asked for, where the vocabulary is tiny.
        chosen = [part[min(rank, len(part) - 1)] for part in parts]
        texts = [run.target_tokenizer.decode(hypothesis.tokens) for hypothesis in chosen]
        score = sum(hypothesis.score for hypothesis in chosen)
        joined.append(Translation(" ".join(filter(None, texts)), score))
    return joined


def _batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Sentence numbers by length, each batch within the budgets."""
    if not lengths:
        return
    for indices in evaluation_batches(lengths, batch_tokens):
        for first in range(0, len(indices), BATCH_SENTENCES):
            yield indices[first : first + BATCH_SENTENCES].tolist()
