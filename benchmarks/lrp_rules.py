"""Which LRP rule ranks heads best? Evidence for the defaults of `headcount rank`.

    python benchmarks/lrp_rules.py RUN [RUN ...] --src F --ref F [--sentences 120]
        [--pruned PRUNED ...]

For every rule, with each way through layer norm and each normalisation that makes a difference:

    halves       does the ranking repeat itself on other sentences? Between random halves of them
    bootstrap    the same between all sentences and as many drawn with replacement
    checkpoints  does it last? Between the first and the last checkpoint that the run still has
    ablation     does it agree with what the loss loses without each head, at each site
    gain         ... and how much better or worse than the default does it agree, all sites
    gradient     does it agree with the gradient of the gates
    gates        does it agree with what training keeps: in how many of the prunings PRUNED of the
                 (one) run each head is left
    top share    the largest share of a layer, mean over layers: 1/heads is no preference at all
    sum |R|      does relevance stay bounded on its way down? The most at any station, start 1

Agreement is Spearman's rank correlation within each layer, the mean over layers; intervals are 95 %
over bootstrap samples of the sentences. Several runs stand side by side; heads of different
trainings have nothing to do with each other, but rules should fare alike in all of them. Prints
Markdown tables and puts them into benchmarks/results/lrp_rules.json, beside those of other runs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.distribution import Workers
from headcount.files import read_json, write_json
from headcount.heads import SITES, Head
from headcount.ranking.agreement import bootstrap_draws, correlations
from headcount.ranking.evidence import Evidence
from headcount.ranking.lrp.rules import LrpOptions
from headcount.ranking.measuring import (
    Measured,
    MeasureSettings,
    Sentences,
    load_sentences,
    measure,
)
from headcount.run import WEIGHTS, Run, load_run, load_weights
from headcount.training.checkpoints import list_checkpoints

HERE = Path(__file__).resolve().parent
HALVINGS, REPLICATES = 20, 300
YARDSTICKS = ("ablation", "gradient", "confidence")

# Shares of alphabeta and zplus are never negative: all their normalisations are the same.
COMBINATIONS = [
    LrpOptions("ratio", normalise="absolute"),  # what others are compared with
    LrpOptions("ratio", normalise="signed"),
    LrpOptions("ratio", normalise="neurons"),
    LrpOptions("ratio", "identity", normalise="absolute"),
    LrpOptions("ratio", "identity", normalise="neurons"),
    LrpOptions("alphabeta", normalise="absolute"),
    LrpOptions("alphabeta", "identity", normalise="absolute"),
    LrpOptions("zplus", normalise="absolute"),
    LrpOptions("zplus", "identity", normalise="absolute"),
]
LASTING = [o for o in COMBINATIONS if o.layer_norm == "linear" and o.normalise != "signed"]
"""What is compared between checkpoints."""


def name_of(options: LrpOptions) -> str:
    return f"{options.rule}, {options.layer_norm}, {options.normalise}"


def measured(
    run: Run, sentences: Sentences, measures: tuple[str, ...], options: LrpOptions | None = None
) -> Measured:
    settings = MeasureSettings(measures, SITES, options or LrpOptions())
    return measure(run, sentences, settings, Workers(), lambda *state: None)


def layers_of(heads: list[Head], sites: tuple[str, ...] = SITES) -> list[list[int]]:
    """Indices of the heads of each layer."""
    places: dict[tuple[str, int], list[int]] = {}
    for i, head in enumerate(heads):
        if head.site in sites:
            places.setdefault((head.site, head.layer), []).append(i)
    return [layer for layer in places.values() if len(layer) > 1]


def correlation(first: Tensor, second: Tensor, layers: list[list[int]]) -> Tensor:
    """Spearman within layers of `[replicates, heads]`, `[replicates]`."""
    return correlations(first, second.expand_as(first), layers)[0]


def halves(evidence: Evidence, layers: list[list[int]]) -> float:
    """The mean correlation between random halves of the sentences."""
    rng = torch.Generator().manual_seed(1)
    picks = torch.zeros(HALVINGS, len(evidence.sums), dtype=torch.float64)
    for row in picks:
        row[torch.randperm(len(row), generator=rng)[: len(row) // 2]] = 1
    sides = evidence.resampled(picks), evidence.resampled(1 - picks)
    return float(correlation(*sides, layers).nanmean())


def interval(samples: Tensor) -> list[float]:
    return samples.quantile(torch.tensor([0.025, 0.975], dtype=samples.dtype)).tolist()


def stability(evidence: Evidence, draws: Tensor, layers: list[list[int]]) -> dict[str, float]:
    again = correlation(evidence.resampled(draws), evidence.values()[None], layers)
    return {"halves": halves(evidence, layers), "bootstrap": float(again.nanmean())}


def times_kept(heads: list[Head], pruned: Sequence[Path]) -> Tensor:
    """In how many pruned runs each head is left, `[heads]`."""
    layouts = [load_run(folder).model.heads for folder in pruned]
    left = [set(layout.heads(SITES)) for layout in layouts]
    counts = [sum(head in each for each in left) for head in heads]
    return torch.tensor(counts, dtype=torch.float64)


def agreement_with_gates(
    evidence: Evidence, kept: Tensor, draws: Tensor, layers: list[list[int]]
) -> dict[str, Any]:
    """Agreement of a measure with how often heads were kept, and its interval over sentences."""
    samples = correlation(evidence.resampled(draws), kept[None], layers)
    value = float(correlation(evidence.values()[None], kept[None], layers))
    return {"gates": value, "gates interval": interval(samples)}


def compare(run: Run, sentences: Sentences, pruned: Sequence[Path] = ()) -> dict[str, Any]:
    """One row for each combination, and how stable the yardsticks are themselves."""
    yardsticks = measured(run, sentences, YARDSTICKS)
    heads, draws = yardsticks.heads, bootstrap_draws(len(sentences), REPLICATES)
    layers = layers_of(heads)
    ablation = yardsticks.evidence["ablation"]
    kept = times_kept(heads, pruned)
    decided = [layer for layer in layers if len(set(kept[layer].tolist())) > 1]
    base: Tensor | None = None
    rows = {}
    for options in COMBINATIONS:
        results = measured(run, sentences, ("lrp",), options)
        lrp = results.evidence["lrp"]
        samples = lrp.resampled(draws)
        agreed = correlation(samples, ablation.resampled(draws), layers)
        base = agreed if base is None else base
        values = lrp.values()[None]
        row: dict[str, Any] = stability(lrp, draws, layers)
        for other, evidence in yardsticks.evidence.items():
            at_sites = {site: layers_of(heads, (site,)) for site in SITES} | {"all": layers}
            row[other] = {
                site: float(correlation(values, evidence.values()[None], places))
                for site, places in at_sites.items()
                if places
            }
        if pruned:
            row |= agreement_with_gates(lrp, kept, draws, decided)
        row |= {
            "ablation interval": interval(agreed),
            "gain": float((agreed - base).mean()),
            "gain interval": interval(agreed - base),
            "top share": statistics.mean(float(values[0, places].max()) for places in layers),
            "sum |R|": max(station.magnitude for station in results.audit),
            "biases": sum(station.bias for station in results.audit),
            "lost": sum(station.rest for station in results.audit),
            "unusable steps": max(results.unusable.values()),
        }
        rows[name_of(options)] = row
    own: dict[str, Any] = {}
    for name, evidence in yardsticks.evidence.items():
        own[name] = stability(evidence, draws, layers)
        if pruned:
            own[name] |= agreement_with_gates(evidence, kept, draws, decided)
    return {"rules": rows, "yardsticks": own, "steps": results.steps}


def digest(folder: Path) -> str:
    """A hash of a run's weights: it may be trained further while this runs."""
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()[:16]


def lasting(run: Run, sentences: Sentences, checkpoints: list[Path]) -> dict[str, Any]:
    """Agreement of each measure between the first and the last checkpoint of the run."""
    if len(checkpoints) < 2:
        return {}
    ends: dict[str, list[Tensor]] = {}
    for checkpoint in (checkpoints[0], checkpoints[-1]):
        load_weights(run.model, checkpoint / WEIGHTS)
        for options in LASTING:
            results = measured(run, sentences, ("lrp",), options)
            ends.setdefault(name_of(options), []).append(results.evidence["lrp"].values()[None])
        others = measured(run, sentences, YARDSTICKS)
        for name, evidence in others.evidence.items():
            ends.setdefault(name, []).append(evidence.values()[None])
    layers = layers_of(others.heads)
    agreed = {name: float(correlation(*pair, layers)) for name, pair in ends.items()}
    return {"updates": [int(c.name) for c in (checkpoints[0], checkpoints[-1])], **agreed}


def markdown(results: dict[str, Any]) -> str:
    """A table of one run."""
    lines = [
        "| rule, layer norm, normalise | halves | bootstrap | checkpoints "
        "| ablation: all (95 %) | enc | dec | cross | gain on the first | gradient "
        "| gates (95 %) | top share | sum abs(R) |",
        "|---|" + "---:|" * 12,
    ]
    last = results["checkpoints"]
    for name, row in results["rules"].items():
        low, high = row["ablation interval"]
        by_site = " | ".join(_number(row["ablation"].get(site)) for site in SITES)
        gain = "{:+.2f} ({:+.2f}..{:+.2f})".format(row["gain"], *row["gain interval"])
        lines.append(
            f"| {name} | {row['halves']:.2f} | {row['bootstrap']:.2f} | {_number(last.get(name))} "
            f"| {row['ablation']['all']:.2f} ({low:.2f}..{high:.2f}) | {by_site} | {gain} "
            f"| {row['gradient']['all']:.2f} | {_gates(row)} | {row['top share']:.2f} "
            f"| {row['sum |R|']:.3g} |"
        )
    for name, row in results["yardsticks"].items():
        stable = f"{row['halves']:.2f} | {row['bootstrap']:.2f} | {_number(last.get(name))}"
        lines.append(f"| ({name} itself) | {stable} |" + " |" * 6 + f" {_gates(row)} | | |")
    return "\n".join(lines)


def _gates(row: dict[str, Any]) -> str:
    if "gates" not in row:
        return ""
    low, high = row["gates interval"]
    return f"{row['gates']:.2f} ({low:.2f}..{high:.2f})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--ref", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=120)
    parser.add_argument("--pruned", type=Path, nargs="+", default=[], help="prunings of the run")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.pruned and len(arguments.runs) > 1:
        parser.error("--pruned is about one run")
    torch.set_num_threads(arguments.threads)
    written = HERE / "results" / "lrp_rules.json"
    results = read_json(written) if written.is_file() else {}
    for folder in arguments.runs:
        weights, checkpoints = digest(folder), list_checkpoints(folder)
        run = load_run(folder)
        sentences = load_sentences(run, arguments.src, arguments.ref, arguments.sentences)
        comparison = compare(run, sentences, arguments.pruned)
        comparison |= {"sentences": len(sentences), "weights": weights}
        comparison["checkpoints"] = lasting(run, sentences, checkpoints)
        if digest(folder) != weights or not set(checkpoints) <= set(list_checkpoints(folder)):
            raise SystemExit(
                f"{folder} was trained further in the meantime: these figures mix two models."
            )
        print(
            f"\n{folder.name}, {len(sentences)} sentences\n\n{markdown(comparison)}\n", flush=True
        )
        results[os.path.relpath(folder)] = comparison
        write_json(written, results)


if __name__ == "__main__":
    main()
