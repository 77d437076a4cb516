"""Named places in the model: recorded from and written to, by contexts that always clean up.

A place is `(part, layer, kind)`, written `enc.2.weights`. Parts are the three attention sites
(`enc`, `dec`, `cross`), the feed-forward blocks (`enc_ff`, `dec_ff`), the embeddings (`enc_in`,
`dec_in`), the ends of both stacks (`enc_out`, `dec_out`, layer 0), and the network before the
output layer of an encoder alone (`out`, layer 0). Kinds, with their shapes:

    residual   [batch, length, width]           what enters a block
    input      [batch, length, width]           what the block's function sees (normed in pre-norm)
    memory     [batch, source, width]           cross only: the encoder's output
    queries    [batch, heads, length, head]     keys and values likewise
    weights    [batch, heads, length, keys]     attention after the softmax
    outputs    [batch, heads, length, head]     each head, before its gate and before W^O
    hidden_in  [batch, length, ff]              before the activation; `hidden` after it, before
                                                the gates of units
    activated  [batch, length, ff]              gated networks only: after the activation;
                                                `factor` is what it is multiplied by
    output     [batch, length, width]           what the block adds to the residual; `ungated`
                                                before the block's own gate, where it has one
    sum        [batch, length, width]           residual + output
    result     [batch, length, width]           what leaves the block (normed in post-norm)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headcount.errors import UserError

if TYPE_CHECKING:
    from headcount.model.transformer import Transformer

Place = tuple[str, int, str]
Edit = Callable[[Tensor], Tensor | None]
"""Takes the tensor at a place and returns its replacement; None leaves it unchanged."""

BLOCK = ("residual", "input", "output", "sum", "result")
ATTENTION = ("queries", "keys", "values", "weights", "outputs")
HIDDEN = ("hidden_in", "hidden")


class Recording(dict[Place, Tensor]):
    """What a forward pass left at the places that were asked for.

    A place can also be asked for by its name: `recording["enc.2.weights"]`.
    """

    def __init__(
        self,
        kinds: Iterable[str],
        parts: Iterable[str] | None = None,
        places: Iterable[Place] | None = None,
    ) -> None:
        """Without `parts`, all of them; with `places`, only these."""
        super().__init__()
        self.kinds = frozenset(kinds)
        self.parts = None if parts is None else frozenset(parts)
        self.places = None if places is None else frozenset(places)

    def wants(self, part: str, kind: str) -> bool:
        """Whether this kind is to be kept in any layer of a part."""
        return kind in self.kinds and (self.parts is None or part in self.parts)

    def keep(self, place: Place, tensor: Tensor) -> None:
        """Keep a tensor if it was asked for."""
        if self.wants(place[0], place[2]) and (self.places is None or place in self.places):
            self[place] = tensor

    def __missing__(self, name: object) -> Tensor:
        if isinstance(name, str):
            part, *layer, kind = name.split(".")
            number = "".join(layer) or "0"  # `enc_in.result`: there is one layer only
            place = (part, int(number) if number.isdigit() else -1, kind)
            if place in self:
                return self[place]
        raise KeyError(name)


class Tape:
    """Shared by all blocks of one model: the current recording, and the current edits."""

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.edits: dict[Place, tuple[Edit, ...]] = {}

    def wants(self, part: str, *kinds: str) -> bool:
        """Whether any of these kinds is recorded or edited here now."""
        recording = self.recording
        if recording is not None and any(recording.wants(part, kind) for kind in kinds):
            return True
        return any(place[0] == part and place[2] in kinds for place in self.edits)

    def edits_any(self, parts: Iterable[str]) -> bool:
        """Whether something is written at one of these parts."""
        return not {place[0] for place in self.edits}.isdisjoint(parts)

    def at(self, part: str, layer: int, kind: str, tensor: Tensor) -> Tensor:
        """Edit and record the tensor at a place; the model continues with the result."""
        if self.edits:
            for edit in self.edits.get((part, layer, kind), ()):
                tensor = _edited(edit, tensor, f"{part}.{layer}.{kind}")
        if self.recording is not None:
            self.recording.keep((part, layer, kind), tensor)
        return tensor


def _edited(edit: Edit, tensor: Tensor, name: str) -> Tensor:
    result = edit(tensor)
    if result is None:
        return tensor
    if not isinstance(result, Tensor) or result.shape != tensor.shape:
        shape = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise UserError(
            f"The function for {name} returned {shape}, but {list(tensor.shape)} is needed.",
            "Return a tensor of the shape that came in.",
        )
    return result.to(tensor)


def place_list(model: Transformer) -> list[Place]:
    """Every place that a model has."""
    places: list[Place] = []
    hidden = (*HIDDEN, "activated", "factor") if model.config.gated else HIDDEN
    for (site, layer), attention in model.attentions().items():
        kinds = (*_block(model, site, layer), *(ATTENTION if attention.heads else ()))
        kinds += ("memory",) if site == "cross" else ()
        places += [(site, layer, kind) for kind in kinds]
    for (site, layer), network in model.feed_forwards().items():
        kinds = (*_block(model, site, layer), *(hidden if network.blocks else ()))
        places += [(site, layer, kind) for kind in kinds]
    for stack in dict.fromkeys(site for site, _ in model.attentions() if site != "cross"):
        ends = ((f"{stack}_in", "result"), (f"{stack}_out", "residual"), (f"{stack}_out", "result"))
        places += [(part, 0, kind) for part, kind in ends]
    if model.output_network is not None:
        places += [("out", 0, kind) for kind in ("input", *HIDDEN, "result")]
    return places


def _block(model: Transformer, site: str, layer: int) -> tuple[str, ...]:
    """What is recorded around every residual block, and of one that was removed."""
    return BLOCK if model.heads.has_block(site, layer) else ("residual", "sum", "result")


def find_places(model: Transformer, patterns: str | Iterable[str]) -> list[Place]:
    """The places that match patterns such as `enc.*.weights`; a pattern without any is an error."""
    places = place_list(model)
    chosen: list[Place] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        parts = str(pattern).split(".")
        if len(parts) == 2:  # the embeddings and the ends of the stacks have one layer
            parts.insert(1, "0")
        matching = [
            place
            for place in places
            if len(parts) == 3
            and all(fnmatchcase(str(own), part) for own, part in zip(place, parts, strict=True))
        ]
        if not matching:
            raise UserError(
                f"The model has no activation '{pattern}'.",
                "Write part.layer.kind, such as enc.2.weights or dec_ff.*.hidden; parts:"
                f" {', '.join(dict.fromkeys(place[0] for place in places))}; kinds:"
                f" {', '.join(dict.fromkeys(place[2] for place in places))}.",
            )
        chosen += matching
    return list(dict.fromkeys(chosen))


@contextmanager
def record(
    model: Transformer, kinds: Iterable[str], parts: Iterable[str] | None = None
) -> Iterator[Recording]:
    """Record the given kinds (at the given parts only) in every forward pass inside the context.

    A later pass overwrites an earlier one. The model is as before afterwards, also when an
    exception passes through; what was recorded stays with the caller.
    """
    with _recording(model, Recording(kinds, parts)) as recording:
        yield recording


@contextmanager
def record_places(model: Transformer, patterns: str | Iterable[str]) -> Iterator[Recording]:
    """`record` for places by their names; see `find_places`."""
    places = find_places(model, patterns)
    wanted = Recording({p[2] for p in places}, {p[0] for p in places}, places)
    with _recording(model, wanted) as recording:
        yield recording


@contextmanager
def _recording(model: Transformer, recording: Recording) -> Iterator[Recording]:
    before = model.tape.recording
    model.tape.recording = recording
    try:
        yield recording
    finally:
        model.tape.recording = before


@contextmanager
def edit_places(
    model: Transformer, patterns: str | Iterable[str], function: Edit
) -> Iterator[None]:
    """Put every tensor that passes the places through a function inside the context.

    Inner contexts come after outer ones. The model is as before afterwards, also when an exception
    passes through.
    """
    before = model.tape.edits
    edits = dict(before)
    for place in find_places(model, patterns):
        edits[place] = (*before.get(place, ()), function)
    model.tape.edits = edits
    try:
        yield
    finally:
        model.tape.edits = before


DECODER = ("dec", "cross", "dec_ff", "dec_in", "dec_out")


class WholePrefix:
    """The tokens that each hypothesis has so far; a search uses it as it uses a `DecoderCache`.

    `stepping` is fast because it calls no modules; an edit (`edit_places`) is made inside them. So
    where the decoder is edited, every step reads the whole prefix again.
    """

    def __init__(self, memory: Tensor, mask: Tensor | None, beam: int) -> None:
        """`memory` `[batch, source, width]` and its key mask `[batch, 1, 1, source]`."""
        self.beam = beam
        self.memory, self.mask = memory, mask
        self.prefixes = torch.empty(
            len(memory), beam, 0, dtype=torch.long, device=memory.device
        )  # [batch, beam, steps]

    @property
    def steps(self) -> int:
        """How many tokens have been read."""
        return self.prefixes.shape[2]

    def follow(self, parents: Tensor) -> None:
        """Let hypothesis `parents[s, i]` of sentence s go on as its hypothesis i."""
        index = parents[:, :, None].expand_as(self.prefixes)
        self.prefixes = self.prefixes.gather(1, index)

    def keep_sentences(self, sentences: Tensor) -> None:
        """Forget all sentences but these."""
        self.prefixes, self.memory = self.prefixes[sentences], self.memory[sentences]
        if self.mask is not None:
            self.mask = self.mask[sentences]

    def step(self, model: Transformer, tokens: Tensor) -> Tensor:
        """One step: last tokens `[batch, beam]` to states `[batch, beam, width]`."""
        self.prefixes = torch.cat([self.prefixes, tokens[:, :, None]], dim=2)
        memory = self.memory.repeat_interleave(self.beam, 0)
        mask = None if self.mask is None else self.mask.repeat_interleave(self.beam, 0)
        states = model.decode(self.prefixes.flatten(0, 1), memory, mask)
        return states[:, -1].view(*tokens.shape, -1)
