"""How specialised encoder heads have become, cheaply enough to measure during training.

Heads specialise long after BLEU looks good. A few hundred held-out sentences are enough to see it:
shares of the left and right neighbour and of the token itself and, where the sentences are parsed,
the accuracy of the best head for each of the paper's relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headcount.bootstrap import divide
from headcount.data.cleaning import spread
from headcount.data.conllu import read_conllu
from headcount.data.tokenizer import Tokenizer
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from headcount.role import POSITIONAL, SYNTACTIC
from headcount.role.counting import SiteCounts, SiteHeads
from headcount.role.kind import RoleCounts, Setting
from headcount.role.parses import CACHE_FOLDER
from headcount.role.positional import THRESHOLD
from headcount.role.relations import PAPER_RELATIONS, RelativePositions
from headcount.role.sentences import Preparation, ReadySentence, SentenceBatch, batches_of

SENTENCES = 300
BATCH_TOKENS = 4000


@dataclass(frozen=True)
class Watched:
    """Sentences to watch heads on; with parses, also relations and where dependents stand."""

    sentences: Sequence[ReadySentence]
    relations: Sequence[str] = ()
    offsets: RelativePositions | None = None

    @classmethod
    def tokens(cls, sentences: Sequence[Sequence[int]]) -> Watched:
        """Sentences of token ids, EOS not among them."""
        rows = [
            ReadySentence(i, list(ids), None, []) for i, ids in enumerate(sentences) if len(ids)
        ]
        return cls(rows)

    @classmethod
    def parsed(
        cls, conllu: Path, tokenizer: Tokenizer, positions: int, limit: int = SENTENCES
    ) -> Watched:
        """Sentences of a CoNLL-U file with their parses, evenly spread."""
        preparation = Preparation(tokenizer, PAPER_RELATIONS, positions)
        parses = spread(list(read_conllu(conllu)), limit)
        ready = [preparation.ready(parse.text, parse) for parse in parses]
        rows = [sentence for sentence in ready if sentence is not None]
        return cls(rows, PAPER_RELATIONS, preparation.offsets)


def parses_beside(source: Path) -> Path | None:
    """Existing parses of a file: `dev.conllu` beside `dev.en`, or spaCy's cached ones."""
    beside = source.with_suffix(".conllu")
    if beside.is_file():
        return beside
    return min((source.parent / CACHE_FOLDER).glob(f"{source.name}.*.conllu"), default=None)


@torch.inference_mode()
def specialisation(
    model: Transformer, watched: Watched, tokenizer: Tokenizer, device: torch.device | str = "cpu"
) -> dict[str, float | int]:
    """The largest shares and accuracies over all encoder heads.

    share_left, share_own, share_right: share of queries whose argmax is at -1, 0 and +1
    nsubj_best, nsubj_baseline and so on: the better direction of each relation, with its baseline
    """
    heads = SiteHeads.of(model.heads, "enc")
    if not heads.heads or not watched.sentences:
        return {}
    longest = max(len(sentence.ids) for sentence in watched.sentences)
    setting = Setting(longest, relations=watched.relations, offsets=watched.offsets, device=device)
    counts = SiteCounts(heads, setting)
    for batches in batches_of(iter(watched.sentences), BATCH_TOKENS):
        for rows in batches:
            batch = SentenceBatch.of(rows, pad=tokenizer.pad, eos=tokenizer.eos, device=device)
            with record(model, {"weights"}, {"enc"}) as recording:
                model.encode(batch.source)
            counts.add(batch, {i: recording["enc", i, "weights"] for i in heads.layers})
    confidence = [value or 0.0 for value in counts.confidence.values()]
    shares = _scores(counts.roles[POSITIONAL.name])  # [heads, offsets]
    names = counts.roles[POSITIONAL.name].names
    left, own, right = (float(shares[:, names.index(name)].max()) for name in ("-1", "0", "+1"))
    line: dict[str, float | int] = {
        "confidence_mean": sum(confidence) / len(confidence),
        "confidence_max": max(confidence),
        "share_left": left,
        "share_own": own,
        "share_right": right,
        "positional_max": float(shares.max()),
        "positional_heads": int((shares.max(-1) >= THRESHOLD).sum()),
    }
    if SYNTACTIC.name in counts.roles:
        line |= _relations(counts.roles[SYNTACTIC.name])
    return {
        name: value if isinstance(value, int) else round(value, 4) for name, value in line.items()
    }


def _scores(counts: RoleCounts) -> np.ndarray:
    """Shares of all groups together, `[heads, names]`; 0 where nothing was counted."""
    hits, totals = counts.hits.sum(0).cpu().numpy(), counts.totals.sum(0).cpu().numpy()
    shares: np.ndarray = np.nan_to_num(divide(hits, totals[None]))
    return shares


def _relations(counts: RoleCounts) -> dict[str, float | int]:
    """The best accuracy for each relation that occurs, and its baseline."""
    line: dict[str, float | int] = {}
    best = _scores(counts).max(0)
    for name, accuracy, baseline in zip(counts.names, best, counts.baselines(), strict=True):
        relation = name.split(" ", 1)[0]
        if not np.isnan(baseline):
            line[f"{relation}_best"] = max(float(accuracy), line.get(f"{relation}_best", 0.0))
            line[f"{relation}_baseline"] = float(baseline)
    return line
