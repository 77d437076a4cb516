"""Figure 5: attention maps of the rare-words head, or of any head on any sentence (Sec. 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.data.words import MARK
from headcount.heads import Head
from headcount.role import RARE_WORDS
from headcount.role.rare_words import TWO_RAREST
from headcount.study.cases import Case, cases_of, first_seeds
from headcount.study.explorer import ModelAttention, SentenceAttention, read_explorer
from headcount.study.figures.drawing import (
    PAGE,
    Drawing,
    bare,
    panels_in_a_row,
    style,
)
from headcount.study.results import StudyModel, StudyResults
from headcount.study.tables import Cell

SHOWN = 3
LENGTHS = (8, 16)
LONGEST = 14
"""Characters of a token that are shown."""


@dataclass(frozen=True)
class AttentionMap:
    """One head on one sentence: `weights[query, key]`."""

    label: str
    head: Head
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: np.ndarray
    rarest: frozenset[int] = frozenset()


def rare_words_figure(results: StudyResults) -> Drawing | None:
    """Figure 5: the rare-words head of up to three settings."""
    samples = {data.model: data for data in read_explorer(results)}
    maps, names = [], []
    for case in first_seeds(cases_of(results))[:SHOWN]:
        data = samples.get(case.full.id)
        chosen = None if data is None else rare_words_head(case.full)
        if data is None or chosen is None or not data.sentences:
            continue
        maps.append(attention_map(case, data, chosen[0], sentence_to_show(data)))
        names.append(f"{case.label}: {chosen[0]}{'' if chosen[1] else ' (nearest to that role)'}")
    if not maps:
        return None
    return Drawing(
        "fig5-rare-words-head",
        "Figure 5",
        "Attention maps of the rare-words head. Rows look at columns; the two rarest tokens are"
        f" coloured. {'; '.join(names)}.",
        draw_maps(maps),
        _rows(maps),
        alt="Attention maps: " + "; ".join(names) + ".",
        phone=draw_maps(maps, phone=True),
    )


def rare_words_head(model: StudyModel) -> tuple[Head, bool] | None:
    """The rare-words head, of the first layer if one is there, else the head that comes nearest.

    Also tells whether it has that function.
    """
    if model.roles is None:
        return None
    heads = model.roles.heads
    scores = {head: roles.score(RARE_WORDS.name, TWO_RAREST) for head, roles in heads.items()}
    shares = {head: share for head, share in scores.items() if share is not None}
    named = [head for head in shares if heads[head].has(RARE_WORDS.name)]
    among = [h for h in named if h.layer == 0] or named or list(shares)
    if not among:
        return None
    best = max(among, key=lambda head: shares[head])
    return best, best in named


def sentence_to_show(data: ModelAttention) -> int:
    """The first readable sentence with a token far rarer than the others, or else the first."""
    low, high = LENGTHS
    fitting = [
        number
        for number, sentence in enumerate(data.sentences)
        if low <= len(sentence.tokens) <= high
        and max(map(len, sentence.tokens)) <= LONGEST
        and "<unk>" not in sentence.tokens
    ]
    for number in fitting:
        counts = sorted(data.sentences[number].counts or ())
        if len(counts) > 2 and counts[0] * 4 <= counts[2]:
            return number
    return fitting[0] if fitting else 0


def attention_map(case: Case, data: ModelAttention, head: Head, number: int) -> AttentionMap:
    """One head of a full model on one of the sampled sentences."""
    sentence = data.sentences[number]
    source, target = (tuple(map(plain, t)) for t in (sentence.tokens, sentence.target_tokens))
    queries = source if head.site == "enc" else target
    keys = target if head.site == "dec" else source
    weights = data.weights(number)[head]
    rarest = rarest_tokens(sentence) if head.site == "enc" else frozenset()
    return AttentionMap(case.label, head, queries, keys, weights, rarest)


def rarest_tokens(sentence: SentenceAttention, number: int = 2) -> frozenset[int]:
    """Indices of the tokens that are rarest in the training data."""
    counts = sentence.counts or ()
    order = sorted(range(len(counts)), key=lambda place: counts[place])
    return frozenset(order[:number])


def plain(token: str) -> str:
    """A token as a figure shows it: without the mark of a word start, EOS and START named."""
    named = {"</s>": "EOS", "<s>": "START"}
    text = named.get(token, token.removeprefix(MARK) or MARK)
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return text.replace("$", r"\$")  # else matplotlib would read mathematics


def draw_maps(maps: Sequence[AttentionMap], phone: bool = False) -> Figure:
    """Maps side by side; below each other for a phone."""
    with style():
        width = min(PAGE, 0.6 + 2.6 * len(maps))
        figure, panels = panels_in_a_row(len(maps), 2.7, width=width, phone=phone)
        for panel, shown in zip(panels, maps, strict=True):
            _draw(panel, shown)
    return figure


def _draw(axes: Axes, shown: AttentionMap) -> None:
    axes.imshow(shown.weights, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(shown.keys)), shown.keys, rotation=60, ha="left", fontsize=6)
    axes.set_yticks(range(len(shown.queries)), shown.queries, fontsize=6)
    axes.xaxis.tick_top()
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        for place, label in enumerate(labels):
            if place in shown.rarest:
                label.set_color("#b3590a")
                label.set_fontweight("bold")
    axes.set_xlabel(f"{shown.label}, {shown.head}", color="black")
    axes.grid(False)
    axes.set_xticks(np.arange(-0.5, len(shown.keys)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(shown.queries)), minor=True)
    axes.grid(which="minor", color="#eeeeee", lw=0.4)
    bare(axes)
    axes.tick_params(which="both", length=0)


def _rows(maps: Sequence[AttentionMap]) -> list[dict[str, Cell]]:
    return [
        {"setting": shown.label, "head": str(shown.head), "query": query, "key": key,
         "query_place": i, "key_place": j, "weight": round(float(shown.weights[i, j]), 4)}
        for shown in maps
        for i, query in enumerate(shown.queries)
        for j, key in enumerate(shown.keys)
    ]  # fmt: skip
