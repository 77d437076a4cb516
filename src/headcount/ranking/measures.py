"""Every measure of heads: a measure is one function and its line in `MEASURES`.

Help texts, the head table, pruning methods, study plans, tables and figures read the registry. In
every measure more means that the head matters more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.errors import UserError
from headcount.heads import ALL_SITES, BLOCKS, SITE_NAMES, SITES, stack_of
from headcount.model.attention import confidence_sums, largest_weights
from headcount.model.gating import gated
from headcount.model.recording import Recording
from headcount.model.transformer import Transformer
from headcount.ranking.ablation import ablation, bleu_losses
from headcount.ranking.evidence import LossBatch, Place, PrefixBatch, Sums, WholeCorpus
from headcount.ranking.lrp.propagate import KINDS
from headcount.registry import Registry
from headcount.training.objective import summed_cross_entropy


def confidence(
    recording: Recording,
    source: Tensor,
    tokens: Sequence[int],
    attentions: Sequence[Place],
    eos: int,
    frame: tuple[int, int, int] = (0, 0, 0),
) -> tuple[Tensor, Tensor]:
    """How sure a head is of where it looks: sums of its largest weights, and their number (Sec. 4).

    "The average of its maximum attention weight excluding the end of sentence symbol": neither EOS
    nor START is a real token. In cross-attention the query that writes a token counts as that
    token, so that the one that writes EOS is left out.

    `source` `[batch, source]` ends in EOS and padding; `tokens` are the target tokens of each
    sentence, without START and EOS. `frame`: how many tokens at the front and at the end of the
    source, and at the front of the target, are not text (language codes, `[CLS]`) and are left out
    like EOS. Returns `[batch, heads]` twice.
    """
    words = source != eos
    first, last, skipped = frame
    lengths = (source == eos).int().argmax(1) - last  # the first EOS; padding comes after it
    positions = torch.arange(source.shape[1], device=source.device)
    words &= (positions < lengths[:, None]) & (positions >= first)
    count = torch.tensor(list(tokens), device=source.device)[:, None]
    sums, counts = [], []
    for site, layer in attentions:
        weights = recording[site, layer, "weights"]
        queries, keys = words, words
        if site != "enc":
            steps = torch.arange(weights.shape[2] - 1, device=source.device)
            queries = (steps < count) & (steps >= skipped)
            weights = weights[:, :, 1:, 1:] if site == "dec" else weights[:, :, :-1]
            keys = queries if site == "dec" else words
        summed, number = confidence_sums(_largest(weights, keys), queries)
        sums.append(summed)
        counts.append(number[:, None].expand_as(summed))
    return torch.cat(sums, 1), torch.cat(counts, 1)


def _largest(weights: Tensor, keys: Tensor) -> Tensor:
    """`[batch, heads, queries]`; zeros where a batch has no target tokens at all."""
    if not weights.shape[2]:
        return weights.new_zeros(weights.shape[:3])
    return largest_weights(weights, keys)[0]


def gradient(
    model: Transformer,
    source: Tensor,
    target_input: Tensor,
    labels: Tensor,
    attentions: Sequence[Place],
) -> Tensor:
    """|d loss / d gate| of each sentence, `[batch, heads]`, at its gates (Michel et al. 2019).

    The loss is the sentence's cross-entropy summed over target tokens. Every sentence has its own
    gates, so that one backward pass gives the gradients of all of them.
    """
    gateables = model.gateables()
    gates: dict[Place, Tensor] = {}
    for place in attentions:
        gate, number = gateables[place].gate, len(model.heads.layers[place[0]][place[1]])
        ones = torch.ones(len(source), number, device=source.device)
        values = ones if gate is None else ones * gate.detach()
        gates[place] = values.to(model.output_weight.dtype).requires_grad_()
    real = labels != model.target_pad
    with torch.enable_grad(), gated(model, gates):
        memory, mask = model.encode(source)
        states = model.decode(target_input, memory, mask)
        # Detached: its gradient would be as large as the vocabulary, and is not asked for.
        weight = model.output_weight.detach()
        loss, _ = summed_cross_entropy(states[real], weight, model.output_bias, labels[real])
        # Without cross-attention nothing of the encoder reaches the loss: gradients of zero.
        gradients = torch.autograd.grad(loss, list(gates.values()), materialize_grads=True)
    return torch.cat(gradients, 1).abs()


def activation_sizes(
    model: Transformer,
    recording: Recording,
    source: Tensor,
    steps: Sequence[int],
    places: Sequence[Place],
) -> Sums:
    """How much each head, block of units or block adds to the residual stream.

    The Euclidean norm of what it adds at a position (`W^O` times a head's output; biases count for
    whole blocks only), after its gate, summed over the real positions of a sentence; and their
    number. `source` `[batch, source]`; `steps` are the decoder's positions of each sentence.
    Returns `[batch, heads]` twice.
    """
    count = torch.tensor(list(steps), device=source.device)[:, None]
    sums, counts = [], []
    for site, layer in places:
        added = _added(model, recording, site, layer)  # norms [batch, heads, length]
        at = torch.arange(added.shape[2], device=source.device)
        real = source != model.pad if stack_of(site) == "enc" else at < count
        sums.append((added * real[:, None]).sum(2))
        counts.append(real.sum(1, keepdim=True).expand_as(sums[-1]))
    return torch.cat(sums, 1), torch.cat(counts, 1)


def _added(model: Transformer, recording: Recording, site: str, layer: int) -> Tensor:
    """Norms of what everything at a place adds, `[batch, heads, length]`."""
    if site in BLOCKS:
        holders = [BLOCKS[site][index] for index in model.heads.layers[site][layer]]
        return torch.stack([recording[h, layer, "output"].norm(dim=-1) for h in holders], 1)
    gate = model.gateables()[site, layer].gate
    if site in SITES:
        outputs = recording[site, layer, "outputs"].unbind(1)
        weights = model.attentions()[site, layer].out_weight.split(outputs[0].shape[-1], 1)
    else:
        network = model.feed_forwards()[site, layer]
        sizes = network.unit_block.bincount().tolist()
        outputs = recording[site, layer, "hidden"].split(sizes, -1)
        weights = network.contract.weight.split(sizes, 1)
    pairs = zip(outputs, weights, strict=True)
    norms = torch.stack([(x @ weight.T).norm(dim=-1) for x, weight in pairs], 1)
    return norms if gate is None else norms * gate.detach().abs()[..., None]


@dataclass(frozen=True)
class Measure:
    """One measure, by exactly one of three functions.

    help       one line: what a head's number is
    label      what tables and figures call it
    on_prefix  from a recorded forward pass of the translation: sums per sentence and head
    on_loss    from the loss of the references: likewise
    on_corpus  from all sentences together: one number per head, `[heads]`
    records    what `on_prefix` needs recorded: kinds of `model/recording.py`
    sites      where it is defined: where attention sits, or everywhere
    default    whether it is measured unless others are asked for; no for slow ones
    predicts   whether `on_prefix` is about predictions: an encoder alone then reads what it is
               asked, such as sentences with hidden tokens
    """

    name: str
    help: str
    label: str
    on_prefix: Callable[[PrefixBatch], Sums] | None = None
    on_loss: Callable[[LossBatch], Sums] | None = None
    on_corpus: Callable[[WholeCorpus], Tensor] | None = None
    records: frozenset[str] = frozenset({"weights"})
    sites: tuple[str, ...] = SITES
    default: bool = True
    predicts: bool = False

    @property
    def needs_references(self) -> bool:
        """Whether it needs reference translations."""
        return self.on_prefix is None

    @property
    def needs_logits(self) -> bool:
        """Whether it needs a model that predicts something."""
        return self.predicts or self.on_prefix is None


def _lrp(batch: PrefixBatch) -> Sums:
    assert batch.relevance is not None  # created whenever this measure is asked for
    return batch.relevance.add(batch.recording, batch.steps, positions=batch.positions)


def _lrp_signed(batch: PrefixBatch) -> Sums:
    assert batch.relevance is not None
    return batch.relevance.add(batch.recording, batch.steps, signed=True, positions=batch.positions)


def _confidence(batch: PrefixBatch) -> Sums:
    return confidence(
        batch.recording,
        batch.source,
        batch.tokens,
        batch.attentions,
        batch.source_eos,
        batch.frame,
    )


def _activation(batch: PrefixBatch) -> Sums:
    steps = [count + 1 for count in batch.tokens]
    return activation_sizes(batch.model, batch.recording, batch.source, steps, batch.attentions)


def _ablation(batch: LossBatch) -> Sums:
    tokens = batch.source, batch.target_input, batch.labels
    return ablation(batch.model, *tokens, batch.heads), batch.counts


def _gradient(batch: LossBatch) -> Sums:
    tokens = batch.source, batch.target_input, batch.labels
    return gradient(batch.model, *tokens, batch.attentions), batch.counts


LRP, LRP_SIGNED, BLEU, RANDOM = "lrp", "lrp_signed", "ablation_bleu", "random"

MEASURES = Registry(
    "measure",
    [
        Measure(
            LRP,
            "share of its layer's relevance for the predicted token",
            "relevance (LRP)",
            on_prefix=_lrp,
            records=KINDS,
            sites=ALL_SITES,
            predicts=True,
        ),
        Measure(
            "confidence", "mean of its largest attention weight", "confidence",
            on_prefix=_confidence,
        ),
        Measure(
            "ablation", "rise of the loss without it, in nats per target token", "ablation (loss)",
            on_loss=_ablation, sites=ALL_SITES,
        ),
        Measure(
            "gradient", "mean |d loss / d gate|, in nats per target token", "gradient",
            on_loss=_gradient, sites=ALL_SITES,
        ),
        Measure(
            BLEU, "BLEU points lost without it; slow", "ablation (BLEU)",
            on_corpus=bleu_losses, sites=ALL_SITES, default=False,
        ),
        Measure(
            LRP_SIGNED, "lrp by signed sums, the paper's reading", "signed relevance (LRP)",
            on_prefix=_lrp_signed, records=KINDS, sites=ALL_SITES, predicts=True,
        ),
        Measure(
            "activation", "mean size of what it adds to the residual stream", "activation",
            on_prefix=_activation, records=frozenset({"outputs", "hidden", "output"}),
            sites=ALL_SITES, default=False,
        ),
    ],
)  # fmt: skip

RANDOM_HELP = "a random number, the same for the same seed and head: a baseline for comparisons"


def check_sites(name: str, sites: Iterable[str]) -> None:
    """Stop where a measure is not defined at one of the sites."""
    measure = MEASURES[name]
    outside = [site for site in sites if site not in measure.sites]
    if outside:
        raise UserError(
            f"{name} is not defined at {','.join(outside)} ({SITE_NAMES[outside[0]]}).",
            f"Measure it at {', '.join(measure.sites)}.",
        )


def explain(column: str) -> str:
    """One line on a column of the head table that a ranking adds."""
    if column == RANDOM:
        return RANDOM_HELP
    return MEASURES[column].help if column in MEASURES else "a column of the head table"
