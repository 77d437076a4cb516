"""Answers to the page's questions about models, as JSON values."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headcount.data.words import MARK
from headcount.errors import UserError
from headcount.heads import SITE_NAMES, SITES
from headcount.loaded.model import Model, Reading
from headcount.role import ROLES
from headcount.role.result import ROLES as ROLES_FILE
from headcount.role.result import Roles
from headcount.study.explorer import pack
from headcount.study.figures.drawing import OTHER, OTHER_COLOUR

CHARACTERS = 600
TOKENS = 60
"""The longest text that fits on a screen."""
KEPT = 64
"""How many translations are cached, so that one search serves all questions about it."""

EXAMPLES = {
    "en": (
        "She reads the letter.",
        "The old woman reads a book in the garden.",
        "We don't know where your brother lives.",
        "The tall man quickly opened the small door.",
        "I would like to know why he did not come.",
    )
}


class Answers:
    """The models that were named at the start, and their answers about sentences."""

    def __init__(self, models: Mapping[str, Model], sentences: Sequence[str] = ()) -> None:
        self.models = dict(models)
        first = next(iter(self.models.values()))
        self.sentences = list(sentences) or _examples(first)
        self.read: OrderedDict[tuple[str, str, tuple[str, ...]], Reading] = OrderedDict()

    def about(self) -> dict[str, Any]:
        """Everything that does not depend on a sentence."""
        return {
            "sites": {site: SITE_NAMES[site] for site in SITES},
            "colours": {kind: role.colour for kind, role in ROLES.items()} | {OTHER: OTHER_COLOUR},
            "other": OTHER,
            "models": [_about(name, model) for name, model in self.models.items()],
            "sentences": self.sentences,
            "limits": {"characters": CHARACTERS, "tokens": TOKENS},
        }

    def answer(self, kind: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; bad input is a `UserError`."""
        name, text, off = asked.get("model"), asked.get("text"), asked.get("off", [])
        if name not in self.models:
            raise UnknownRun(name)
        if not isinstance(text, str) or not isinstance(off, list):
            raise UserError("The request is not complete.", "Reload the page.")
        model = self.models[name]
        if len(off) > len(model.heads) or not all(isinstance(head, str) for head in off):
            raise UserError("Too many heads are switched off.", "Reload the page.")
        reading = self._reading(name, model, text, sorted(off))
        return {"text": text, "off": off, **_KINDS[kind](model, reading, off)}

    def _reading(self, name: str, model: Model, text: str, off: list[str]) -> Reading:
        if len(text) > CHARACTERS:
            raise UserError(
                f"The text has {len(text)} characters, this page takes {CHARACTERS}.", "Shorten it."
            )
        key = (name, text, tuple(off))
        if key in self.read:
            self.read.move_to_end(key)
            return self.read[key]
        tokens = len(model.source_tokenizer.encode(text))
        if tokens > TOKENS:
            raise UserError(
                f"The text has {tokens} tokens, this page takes {TOKENS}.", "Shorten it."
            )
        self.read[key] = model.read(text, off=off)
        if len(self.read) > KEPT:
            self.read.popitem(last=False)
        return self.read[key]


def _examples(model: Model) -> list[str]:
    """Sentences to begin with; an encoder that fills masks gets one to fill."""
    language, mask = model.config.data.source, model.source_tokenizer.mask
    if model.config.model.decoder_layers:
        return list(EXAMPLES.get(language, ()))
    examples = EXAMPLES.get(language, EXAMPLES["en"])  # imported encoders do not say theirs
    if mask is None or not model.config.model.output_network:
        return list(examples)
    name = model.source_tokenizer.tokens()[mask]
    return [example.replace(" book", f" {name}") for example in examples]


class UnknownRun(Exception):
    """A run that was not named when the server was started."""

    def __init__(self, name: object) -> None:
        super().__init__(f"There is no run {str(name)[:60]!r} here.")


def _about(name: str, model: Model) -> dict[str, Any]:
    table = model.head_table()
    numbers: dict[str, dict[str, float]] = {}
    for column, values in table.columns.items():
        cells = {str(head): value for head, value in values.items() if _is_number(value)}
        if cells:
            numbers[column] = {head: float(f"{float(v):.4g}") for head, v in cells.items()}
    layers = model.model.heads.layers
    data = model.config.data
    return {
        "name": name,
        "languages": [data.source, data.target],
        "translates": bool(model.config.model.decoder_layers),
        "predicts": model.config.model.predicts,
        "layers": {site: [list(indices) for indices in layers.get(site, ())] for site in SITES},
        "columns": numbers,
        "roles": _roles(model),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _roles(model: Model) -> dict[str, list[dict[str, str]]]:
    """The roles of every head that has any, if `headcount roles` has been run."""
    path = model.analysis / ROLES_FILE
    if not path.is_file():
        return {}
    named = Roles.load(path)
    roles = {str(head): named.of(head) for head in model.heads}
    return {
        head: [{"kind": role.kind, "name": str(role)} for role in own]
        for head, own in roles.items()
        if own
    }


def translation(model: Model, reading: Reading, off: list[str]) -> dict[str, Any]:
    """The translation with the log-probability of every token.

    An encoder alone has its most probable tokens or its class instead, if it predicts anything.
    """
    if not model.config.model.predicts:
        nothing: dict[str, Any] = {"tokens": [], "log_probabilities": [], "log_probability": 0.0}
        return {"translation": "", **nothing}
    tokens, logs = model.log_probabilities(reading, off=off)
    marked = _marked(model, tokens)
    if not model.config.model.decoder_layers:  # predictions of single positions are no words
        marked = [f"{MARK}{token.removeprefix(MARK)}" for token in marked]
    return {
        "translation": reading.translation or " ".join(tokens),
        "tokens": marked,
        "log_probabilities": _rounded(logs),
        "log_probability": round(float(logs.sum()), 4),
    }


def attention(model: Model, reading: Reading, off: list[str]) -> dict[str, Any]:
    """The attention of every head, packed as in the report's explorer, and confidence."""
    result = model.attention(reading, off=off)
    return {
        "tokens": _marked(model, result.source_tokens),
        "target_tokens": _marked(model, result.target_tokens),
        "weights": pack([result[head] for head in result.heads]),
        "confidence": {str(head): round(c, 4) for head, c in result.confidence().items()},
    }


def relevance(model: Model, reading: Reading, off: list[str]) -> dict[str, Any]:
    """Where every step comes from: source tokens, prefix tokens, heads."""
    result = model.relevance(reading, off=off)
    return {
        "tokens": _marked(model, result.source_tokens),
        "target_tokens": _marked(model, result.target_tokens),
        "steps": _marked(model, result.steps),
        "predicted": _marked(model, result.predicted),
        "source": [_rounded(row) for row in result.source],
        "target": [_rounded(row) for row in result.target],
        "contribution": _rounded(result.source_contribution),
        "heads": {str(head): round(v, 4) for head, v in result.heads["lrp"].items()},
        "by_step": {str(head): _rounded(shares) for head, shares in result.by_step.items()},
    }


def _marked(model: Model, tokens: Sequence[str]) -> list[str]:
    """Tokens with the mark of word starts that the page knows, whatever their vocabulary uses.

    WordPiece (BERT) marks what continues a word, byte-level BPE (RoBERTa, BART) spaces.
    """
    content = model.source_tokenizer.content
    if content["model"]["type"] != "WordPiece":
        return [f"{MARK}{t[1:]}" if t.startswith("Ġ") else t for t in tokens]
    special = {token["content"] for token in content["added_tokens"]}
    return [
        t.removeprefix("##") if t.startswith("##") or t in special else f"{MARK}{t}" for t in tokens
    ]


def _rounded(values: np.ndarray) -> list[float | None]:
    return [round(float(v), 4) if math.isfinite(v) else None for v in values]


_KINDS: dict[str, Callable[[Model, Reading, list[str]], dict[str, Any]]] = {
    "translation": translation,
    "attention": attention,
    "relevance": relevance,
}
KINDS = tuple(_KINDS)
