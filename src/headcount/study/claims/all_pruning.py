"""Claims about models pruned at all sites: which attention goes first (Sec. 6.3)."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.heads import SITES
from headcount.study.cases import Case, mean_over_settings, retained
from headcount.study.claims.amounts import (
    bleu_difference,
    count,
    decide_difference,
    loss_with,
    mean,
)
from headcount.study.claims.verdict import Claim, Finding, Number, decide, percent, untestable
from headcount.study.results import StudyModel

HALF_OF_ALL = (0.5, 0.3, 0.55)
BETTER_TWINS = 2 / 3

NO_ALL_SITES = "No model was pruned at all sites by learned gates."


def half_of_all_heads(case: Case) -> Finding:
    """Sec. 6.3: more than half of all heads can go for no more than 0.25 BLEU."""
    return loss_with(case, case.all_sites_learned, SITES, HALF_OF_ALL, NO_ALL_SITES)


def pruned_beats_scratch(case: Case) -> Finding:
    """Sec. 6.3: models of the same shape trained from scratch are worse."""
    pairs = [
        (pruned, scratch)
        for pruned, scratch in case.twins()
        if pruned.bleu is not None and scratch.bleu is not None
    ]
    if not pairs:
        return untestable("No pruned model has a from-scratch twin with a score.")
    gains = [(pruned.bleu or 0.0) - (scratch.bleu or 0.0) for pruned, scratch in pairs]
    better = sum(gain > 0 for gain in gains)
    numbers: dict[str, Number] = {
        "twins": len(gains),
        "pruned_better": better,
        "mean_gain": mean(gains),
        "smallest_gain": min(gains),
        "largest_gain": max(gains),
    }
    reason = f"Pruned models minus their twins, mean BLEU; better in {better} of {len(gains)}"
    if better < BETTER_TWINS * len(gains):
        return decide(False, f"{reason} ({mean(gains):+.2f}).", **numbers)
    difference = bleu_difference([p for p, _ in pairs], [s for _, s in pairs], twins=True)
    return decide_difference(difference, 0.0, reason, len(pairs), numbers)


def encoder_goes_first(case: Case) -> Finding:
    """Sec. 6.3: encoder self-attention is pruned first, decoder-encoder attention last."""
    models = _thinned(case)
    if not models:
        return untestable(NO_ALL_SITES)
    shares = {
        site: _mean_share(case, models, site, range(len(case.full.heads.layers[site])))
        for site in SITES
    }
    listed = ", ".join(f"{site} {percent(shares[site])}" for site in SITES)
    return decide(
        shares["enc"] < shares["dec"] < shares["cross"],
        f"Share of heads left on average: {listed} ({count(models)}).",
        models=len(models),
        enc_share=shares["enc"],
        dec_share=shares["dec"],
        cross_share=shares["cross"],
    )


def decoder_layers_divide_work(case: Case) -> Finding:
    """Sec. 6.3: lower decoder layers keep self-attention, upper ones attention to the source."""
    models = _thinned(case)
    if not models:
        return untestable(NO_ALL_SITES)
    depth = len(case.full.heads.layers["dec"])
    if depth < 2:
        return untestable("The decoder has one layer only.")
    half = depth // 2
    parts = {"lower": range(half), "upper": range(depth - half, depth)}
    shares = {
        f"{site}_{name}": _mean_share(case, models, site, part)
        for site in ("dec", "cross")
        for name, part in parts.items()
    }
    return decide(
        shares["dec_lower"] > shares["dec_upper"] and shares["cross_upper"] > shares["cross_lower"],
        f"Left on average: self-attention {percent(shares['dec_lower'])} in the lower half and"
        f" {percent(shares['dec_upper'])} in the upper, attention to the source"
        f" {percent(shares['cross_lower'])} and {percent(shares['cross_upper'])}"
        f" ({count(models)}).",
        models=len(models),
        **shares,
    )


ALL_SITES_CLAIMS = (
    Claim(
        "half-of-all-heads-enough",
        "Sec. 6.3",
        "More than half of all heads can go.",
        "The learned pruning of all sites nearest to 1/2 of the heads (30 % to 55 %) loses at most"
        " 0.5 BLEU on the test set.",
        half_of_all_heads,
        short="half of all heads is enough",
    ),
    Claim(
        "pruned-beats-scratch",
        "Sec. 6.3",
        "A pruned model is better than the same architecture trained from scratch.",
        "Pruned models have more test BLEU than their from-scratch twins on average, and in at"
        " least two thirds of the pairs.",
        pruned_beats_scratch,
        short="pruning beats training from scratch",
    ),
    Claim(
        "encoder-goes-first",
        "Sec. 6.3",
        "Encoder self-attention is pruned first, decoder-encoder attention last.",
        "Over learned prunings of all sites, each counting once for all its seeds, the mean share"
        " of heads left is smallest in the encoder and largest in decoder-encoder attention.",
        encoder_goes_first,
        short="encoder heads go first",
    ),
    Claim(
        "decoder-layers-divide-work",
        "Sec. 6.3",
        "Lower decoder layers keep self-attention, upper ones keep attention to the source.",
        "Over learned prunings of all sites, each counting once for all its seeds, the lower half"
        " of the decoder keeps the larger share of self-attention heads and the upper half that of"
        " decoder-encoder heads.",
        decoder_layers_divide_work,
        short="decoder layers divide the work",
    ),
)


def _thinned(case: Case) -> list[StudyModel]:
    """Learned prunings of all sites that did lose heads, without controls."""
    controls, total = case.controls(SITES), retained(case.full)
    return [m for m in case.all_sites_learned if m not in controls and retained(m) < total]


def _mean_share(
    case: Case, models: Sequence[StudyModel], site: str, layers: Sequence[int]
) -> float:
    """The share of the heads of these layers that models have kept, on average."""

    def heads(model: StudyModel) -> int:
        return sum(len(model.heads.layers[site][layer]) for layer in layers)

    return mean_over_settings(models, heads) / max(1, heads(case.full))
