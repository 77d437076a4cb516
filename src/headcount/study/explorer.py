"""Attention of every head on some sentences, small enough for a web page.

A weight is kept in one byte. The weights of a sentence are one string of bytes: for each site,
layer and head in order, `queries x keys` row by row; deflated, then base64. A page draws from it
on demand, one sentence at a time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headcount.data.cleaning import spread
from headcount.data.fetch import sha256_of
from headcount.distribution import default_device
from headcount.errors import UserError
from headcount.files import inside, read_json, write_json
from headcount.heads import SITES, Head, HeadLayout
from headcount.progress import Progress, silent
from headcount.pruning.methods import GATES
from headcount.run import WEIGHTS, Run, load_run
from headcount.study.recipe import FULL, PRUNED
from headcount.study.results import EXPLORER, StudyModel, StudyResults

FORMAT = 1
SENTENCES = 100
MODELS = 12
WORDS = (5, 22)
"""Shorter sentences show little, longer ones do not fit on a screen."""
LONGEST = 60
SCALE = 255


@dataclass(frozen=True)
class SentenceAttention:
    """One sentence read and translated by one model.

    tokens: pieces of the source and EOS; counts: how often each occurs in the training data
    target_tokens: what the decoder reads, START and the translation's pieces
    packed: the weights, deflated, as base64
    """

    text: str
    tokens: tuple[str, ...]
    counts: tuple[int, ...] | None
    target_tokens: tuple[str, ...]
    translation: str
    packed: str

    def to_json(self) -> dict[str, Any]:
        """As the file and the page have it."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "counts": None if self.counts is None else list(self.counts),
            "target_tokens": list(self.target_tokens),
            "translation": self.translation,
            "weights": self.packed,
        }


@dataclass(frozen=True)
class ModelAttention:
    """The sentences of one model; `made_from` is a hash of its weights and of the sentences."""

    model: str
    layout: HeadLayout
    sentences: tuple[SentenceAttention, ...]
    made_from: str = ""

    def to_json(self) -> dict[str, Any]:
        """As the file has it."""
        return {
            "format": FORMAT,
            "model": self.model,
            "made_from": self.made_from,
            "heads": self.layout.to_json(),
            "sentences": [sentence.to_json() for sentence in self.sentences],
        }

    @classmethod
    def from_json(cls, stored: Any, where: str) -> ModelAttention:
        """Read what `to_json` gave."""
        try:
            if stored["format"] != FORMAT:
                raise ValueError(f"format {stored['format']}")
            sentences = tuple(_sentence(sentence) for sentence in stored["sentences"])
            layout = HeadLayout.from_json(stored["heads"], where)
            return cls(str(stored["model"]), layout, sentences, str(stored["made_from"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{where} is not attention data ({error!r}).", "Make it again."
            ) from error

    def weights(self, number: int) -> dict[Head, np.ndarray]:
        """The attention of every head on a sentence, `[queries, keys]`."""
        sentence = self.sentences[number]
        source, target = len(sentence.tokens), len(sentence.target_tokens)
        flat = np.frombuffer(zlib.decompress(base64.b64decode(sentence.packed)), dtype=np.uint8)
        weights, place = {}, 0
        for head in self.layout.heads():
            queries, keys = _shape(head.site, source, target)
            part = flat[place : place + queries * keys]
            weights[head] = part.reshape(queries, keys).astype(np.float32) / SCALE
            place += queries * keys
        return weights


def choose_sentences(lines: Iterable[str], count: int = SENTENCES) -> list[str]:
    """`count` different sentences of a readable length, evenly spread."""
    different = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    low, high = WORDS
    fitting = [line for line in different if low <= len(line.split()) <= high] or different
    return spread(fitting, count)


def sample_attention(
    run: Run,
    lines: Sequence[str],
    model: str = "",
    progress: Progress = silent,
) -> ModelAttention:
    """Attention of a run on sentences, with its own greedy translations on the target side.

    Sentences of more than `LONGEST` tokens, or of none, are left out.
    """
    from headcount.model.decoding import GREEDY
    from headcount.translation import translate_tokens

    pieces = [(line, run.source_tokenizer.pieces(line)) for line in lines]
    most = min(LONGEST, run.config.model.max_positions - 1)
    usable = [(line, own_pieces) for line, own_pieces in pieces if 0 < len(own_pieces) <= most]
    sources = [[piece.id for piece in own_pieces] for _, own_pieces in usable]
    targets = [best[0].tokens for best in translate_tokens(run, sources, GREEDY)]
    names = run.target_tokenizer.tokens()
    sentences = []
    for number, ((line, own_pieces), target) in enumerate(zip(usable, targets, strict=True)):
        target = target[:LONGEST]
        packed = pack(_weights(run, [piece.id for piece in own_pieces], target))
        sentences.append(
            SentenceAttention(
                text=line,
                tokens=(*(piece.text for piece in own_pieces), "</s>"),
                counts=_counts(run, [piece.id for piece in own_pieces]),
                target_tokens=("<s>", *(names[token] for token in target)),
                translation=run.target_tokenizer.decode(target),
                packed=packed,
            )
        )
        progress(f"Attention of {model}", number + 1, len(usable))
    return ModelAttention(model, run.model.heads, tuple(sentences))


def pack(weights: Sequence[np.ndarray]) -> str:
    """Arrays of weights in [0, 1], one after the other, in one byte each."""
    whole = [np.rint(np.clip(array, 0, 1) * SCALE).astype(np.uint8).tobytes() for array in weights]
    return base64.b64encode(zlib.compress(b"".join(whole), 9)).decode("ascii")


def write_explorer(
    results: StudyResults,
    lines: Mapping[str, Sequence[str]],
    progress: Progress = silent,
) -> list[Path]:
    """Sample the attention of a study's models; what is up to date stays as it is.

    `lines` are the sentences for each source language. Models of other languages, and models whose
    weights were left out when they were published, are not shown.
    """
    readers = [
        (model, sentences)
        for model in explored_models(results)
        if (sentences := lines.get(results.pair(model).source))
    ]
    loadable = [pair for pair in readers if (pair[0].folder / WEIGHTS).is_file()]
    if readers and not loadable:
        raise UserError(
            f"{results.out}: its models have no weights, so that their attention cannot be shown.",
            "Leave out --src: figures, tables and claims need none.",
        )
    paths = []
    for model, sentences in loadable:
        path = inside(results.out / EXPLORER, model.id, ".json")
        paths.append(path)
        made_from = _fingerprint(model.folder, sentences)
        if path.is_file() and read_json(path).get("made_from") == made_from:
            continue
        sampled = sample_attention(
            load_run(model.folder, default_device()), sentences, model.id, progress
        )
        stored = ModelAttention(model.id, sampled.layout, sampled.sentences, made_from)
        write_json(path, stored.to_json())
    return paths


def read_explorer(results: StudyResults) -> list[ModelAttention]:
    """The attention data of a study, where it exists, in the order of its models."""
    paths = [inside(results.out / EXPLORER, model.id, ".json") for model in results.models]
    return [
        ModelAttention.from_json(read_json(path), str(path)) for path in paths if path.is_file()
    ]


def explored_models(results: StudyResults, most: int = MODELS) -> list[StudyModel]:
    """Which models a page can hold: full ones, then learned prunings, then the rest."""

    def importance(model: StudyModel) -> int:
        if model.kind == FULL:
            return 0
        learned = model.kind == PRUNED and model.method == GATES and not model.is_control
        return 1 if learned else 2

    chosen = sorted(results.models, key=importance)[:most]
    return [model for model in results.models if model in chosen]


def fit(models: Sequence[ModelAttention], budget: int) -> list[ModelAttention]:
    """The same models with as many sentences as take up at most `budget` bytes in all.

    The first sentences of each model are kept, so that models that read the same sentences
    can still be compared.
    """
    longest = max((len(model.sentences) for model in models), default=0)
    kept, used = 0, 0
    for number in range(longest):
        used += sum(
            len(json.dumps(model.sentences[number].to_json()))
            for model in models
            if number < len(model.sentences)
        )
        if used > budget:
            break
        kept = number + 1
    return [
        ModelAttention(model.model, model.layout, model.sentences[:kept], model.made_from)
        for model in models
    ]


def _weights(run: Run, source: Sequence[int], target: Sequence[int]) -> list[np.ndarray]:
    """The weights of every head in order, `[queries, keys]` each, from one forward pass."""
    import torch

    from headcount.model.recording import record

    device = run.model.output_weight.device
    tokens = torch.tensor([[*source, run.source_tokenizer.eos]], device=device)
    prefix = torch.tensor([[run.target_tokenizer.start, *target]], device=device)
    with torch.inference_mode(), record(run.model, {"weights"}) as recording:
        memory, mask = run.model.encode(tokens)
        run.model.decode(prefix, memory, mask)
    matrices = []
    for site in SITES:
        for layer, indices in enumerate(run.model.heads.layers[site]):
            if indices:
                matrices += list(recording[site, layer, "weights"][0].float().cpu().numpy())
    return matrices


def _counts(run: Run, tokens: Sequence[int]) -> tuple[int, ...] | None:
    frequencies = run.source_frequencies
    return None if frequencies is None else tuple(int(frequencies[token]) for token in tokens)


def _shape(site: str, source: int, target: int) -> tuple[int, int]:
    """Queries and keys of a site's attention."""
    return {"enc": (source, source), "dec": (target, target), "cross": (target, source)}[site]


def _fingerprint(run: Path, lines: Sequence[str]) -> str:
    digest = hashlib.sha256(sha256_of(run / WEIGHTS).encode())
    digest.update("\n".join([str(FORMAT), *lines]).encode())
    return digest.hexdigest()


def _sentence(stored: dict[str, Any]) -> SentenceAttention:
    counts = stored["counts"]
    return SentenceAttention(
        text=str(stored["text"]),
        tokens=tuple(map(str, stored["tokens"])),
        counts=None if counts is None else tuple(map(int, counts)),
        target_tokens=tuple(map(str, stored["target_tokens"])),
        translation=str(stored["translation"]),
        packed=str(stored["weights"]),
    )
