"""Which LRP rule ranks heads best? Evidence for the defaults of `headcount rank`.

    python benchmarks/lrp_rules.py RUN [RUN ...] --src F --ref F [--sentences 300]

For every rule, layer norm and normalisation: does the ranking of the heads of a layer repeat itself
on other sentences (Spearman between random halves), does it agree with what the loss loses without
each head (ablation) and with the gradient of the gates, and does relevance stay bounded on its way
down? Several runs (other seeds, other sizes) stand side by side. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from pathlib import Path

import torch

from headcount.heads import SITES
from headcount.ranking.agreement import Agreement, agreement, correlations, groups_of
from headcount.ranking.evidence import Evidence
from headcount.ranking.measuring import Measured, MeasureSettings, measure
from headcount.ranking.options import CHOICES, LrpOptions
from headcount.ranking.sentences import Sentences, load_sentences
from headcount.run import Run, load_run
from headcount.training.distribution import Workers

HALVINGS = 20


def combinations(extra: bool) -> list[LrpOptions]:
    """Rules, layer norms and normalisations; with `extra` also biases and attention."""
    names = ("rule", "layer_norm", "normalise")
    chosen = [
        LrpOptions(**dict(zip(names, values, strict=True)))
        for values in product(*(CHOICES[name] for name in names))
        # Shares of alphabeta and zplus are never negative: all three normalisations are the same.
        if values[0] == "ratio" or values[2] == "absolute"
    ]
    if extra:
        for rule, (bias, attention) in product(
            CHOICES["rule"], [("share", "constant"), ("absorb", "softmax")]
        ):
            chosen.append(LrpOptions(rule, bias=bias, attention=attention))
    return chosen


def run_measures(
    run: Run, sentences: Sentences, measures: tuple[str, ...], options: LrpOptions
) -> Measured:
    settings = MeasureSettings(measures, SITES, options)
    return measure(run, sentences, settings, Workers(), lambda *state: None)


def split_half(evidence: Evidence, parts: list[list[int]]) -> float:
    """The mean within-layer Spearman correlation between two random halves of the sentences."""
    chance = torch.Generator().manual_seed(1)
    found = []
    for _ in range(HALVINGS):
        order = torch.randperm(len(evidence.sums), generator=chance)
        values = []
        for half in order.tensor_split(2):
            values.append((evidence.sums[half].sum(0) / evidence.counts[half].sum(0))[None])
        found.append(float(correlations(*values, parts)[0]))
    return statistics.mean(found)


def describe(row: Agreement) -> str:
    if row.spearman is None or row.spearman_interval is None:
        return "-"
    return f"{row.spearman:.2f} ({row.spearman_interval[0]:.2f}..{row.spearman_interval[1]:.2f})"


def compare(run: Run, sentences: Sentences, extra: bool) -> list[dict[str, object]]:
    """One row for each combination."""
    yardsticks = run_measures(run, sentences, ("confidence", "ablation", "gradient"), LrpOptions())
    rows = []
    for options in combinations(extra):
        found = run_measures(run, sentences, ("lrp",), options)
        lrp = found.evidence["lrp"]
        groups = groups_of(found.heads)
        pairs = agreement({"lrp": lrp, **yardsticks.evidence}, {}, found.heads, replicates=300)
        by_pair = {(p.second, p.group): p for p in pairs if p.first == "lrp"}
        values = lrp.values()
        row: dict[str, object] = {
            "rule": options.rule,
            "layer norm": options.layer_norm,
            "normalise": options.normalise,
            "bias": options.bias,
            "attention": options.attention,
        }
        for site in SITES:
            layers = groups.get(f"{site}.*") or groups.get(site) or []
            group = f"{site}.*" if f"{site}.*" in groups else site
            row[f"{site} halves"] = f"{split_half(lrp, layers):.2f}"
            for other in ("ablation", "gradient", "confidence"):
                row[f"{site} {other}"] = describe(by_pair[other, group])
            largest = [float(values[places].max()) for places in layers]
            row[f"{site} top share"] = f"{statistics.mean(largest):.2f}"
        row["max sum |R|"] = f"{max(r.magnitude for r in found.audit):.3g}"
        row["biases"] = f"{sum(r.bias for r in found.audit):.2f}"
        row["lost"] = f"{sum(r.rest for r in found.audit):.3f}"
        row["unusable steps"] = f"{max(found.unusable.values())}/{found.steps}"
        rows.append(row)
        print("  ", row, flush=True)
    for other in ("ablation", "gradient", "confidence"):
        halves = {}
        for site in SITES:
            layers = groups.get(f"{site}.*") or groups.get(site) or []
            halves[f"{site} halves"] = f"{split_half(yardsticks.evidence[other], layers):.2f}"
        rows.append({"rule": f"({other} itself)", **halves})
    return rows


def markdown(rows: list[dict[str, object]]) -> str:
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--ref", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--extra", action="store_true", help="also biases and attention")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = {}
    for folder in arguments.runs:
        run = load_run(folder)
        sentences = load_sentences(run, arguments.src, arguments.ref, arguments.sentences)
        rows = compare(run, sentences, arguments.extra)
        print(f"\n{folder.name}, {len(sentences)} sentences\n\n{markdown(rows)}\n", flush=True)
        results[folder.name] = rows
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
