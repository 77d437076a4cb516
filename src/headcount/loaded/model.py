"""A run that answers questions about single sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cached_property
from typing import overload

import numpy as np
import torch
from torch import Tensor

from headcount.data.batches import padded
from headcount.errors import UserError
from headcount.heads import ALL_SITES, SITES, Head, HeadTable
from headcount.loaded.attention import Attention
from headcount.loaded.relevance import Relevance
from headcount.model.decoding import Search
from headcount.model.gating import masked
from headcount.model.recording import Edit, Recording, edit_places, record, record_places
from headcount.ranking.lrp.audit import audit_rows
from headcount.ranking.lrp.propagate import Propagation
from headcount.ranking.lrp.relevance import layer_shares
from headcount.ranking.lrp.rules import LrpOptions
from headcount.registry import name_list
from headcount.run import Run
from headcount.translation import sentence_list, translate_lines, translate_tokens

Heads = str | Head | Iterable[str | Head]


def find_heads(wanted: Heads, heads: Sequence[Head]) -> list[Head]:
    """The heads of a model that are meant.

    A head is written `enc.4.1`; several as a list or with commas; `enc.4.*` or `enc.4` is a whole
    layer, `cross` a whole site.
    """
    if isinstance(wanted, str | Head):
        wanted = [wanted]
    chosen: list[Head] = []
    for item in wanted:
        for name in [str(item)] if isinstance(item, Head) else name_list(item):
            chosen += _matching(name, heads)
    return list(dict.fromkeys(chosen))


def _matching(name: str, heads: Sequence[Head]) -> list[Head]:
    pattern = name.split(".")
    pattern += ["*"] * (3 - len(pattern))
    if len(pattern) == 3:
        # Patterns of sites mean attention: units and blocks have to be named.
        heads = [head for head in heads if head.site in SITES or head.site == pattern[0]]
        matching = [head for head in heads if all(map(fnmatchcase, str(head).split("."), pattern))]
        if matching:
            return matching
    near = difflib.get_close_matches(name, [str(head) for head in heads], n=1)
    hint = f"Did you mean {near[0]}?" if near else "Write it as site.layer.index: enc.0.3."
    raise UserError(f"The model has no head {name}.", hint)


LRP = LrpOptions()


@dataclass(frozen=True)
class Reading:
    """A sentence and the translation that the decoder reads, as tokens without START and EOS."""

    text: str
    translation: str
    source: list[int]
    target: list[int]


class Model(Run):
    """A loaded run: it can be passed wherever a run can, and answers questions about sentences.

    Gates and edits act on the model itself, so do not use it from two threads at once.
    """

    @classmethod
    def of(cls, run: Run) -> Model:
        """The same run, as a model."""
        return cls(**{field.name: getattr(run, field.name) for field in fields(Run)})

    def __repr__(self) -> str:
        data, heads = self.config.data, self.model.heads
        counts = " + ".join(f"{heads.count(site)} {site}" for site in SITES if heads.count(site))
        return f"<headcount model {self.folder.name}: {data.source}-{data.target}, heads: {counts}>"

    @property
    def heads(self) -> list[Head]:
        """Every head that the model has."""
        return self.model.head_list()

    @overload
    def translate(
        self,
        text: str,
        *,
        off: Heads = ...,
        beam: int | None = ...,
        length_penalty: float | None = ...,
    ) -> str: ...

    @overload
    def translate(
        self,
        text: list[str] | tuple[str, ...],
        *,
        off: Heads = ...,
        beam: int | None = ...,
        length_penalty: float | None = ...,
    ) -> list[str]: ...

    def translate(
        self,
        text: str | Sequence[str],
        *,
        off: Heads = (),
        beam: int | None = None,
        length_penalty: float | None = None,
    ) -> str | list[str]:
        """Translate a text, or each of a list of texts.

        off   heads to do without: "enc.4.1", a list of them, or a whole layer, "enc.4"
        beam  hypotheses per sentence; 1 is greedy. Default: the run's own

        Inside `record`, what is recorded is one pass over the texts and their translations.
        """
        search = Search.of(self.config.search, beam=beam, length_penalty=length_penalty)
        texts = sentence_list(text)
        if isinstance(text, str):
            self._source(text, whole=False)
        with self.heads_off(off):
            with self._unrecorded() as recording:
                translations = translate_lines(self, texts, search)
            if recording is not None and texts:
                self._pass([self._read(t, own) for t, own in zip(texts, translations, strict=True)])
        return translations[0] if isinstance(text, str) else translations

    def read(
        self, text: str, target: str | None = None, *, off: Heads = (), beam: int | None = None
    ) -> Reading:
        """A sentence with the translation that the decoder reads, for several questions about it.

        target  what the decoder reads; without it, the model's own translation
        off     heads to do without, as in `translate`
        beam    for the own translation
        """
        with self.heads_off(off):
            return self._read(text, target, beam)

    def attention(
        self,
        text: str | Reading,
        target: str | None = None,
        *,
        off: Heads = (),
        beam: int | None = None,
    ) -> Attention:
        """What every head looks at in a sentence.

        target  what the decoder reads; without it, the model's own translation
        off     heads to do without, as in `translate`
        beam    for the own translation
        """
        with self.heads_off(off):
            reading = self._read(text, target, beam)
            with record(self.model, {"weights"}) as recording:
                self._pass([reading])
        weights = {
            Head(site, layer, index): matrix
            for (site, layer), attention in self.model.attentions().items()
            if attention.heads
            for index, matrix in zip(
                attention.heads, _numpy(recording[site, layer, "weights"][0]), strict=True
            )
        }
        tokens = self._tokens(reading)
        ordered = {head: weights[head] for head in self.heads}
        return Attention(reading.text, reading.translation, *tokens, ordered, self)

    def relevance(
        self,
        text: str | Reading,
        target: str | None = None,
        *,
        off: Heads = (),
        beam: int | None = None,
        rule: str = LRP.rule,
        layer_norm: str = LRP.layer_norm,
        bias: str = LRP.bias,
        attention: str = LRP.attention,
        normalise: str = LRP.normalise,
        epsilon: float = LRP.epsilon,
    ) -> Relevance:
        """Where every step of a sentence's translation comes from, by LRP (App. A).

        target  what the decoder reads; without it, the model's own translation
        off     heads to do without, as in `translate`
        beam    for the own translation

        An encoder alone predicts a token at every position of the text as it stands (write its
        mask, such as `[MASK]`, to hide one), or one class: these are its steps.

        The rest is how relevance is propagated, with the defaults of `headcount rank`; see
        `LrpOptions`.
        """
        options = LrpOptions(rule, layer_norm, bias, attention, normalise, epsilon)
        with self.heads_off(off):
            reading = self._read(text, target, beam)
            propagation = Propagation(self.model, options)
            recording = propagation.record(*self._batch([reading]))
            alone = not self.model.config.decoder_layers
            states = recording["out" if alone else "dec_out", 0, "result"][0]
            steps = len(states)
            positions = torch.arange(steps, device=states.device)[None] if alone else None
            propagated = propagation.propagate(recording, [steps], tokens=True, positions=positions)
            predicted = self.model.logits(states).argmax(-1).tolist()
        shares: dict[Head, np.ndarray] = {}
        for (site, layer), relevance in propagated.heads.items():
            values, usable = layer_shares(relevance[0].double(), options.normalise)
            values = values.masked_fill(~usable[:, None], torch.nan)  # [steps, heads]
            for place, index in enumerate(self.model.heads.layers[site][layer]):
                shares[Head(site, layer, index)] = _numpy(values[:, place])
        table = HeadTable(self.heads)
        means = {h: float(np.nanmean(v)) for h, v in shares.items() if not np.isnan(v).all()}
        table.add("lrp", means)
        assert propagated.tokens is not None
        audit = propagated.audit
        source_tokens, target_tokens = self._tokens(reading)
        names = self._output_names
        if alone:
            target_tokens, written = [], source_tokens[:steps]
        else:
            written = [*target_tokens[1:], names[self.target_tokenizer.eos]]
        return Relevance(
            text=reading.text,
            translation=reading.translation,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            steps=written,
            predicted=[names[token] for token in predicted],
            source=_numpy(propagated.tokens.source[0]),
            target=_numpy(propagated.tokens.prefix[0]),
            heads=table,
            by_step={head: shares[head] for head in self.heads},
            audit=audit_rows(audit.names, audit.table(), audit.steps),
        )

    def log_probabilities(
        self,
        text: str | Reading,
        target: str | None = None,
        *,
        off: Heads = (),
        beam: int | None = None,
    ) -> tuple[list[str], np.ndarray]:
        """The tokens of a translation with its EOS, and the log-probability of each, `[steps]`.

        target  the translation; without it, the model's own
        off     heads to do without, as in `translate`

        Of an encoder alone: the most probable token at every position, or the class.
        """
        with self.heads_off(off), torch.inference_mode():
            reading = self._read(text, target, beam)
            logits = self.model.logits(self._pass([reading])[0])  # [steps, vocabulary]
        tokens = [*reading.target, self.target_tokenizer.eos]
        if not self.model.config.decoder_layers:
            tokens = logits.argmax(-1).tolist()
        chosen = torch.tensor(tokens, device=logits.device)
        logs = logits.float().log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        return [self._output_names[token] for token in tokens], _numpy(logs)

    def heads_off(self, *heads: Heads) -> AbstractContextManager[None]:
        """Everything inside runs without these heads: `with model.heads_off("enc.4.1"): ...`

        Blocks of units (`enc_ff.2.5`) and whole blocks (`enc_layers.2.0`) are switched off too.
        """
        every = self.model.head_list(ALL_SITES)
        closed = [head for wanted in heads for head in find_heads(wanted, every)]
        return masked(self.model, closed)

    def record(self, *names: str) -> AbstractContextManager[Recording]:
        """Record activations by name: `with model.record("enc.*.weights") as tape: ...`

        `tape["enc.0.weights"]` is then what the last pass left there. docs/python.md lists names.
        """
        return record_places(self.model, names)

    def edit(self, name: str | Iterable[str], function: Edit) -> AbstractContextManager[None]:
        """Put activations through a function: `with model.edit("enc.2.output", f): ...`

        `function` gets the tensor and returns one of the same shape (or None: nothing changes).
        """
        return edit_places(self.model, name, function)

    def _read(
        self, text: str | Reading, target: str | None = None, beam: int | None = None
    ) -> Reading:
        if isinstance(text, Reading):
            return text
        if not self.model.config.decoder_layers and target is None:
            return Reading(text, "", self._source(text), [])  # an encoder alone writes nothing
        source = self._source(text)
        ids = self.target_tokenizer
        if target is not None:
            tokens = ids.encode(target)
            self._fits(target, len(tokens))
            return Reading(text, target, source, tokens)
        search = Search.of(self.config.search, beam=beam, nbest=1)
        with self._unrecorded():
            best = translate_tokens(self, [source], search)[0][0].tokens
        # A translation that was cut off has no EOS: its last token is predicted, but not read.
        limit = search.limit(len(source) + 1, self.model.config.max_positions)
        return Reading(text, ids.decode(best), source, best[: limit - 1])

    def _source(self, text: str, whole: bool = True) -> list[int]:
        if not isinstance(text, str):
            raise UserError(f"{text!r} is not a text.", "Give one sentence as a string.")
        tokens = self.source_tokenizer.encode(text)
        if not tokens or not text.strip():
            raise UserError("The text is empty.", "Give a sentence.")
        if whole:
            self._fits(text, len(tokens))
        return tokens

    def _fits(self, text: str, tokens: int) -> None:
        most = self.model.config.max_positions - 1  # EOS, or START, takes one
        if tokens > most:
            start = text if len(text) <= 30 else f"{text[:30]}..."
            raise UserError(
                f"'{start}' has {tokens} tokens, the model takes at most {most}.",
                "Give a shorter text.",
            )

    def _batch(self, readings: Sequence[Reading]) -> tuple[Tensor, Tensor]:
        """Source tokens `[batch, source]` and what the decoder reads, `[batch, target]`."""
        device = self.model.output_weight.device
        source, target = self.source_tokenizer, self.target_tokenizer
        rows = [[*reading.source, source.eos] for reading in readings]
        prefixes = [[target.start, *reading.target] for reading in readings]
        return padded(rows, source.pad, device), padded(prefixes, target.pad, device)

    def _pass(self, readings: Sequence[Reading]) -> Tensor:
        """One forward pass through encoder and decoder: states `[batch, target, width]`."""
        tokens, prefix = self._batch(readings)
        with torch.inference_mode():
            memory, mask = self.model.encode(tokens)
            if not self.model.config.predicts:
                return memory
            return self.model.decode(prefix, memory, mask)

    def _tokens(self, reading: Reading) -> tuple[list[str], list[str]]:
        """Source pieces with EOS, and START with the pieces of the translation."""
        pieces = [piece.text for piece in self.source_tokenizer.pieces(reading.text)]
        prefix = (self.target_tokenizer.start, *reading.target)
        return [*pieces, self._source_end], [self._target_names[token] for token in prefix]

    @cached_property
    def _output_names(self) -> list[str]:
        """What the logits are of: tokens, or classes."""
        return list(self.model.config.classes) or self._target_names

    @cached_property
    def _target_names(self) -> list[str]:
        return self.target_tokenizer.tokens()

    @cached_property
    def _source_end(self) -> str:
        return self.source_tokenizer.tokens()[self.source_tokenizer.eos]

    @contextmanager
    def _unrecorded(self) -> Iterator[Recording | None]:
        """Record nothing during a search, which does not use the ordinary forward pass."""
        tape = self.model.tape
        recording, tape.recording = tape.recording, None
        try:
            yield recording
        finally:
            tape.recording = recording


def _numpy(tensor: Tensor) -> np.ndarray:
    exact = torch.promote_types(tensor.dtype, torch.float32)  # numpy has no bfloat16
    return tensor.detach().to("cpu", exact).numpy()
