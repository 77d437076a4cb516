"""Beam search: the translations of a batch of sentences, found step by step.

What happens to a sentence never depends on the others of its batch: each has its own hypotheses,
its own limit of length and its own end, and leaves the batch when it is done. (Sums of floating
point numbers do depend a little on the shapes of a batch, in the last digits, so that two
hypotheses whose scores agree to about six digits in float32 may change places.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from headcount.config import MAX_BEAM, MAX_LENGTH_PENALTY, SearchConfig
from headcount.errors import UserError
from headcount.model.transformer import Transformer

DEAD = -math.inf


class Hypothesis(NamedTuple):
    """A translation: its tokens without start and EOS, and its score (see `Search.score`).

    Tokens that the model's outputs always begin with (`first_tokens`) are among them.
    """

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Search:
    """How to search. The defaults are those of Vaswani et al. (2017): beam 4, penalty 0.6.

    A score is the log-probability of the tokens, EOS included, divided by a penalty for their
    number: `((5 + length) / 6) ** length_penalty` (Wu et al. 2016, "wu"), or
    `length ** length_penalty` ("length"; Hugging Face and Marian). An output may have at most
    `max_ratio * source + max_extra` tokens, where `source` counts the source's tokens with EOS;
    an unfinished output is cut off there, with `force_end` by an EOS as the last of these tokens
    that costs nothing (Hugging Face's forced end). With `early_stop` a sentence is done as soon as
    `beam` hypotheses are finished, even if others could score higher (CTranslate2). The tokens of
    `forbidden` are never chosen; with `renormalise` the others share their probability (as many
    MarianMT models want it).
    """

    beam: int = 4
    nbest: int = 1
    length_penalty: float = 0.6
    normalisation: Literal["wu", "length"] = "wu"
    max_ratio: float = 2.0
    max_extra: int = 10
    min_length: int = 0
    early_stop: bool = False
    force_end: bool = False
    forbidden: tuple[int, ...] = ()
    renormalise: bool = False

    @classmethod
    def of(cls, config: SearchConfig, **changes: Any) -> Search:
        """A run's own way to search, with the changes that are not None."""
        overrides = {name: value for name, value in changes.items() if value is not None}
        return cls(**(config.model_dump() | overrides))

    def __post_init__(self) -> None:
        if not 1 <= self.beam <= MAX_BEAM:
            raise UserError(
                f"A beam of {self.beam} is too {'small' if self.beam < 1 else 'wide'}.",
                f"Choose 1 (greedy) to {MAX_BEAM}.",
            )
        if not 1 <= self.nbest <= self.beam:
            raise UserError(
                f"{self.nbest} best translations are more than a beam of {self.beam} gives.",
                "Ask for at least one and at most as many as the beam is wide.",
            )
        if not 0 <= self.length_penalty <= MAX_LENGTH_PENALTY:
            what = "negative" if self.length_penalty < 0 else "too large"
            raise UserError(
                f"A length penalty of {self.length_penalty} is {what}.",
                f"Choose 0 to {MAX_LENGTH_PENALTY:g}.",
            )

    def score(self, log_probability: float, length: int) -> float:
        """The score of a hypothesis of `length` tokens."""
        base = (5 + length) / 6 if self.normalisation == "wu" else length
        return float(log_probability / base**self.length_penalty)

    def limit(self, source: int, positions: int) -> int:
        """The largest number of tokens, EOS included, for a source of this length."""
        return max(1, min(int(self.max_ratio * source) + self.max_extra, positions))


GREEDY = Search(beam=1)


@torch.inference_mode()
def beam_search(
    model: Transformer, source: Tensor, search: Search, *, start: int, eos: int
) -> list[list[Hypothesis]]:
    """The `search.nbest` best translations of each sentence of `source` `[batch, length]`.

    A step takes the `2 * beam` best continuations of a sentence's hypotheses. Those with EOS
    among the first `beam` are finished; the best `beam` without it continue. A sentence is done
    when `beam` hypotheses are finished and none of them scores worse than the best unfinished one,
    both scored at their present length. With beam 1 this is greedy search: it ends where EOS is the
    most probable. Probabilities are the model's own (see `Search.renormalise`); padding, the start
    token and `search.forbidden` are never chosen.
    """
    device = source.device
    memory, mask = model.encode(source)
    cache = model.start(memory, mask, search.beam)
    positions = model.config.max_positions
    lengths = (source != model.pad).sum(1).tolist()
    first = list(model.config.first_tokens)
    sentences = [_Sentence(search, eos, search.limit(n, positions), first) for n in lengths]
    banned = {model.target_pad, start, *search.forbidden} - {eos}
    forbidden = torch.tensor(sorted(banned), device=device)
    tokens = torch.full((len(sentences), search.beam), start, device=device)
    for token in first:  # costs nothing and is not chosen
        model.step(tokens, cache)
        tokens = torch.full_like(tokens, token)
    scores = memory.new_full(tokens.shape, DEAD, dtype=_exact(memory.dtype))
    scores[:, 0] = 0.0  # before the first step all hypotheses are the same, so only one is kept
    live = sentences
    while live:
        logits = model.logits(model.step(tokens, cache))  # [sentences, beam, vocabulary]
        totals = logits.log_softmax(-1, dtype=scores.dtype).index_fill_(2, forbidden, DEAD)
        if cache.steps <= search.min_length:
            totals[:, :, eos] = DEAD
        if search.renormalise:
            totals = totals.log_softmax(-1)
        totals += scores[:, :, None]
        best, indices = best_of_rows(totals.flatten(1), 2 * search.beam)
        for sentence, values, chosen in zip(live, best.tolist(), indices.tolist(), strict=True):
            sentence.advance(values, [divmod(place, totals.shape[2]) for place in chosen])
        going = [place for place, sentence in enumerate(live) if not sentence.done]
        if len(going) < len(live):
            live = [live[place] for place in going]
            if live:
                cache.keep_sentences(torch.tensor(going, device=device))
        if live:
            new_scores, last, parents = zip(*(s.rows() for s in live), strict=True)
            scores = torch.tensor(new_scores, dtype=scores.dtype, device=device)
            tokens, rows = torch.tensor([last, parents], device=device).unbind(0)
            cache.follow(rows)
    return [sentence.finished[: search.nbest] for sentence in sentences]


def best_of_rows(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row, `[rows, size]`, largest first, and their places.

    Gives `[rows, count]` each, or `[rows, size]` where a row has fewer. `Tensor.topk` alone is slow
    for a whole vocabulary on a CPU, so the row is folded and the maximum of each column is taken
    first: the best `count` are in the `count` columns with the largest maxima.
    """
    size = values.shape[1]
    count = min(count, size)
    columns = math.isqrt(count * size)  # about as many as there will be candidates
    depth, rest = divmod(size, columns)
    folded = values[:, : size - rest].unflatten(1, (depth, columns))
    chosen = folded.amax(1).topk(count, sorted=False).indices  # [rows, count]
    candidates = folded.gather(2, chosen[:, None].expand(-1, depth, -1)).flatten(1)
    if rest:  # the remainder that does not fill a row of columns competes directly
        candidates = torch.cat([candidates, values[:, size - rest :]], 1)
    best, indices = candidates.topk(count)  # [rows, count]
    places = indices // count * columns + chosen.gather(1, indices % count)
    if rest:
        beyond = indices - depth * count  # from 0 on: candidates of the rest
        places = torch.where(beyond < 0, places, beyond + size - rest)
    return best, places


class _Sentence:
    """One sentence during the search: its unfinished and its finished hypotheses."""

    def __init__(self, search: Search, eos: int, limit: int, first: list[int]) -> None:
        self.search, self.eos, self.limit = search, eos, max(limit, len(first) + 1)
        self.finished: list[Hypothesis] = []
        self.texts: list[list[int]] = [first]
        self.scores: list[float] = [0.0]
        self.parents: list[int] = [0]
        self.done = False

    def advance(self, scores: list[float], continuations: list[tuple[int, int]]) -> None:
        """Take the best continuations, (hypothesis, token) each, best first."""
        beam, eos = self.search.beam, self.eos
        before, length = self.texts, len(self.texts[0]) + 1
        last = length == self.limit
        if last and self.search.force_end:
            scores, continuations = self.scores, [(place, eos) for place in range(len(before))]
        self.texts, self.scores, self.parents = [], [], []
        ended = False
        for rank, (score, (parent, token)) in enumerate(zip(scores, continuations, strict=True)):
            if score == DEAD:
                break
            if rank < beam and (last or token == eos):
                text = before[parent] if token == eos else [*before[parent], token]
                self.finished.append(Hypothesis(text, self.search.score(score, length)))
                ended = True
            elif token != eos and len(self.texts) < beam:
                self.texts.append([*before[parent], token])
                self.scores.append(score)
                self.parents.append(parent)
        if ended:
            self.finished.sort(key=lambda hypothesis: -hypothesis.score)  # ties: the earlier first
            del self.finished[beam:]
        self.done = last or not self.texts or self._settled(length)

    def _settled(self, length: int) -> bool:
        """Whether a full beam is finished, and no unfinished hypothesis scores better."""
        if len(self.finished) < self.search.beam:
            return False
        if self.search.early_stop:
            return True
        return self.search.score(self.scores[0], length) <= self.finished[-1].score

    def rows(self) -> tuple[list[float], list[int], list[int]]:
        """Scores, last tokens and parents of the hypotheses, filled up to the beam by dead ones."""
        dead = self.search.beam - len(self.texts)
        tokens = [text[-1] for text in self.texts]
        if not dead:
            return self.scores, tokens, self.parents
        return (
            self.scores + [DEAD] * dead,
            tokens + [self.eos] * dead,
            self.parents + [0] * dead,
        )


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The type to add log-probabilities in: at least float32."""
    return torch.promote_types(dtype, torch.float32)
