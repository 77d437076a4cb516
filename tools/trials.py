"""Controlled trials: which setting makes heads specialise?

    python tools/trials.py recipes/trials.yaml --data CORPUS [--conllu GOLD] [--only NAME ...]

Every trial is the base recipe with one thing changed, trained on the same number of source tokens
of the corpus folder CORPUS. Trainings that are there already are not repeated, and interrupted ones
go on. Heads are measured on the sentences of GOLD where it is given, else on dev sentences, and
relevance on dev sentences. Writes results/trials/ and the table of docs/results-trials.md.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from publish_results import RESULTS, ROOT, with_tables

from headcount import rank, train
from headcount.config import load_recipe
from headcount.data.corpus_folder import load_corpus
from headcount.errors import UserError
from headcount.files import read_json, write_json, write_text
from headcount.heads import Head
from headcount.role.relations import PAPER_RELATIONS
from headcount.role.specialisation import Watched, specialisation
from headcount.run import Run
from headcount.training.metrics import FINAL, read_metrics
from headcount.yaml_reading import read_yaml

MEASURED = RESULTS / "trials" / "trials.json"
TABLE = RESULTS / "trials" / "tables" / "trials.md"
PAGE = ROOT / "docs" / "results-trials.md"
SENTENCES = 100
"""Dev sentences for relevance."""

PARSED = 600
"""Sentences of the gold parses, at most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="a corpus folder, en-fr")
    parser.add_argument("--conllu", type=Path, help="gold parses to measure heads on")
    parser.add_argument("--only", nargs="*", help="names of trials")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "trials")
    arguments = parser.parse_args()
    plan = read_yaml(arguments.recipe, required=True)
    unknown = set(arguments.only or ()) - set(plan["trials"])
    if unknown:
        parser.error(f"no trial is called {', '.join(sorted(unknown))}")
    base = arguments.recipe.parent / plan["base"]
    data = ["data.corpus=null", f"data.folder={arguments.data}"]
    for name, changes in plan["trials"].items():
        if arguments.only and name not in arguments.only:
            continue
        settings = [*data, *plan["set"], *changes]
        out = arguments.out / re.sub(r"\W+", "-", name)
        run = finished(base, settings, out)
        row = {"changes": changes, **measured(run, arguments.data, arguments.conllu)}
        results = read_json(MEASURED) if MEASURED.is_file() else {}  # others may run beside this
        results[name] = row
        order = dict.fromkeys([*plan["trials"], *results])
        results = {key: results[key] for key in order if key in results}
        write_json(MEASURED, results)
        write_text(TABLE, f"{table(results)}\n")
        write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), RESULTS))
        print(f"{name}: {results[name]}", flush=True)


def finished(base: Path, settings: list[str], out: Path) -> Run:
    """The run of a trial, trained as far as it is not there yet."""
    config = load_recipe(base, settings)
    run, state = train(config, out, resume=(out / "config.yaml").is_file())
    if state.update < config.training.updates:
        raise UserError(f"{out} ended at update {state.update}.", "Call this again.")
    return run


def measured(run: Run, data: Path, conllu: Path | None) -> dict[str, Any]:
    """What the table shows of a run."""
    final = next(
        line for line in read_metrics(run.folder / "metrics.jsonl") if line["kind"] == FINAL
    )
    heads = dict(final)
    if conllu is not None:
        limit = run.config.data.max_length + 1
        watched = Watched.parsed(conllu, run.source_tokenizer, limit, limit=PARSED)
        heads = specialisation(run.model, watched, run.target_tokenizer)
    corpus = load_corpus(data, "en-fr", check=False)
    relevance = {
        reading: top_quarter(run, str(corpus.path("dev", "source")), reading)
        for reading in ("signed", "absolute")
    }
    kept = {"dev_loss": final["dev_loss"], "dev_bleu": final["dev_bleu"]}
    return {**kept, **heads, "top_quarter": relevance}


def top_quarter(run: Run, source: str, reading: str) -> float:
    """The relevance of the most relevant quarter of a layer's encoder heads, mean over layers."""
    ranking = rank(run, source, by="lrp", sites="enc", normalise=reading, sentences=SENTENCES)
    shares = []
    for layer, heads in enumerate(run.model.heads.layers["enc"]):
        values = [ranking["lrp"][Head("enc", layer, index)] for index in heads]
        most = sorted(values, reverse=True)[: -(-len(values) // 4)]
        shares.append(sum(most) / sum(values))
    return round(sum(shares) / len(shares), 4)


def table(results: dict[str, Any]) -> str:
    """One row per trial, Markdown."""
    relations = [r for r in PAPER_RELATIONS if any(f"{r}_best" in row for row in results.values())]
    heads = [
        "trial",
        "dev loss",
        "greedy dev BLEU",
        "confidence, mean / max",
        "share at -1 / own / +1",
    ]
    heads += [f"{relation}, best / baseline" for relation in relations]
    heads += ["relevance of the top quarter, signed / absolute"]
    lines = [heads, ["---"] * len(heads)]
    for name, row in results.items():
        cells = [name, f"{row['dev_loss']:.2f}", f"{row['dev_bleu']:.1f}"]
        cells.append(f"{row['confidence_mean']:.2f} / {row['confidence_max']:.2f}")
        cells.append(" / ".join(f"{row[f'share_{side}']:.2f}" for side in ("left", "own", "right")))
        for relation in relations:
            best, baseline = row.get(f"{relation}_best"), row.get(f"{relation}_baseline")
            cells.append("" if best is None else f"{100 * best:.0f} / {100 * baseline:.0f}")
        cells.append(" / ".join(f"{row['top_quarter'][r]:.2f}" for r in ("signed", "absolute")))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
