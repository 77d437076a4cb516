"""BLEU against sentences per second: what pruning, a teacher and time as the price bring.

    python benchmarks/faster.py RUN --corpus DIR --out OUT [--speedups 1.25,1.5] [--updates 1000]

Models, all made from RUN with the same number of updates on the same corpus:

    heads, units, blocks    heads alone; with feed-forward units; with whole blocks too, each pruned
                            with `--speedup` in an engine (`--engine`, `--batch`)
    ... distil              the same with RUN as the teacher, word by word
    ... sequence            with RUN's translations as training text (the last of the three only)
    ... random              as many of everything as the plain one kept in each layer, at random
    rival                   the largest smaller model that is as fast, trained from scratch for the
                            updates of RUN's own training and of the pruning together

Each is scored on the test set (BLEU with a bootstrap interval, and the difference from RUN with its
interval by the paired bootstrap) and timed in headcount and in CTranslate2 float32 and int8, with
batches of 1 and 32; all models take turns. BLEU is that of the engine's own translations. A target
that a set of sites cannot reach is noted and left out.

OUT has one run folder per model, `results.json`, `table.md` and `faster-beam-B.svg`. The same
command goes on where an earlier one stopped; nothing that is finished is done again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measuring import machine

from headcount.bench.costs import Costs, least, measure_costs
from headcount.bench.engines import ENGINES, quiet_clock
from headcount.bench.runs import Timing, interleaved
from headcount.config import Config
from headcount.data.cleaning import spread
from headcount.data.corpus_folder import load_corpus
from headcount.errors import UserError
from headcount.files import atomic_folder, read_json, write_json, write_text
from headcount.heads import ALL_SITES, BLOCKS, SITES, UNIT_SITES, Head, HeadLayout, HeadTable
from headcount.model.arithmetic import count_parameters
from headcount.pruning.prune import prune
from headcount.pruning.record import is_finished, read_record
from headcount.pruning.timed import timed_sentences
from headcount.run import Run, load_run
from headcount.scoring import RESAMPLES, score_lines
from headcount.study.score_model import SentenceCounts, paired_difference
from headcount.training.distillation import translate_corpus
from headcount.training.train import train

SETS = {
    "heads": SITES,
    "units": (*SITES, *UNIT_SITES),
    "blocks": ALL_SITES,
}
COLOURS = {"heads": "#0072b2", "units": "#009e73", "blocks": "#d55e00", "rival": "#cc79a7"}
MARKS = {"": "o", "distil": "D", "sequence": "s", "random": "x"}


@dataclass(frozen=True)
class Model:
    """One model of the comparison: what was pruned, how fast it should be, how it was taught."""

    kind: str
    speedup: float | None = None
    way: str = ""

    @property
    def name(self) -> str:
        parts = [self.kind, self.speedup and f"{self.speedup:g}", self.way]
        return "-".join(part for part in parts if part)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    full = load_run(options.run)
    costs = _costs(full, options)
    models, notes = [Model("full")], []
    for speedup, (kind, sites) in product(options.speedups, SETS.items()):
        sites = tuple(site for site in sites if full.model.heads.count(site))
        most = costs.speedup(least(full.model.heads, sites))
        if most < speedup:
            notes.append(f"{kind} cannot be {speedup:g} times as fast; at most {most:.2f}.")
            continue
        for way in options.ways:
            if way == "sequence" and kind != list(SETS)[-1]:
                continue
            model = Model(kind, speedup, way)
            try:
                _make_pruned(full, model, sites, costs, options)
                models.append(model)
            except UserError as error:
                if not str(error).startswith("--speedup"):
                    raise
                notes.append(f"{model.name}: {error}")
        _write(models, full, costs, notes, options, final=False)
    for speedup in options.speedups if options.rival_updates else ():
        model = Model("rival", speedup)
        if _make_rival(full, model, costs, options):
            models.append(model)
        else:
            notes.append(f"No model of the same shape is {speedup:g} times as fast.")
    _write(models, full, costs, notes, options, final=True)


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def _costs(full: Run, options: argparse.Namespace) -> Costs:
    """The price list, measured once: for what is within reach, and for the rival's shape."""
    path = options.out / "costs.json"
    if not path.is_file():
        _say("prices")
        sources = timed_sentences(full, options.corpus, options.batch)
        sites = [site for site in ALL_SITES if full.model.heads.count(site)]
        costs = measure_costs(full, sources, sites, engine=options.engine, batch=options.batch)
        write_json(path, costs.to_json())
    costs = Costs(**read_json(path))
    if (costs.engine, costs.batch) != (options.engine, options.batch):
        raise UserError(
            f"{path} is about {costs.engine} with a batch of {costs.batch}.",
            "Choose another --out.",
        )
    return costs


def _make_pruned(
    full: Run, model: Model, sites: Sequence[str], costs: Costs, options: argparse.Namespace
) -> None:
    folder = options.out / model.name
    if is_finished(folder):
        return
    _say(model.name)
    corpus, baseline = options.corpus, options.run
    settings: dict[str, Any] = {
        "sites": sites,
        "updates": options.updates,
        "train_only": "encoder,decoder",
        "learning_rate": options.learning_rate,
    }
    if model.way == "random":
        plain = options.out / Model(model.kind, model.speedup).name
        baseline, keep = _random_scores(full, plain, sites, options)
        settings |= {"keep": keep, "by": "chosen"}
    else:
        settings |= {"speedup": model.speedup, "engine": options.engine, "batch": options.batch}
        settings["costs"] = costs  # one price list for all, so that sizes can be compared
    if model.way == "distil":
        settings |= {"distil": options.distil, "teacher": options.run}
    if model.way == "sequence":
        corpus = options.out / "translated"
        if not corpus.exists():
            # As many pairs as the updates will see, with a margin.
            tokens = options.updates * full.config.training.batch_tokens
            pairs = None if options.pairs == 0 else options.pairs or max(1000, tokens // 6)
            translate_corpus(full, options.corpus, corpus, pairs=pairs)
    prune(baseline, corpus, folder, **settings, resume=folder.exists())


def _random_scores(
    full: Run, plain: Path, sites: Sequence[str], options: argparse.Namespace
) -> tuple[Path, dict[str, int]]:
    """A copy of the run whose head table says which heads to keep, and how many these are."""
    folder = options.out / "scores" / plain.name
    layout = full.model.heads
    kept = set(random_like(layout, load_run(plain).model.heads, sites, options.seed))
    if not folder.exists():
        heads = layout.heads(sites)
        table = HeadTable([*layout.heads(), *heads])
        table.add("chosen", {head: float(head in kept) for head in heads})
        without = shutil.ignore_patterns("checkpoints")
        with atomic_folder(folder) as partial:  # an interrupted copy would be taken for a whole one
            shutil.copytree(full.folder, partial, ignore=without, dirs_exist_ok=True)
            table.save(partial / full.analysis.name)
    return folder, {site: sum(head.site == site for head in kept) for site in sites}


def random_like(
    full: HeadLayout, learned: HeadLayout, sites: Sequence[str], seed: int
) -> list[Head]:
    """Heads, units and blocks at random, as many in each layer as a learned layout has.

    Where whole blocks are pruned, as many of each kind stay, in layers drawn at random.
    """
    rng, kept = random.Random(seed), []
    for blocks, holders in BLOCKS.items():
        for index, site in enumerate(holders):
            layers = [n for n in range(len(full.layers[site])) if full.has_block(site, n)]
            there = [n for n in layers if learned.has_block(site, n)]
            chosen = sorted(rng.sample(layers, len(there))) if blocks in sites else there
            if blocks in sites:
                kept += [Head(blocks, layer, index) for layer in chosen]
            if site in sites:
                for layer, like in zip(chosen, there, strict=True):
                    number = min(len(learned.layers[site][like]), len(full.layers[site][layer]))
                    drawn = rng.sample(full.layers[site][layer], number)
                    kept += [Head(site, layer, each) for each in drawn]
    return kept


def _make_rival(full: Run, model: Model, costs: Costs, options: argparse.Namespace) -> bool:
    """Train the largest smaller model that should be as fast; false if there is none."""
    config = rival_config(full, costs, model.speedup or 1.0)
    if config is None:
        return False
    folder = options.out / model.name
    training = config.training.model_copy(
        update={
            "updates": options.rival_updates,
            "cooldown": min(config.training.cooldown, options.rival_updates // 4),
            "warmup": min(config.training.warmup, max(1, options.rival_updates // 4)),
            "evaluate_every": max(1, options.rival_updates // 10),
            "save_every": max(1, options.rival_updates // 20),
            "watch_heads": False,
            "teacher": None,
            "minutes": None,  # all of these updates, however RUN was told to stop
            "patience": 0,
        }
    )
    data = config.data.model_copy(
        update={"folder": options.corpus.absolute(), "corpus": None, "pairs": None}
    )
    config = config.model_copy(update={"training": training, "data": data})
    done = folder / "done.json"
    if not done.is_file():
        shape = config.model
        _say(
            f"{model.name}: {shape.encoder_layers} layers, {shape.heads} heads, {shape.ff_width}"
            f" units, {options.rival_updates} updates"
        )
        train(config, folder, resume=folder.exists())
        write_json(done, {"updates": options.rival_updates})
    return True


def rival_config(full: Run, costs: Costs, speedup: float) -> Config | None:
    """The shape with the most weights that is fast enough: fewer layers, heads and units."""
    shape, layout = full.config.model, full.model.heads
    fixed = {
        "head_width": shape.head_width_at("enc"),
        "decoder_heads": shape.heads_at("dec"),
        "decoder_head_width": shape.head_width_at("dec"),
        "decoder_ff_width": shape.ff_width_at("dec_ff"),
    }
    blocks = len(layout.layers["enc_ff"][0])
    candidates = []
    for layers, heads, units in product(
        range(1, shape.encoder_layers + 1),
        sorted({-(-shape.heads * part // 4) for part in range(1, 5)}),
        sorted({-(-blocks * part // 4) for part in range(1, 5)}),
    ):
        kept = [head for head in layout.heads(["enc_layers"]) if head.layer < layers]
        kept += [head for head in layout.heads(["enc"]) if head.index < heads]
        kept += [head for head in layout.heads(["enc_ff"]) if head.index < units]
        smaller = layout.keeping(kept, ["enc_layers", "enc", "enc_ff"])
        if costs.speedup(smaller) >= speedup:
            width = min(shape.ff_width, units * shape.ff_block)
            size = layers * (4 * heads * fixed["head_width"] + 2 * width)
            candidates.append((size, layers, heads, width))
    if not candidates:
        return None
    _, layers, heads, width = max(candidates)
    smaller = {"encoder_layers": layers, "heads": heads, "ff_width": width}
    return full.config.model_copy(update={"model": shape.model_copy(update=fixed | smaller)})


def _write(
    models: Sequence[Model],
    full: Run,
    costs: Costs,
    notes: Sequence[str],
    options: argparse.Namespace,
    final: bool,
) -> None:
    """Score what is new; at the end time all models in turns, and write table and figures."""
    folders = {m.name: options.run if m.kind == "full" else options.out / m.name for m in models}
    scores = {name: _scores(name, folder, options) for name, folder in folders.items()}
    if not final:
        return
    _say("timing")
    runs = [load_run(folder) for folder in folders.values()]
    speeds = _speeds(runs, options)
    rows = []
    for place, (model, run) in enumerate(zip(models, runs, strict=True)):
        for beam, engine in product(options.beams, ENGINES):
            own, base = (
                scores[name][f"{engine}, beam {beam}"] for name in (model.name, models[0].name)
            )
            counts = [_counts(name, engine, beam, options) for name in (model.name, "full")]
            difference = paired_difference([counts[0]], [counts[1]])
            for batch in options.batches:
                timing = speeds[place][engine, beam, batch]
                rows.append(
                    {
                        "model": model.name,
                        "kind": model.kind,
                        "way": model.way,
                        "engine": engine,
                        "beam": beam,
                        "batch": batch,
                        "sentences_per_second": 1 / timing.median,
                        "quartiles": [1 / timing.high, 1 / timing.low],
                        "faster": speeds[0][engine, beam, batch].median / timing.median,
                        "bleu": own["bleu"]["value"],
                        "bleu_interval": own["bleu"]["interval"],
                        "chrf": own["chrf"]["value"],
                        "same_engine_full_bleu": base["bleu"]["value"],
                        "difference": asdict(difference),
                        "parameters": count_parameters(run.model),
                        "left": {site: run.model.heads.count(site) for site in ALL_SITES},
                    }
                )
    promises = {
        m.name: read_record(folders[m.name]).get("speed")
        for m in models
        if (folders[m.name] / "pruning.json").is_file() and m.kind != "full"
    }
    result = {
        "machine": machine(),
        "threads": options.threads,
        "options": {name: str(value) for name, value in vars(options).items()},
        "costs": costs.to_json(),
        "notes": list(notes),
        "promises": promises,
        "rows": rows,
    }
    write_json(options.out / "results.json", result)
    write_text(options.out / "table.md", table(result))
    for beam in options.beams:
        draw(result, beam).savefig(
            options.out / f"faster-beam-{beam}.svg", bbox_inches="tight", facecolor="white"
        )
    _say(f"{options.out / 'table.md'}")


def _counts(name: str, engine: str, beam: int, options: argparse.Namespace) -> SentenceCounts:
    return SentenceCounts.load(_score_file(name, options, f"{engine}-{beam}.sentences"))


def _score_file(name: str, options: argparse.Namespace, what: str) -> Path:
    path: Path = options.out / "scored" / f"{name}.{what}.json"
    return path


def _scores(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """BLEU and chrF of a model in every engine with every beam, on the test set."""
    path = _score_file(name, options, "scores")
    if path.is_file():
        stored: dict[str, Any] = read_json(path)
        return stored
    run = load_run(folder)
    data = run.config.data
    corpus = load_corpus(options.corpus, f"{data.source}-{data.target}", check=False)
    pairs = spread([pair for pair in corpus.pairs("test") if pair[0].strip()], options.sentences)
    most = run.config.model.max_positions - 1
    sources = [run.source_tokenizer.encode(source)[:most] for source, _ in pairs]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    references = [pairs[i][1] for i in order]
    scores: dict[str, Any] = {}
    for engine in ENGINES.values():
        with TemporaryDirectory() as temporary:
            translate = engine.prepare(run, Path(temporary) / "0", [sources[i] for i in order])
            for beam in options.beams:
                outputs = []
                for first in range(0, len(order), 32):
                    batch = range(first, min(first + 32, len(order)))
                    outputs += translate(batch, beam, None)
                lines = run.target_tokenizer.decode_batch(outputs)
                scored = score_lines(lines, references, RESAMPLES)
                scores[f"{engine.name}, beam {beam}"] = scored.to_json()
                counts = SentenceCounts.of(lines, references)
                counts.save(_score_file(name, options, f"{engine.name}-{beam}.sentences"))
    write_json(path, scores)
    first = next(iter(scores.values()))
    _say(f"{name}: BLEU {first['bleu']['value']:.2f}")
    return scores


def _speeds(
    runs: Sequence[Run], options: argparse.Namespace
) -> list[dict[tuple[str, int, int], Timing]]:
    """Seconds per sentence of all models, in turns, with outputs as the models write them."""
    data = runs[0].config.data
    corpus = load_corpus(options.corpus, f"{data.source}-{data.target}", check=False)
    lines = spread([s for s, _ in corpus.pairs("test") if s.strip()], options.timed)
    speeds: list[dict[tuple[str, int, int], Timing]] = [{} for _ in runs]
    for engine, batch in product(ENGINES.values(), options.batches):
        some = spread(lines, max(16, options.timed // 8)) if batch == 1 else lines
        with TemporaryDirectory() as temporary:
            tasks = []
            for number, run in enumerate(runs):
                encoded = [run.source_tokenizer.encode(line) for line in some]
                sources = sorted((tokens for tokens in encoded if tokens), key=len)
                translate = engine.prepare(run, Path(temporary) / str(number), sources)
                tasks.append(
                    {
                        str(beam): _task(translate, len(sources), batch, beam)
                        for beam in options.beams
                    }
                )
            timings = interleaved(tasks, options.rounds, clock=quiet_clock(runs[0]))
        for place, timing in enumerate(timings):
            for beam in options.beams:
                speeds[place][engine.name, beam, batch] = timing[str(beam)]
    return speeds


def _task(translate: Any, total: int, batch: int, beam: int) -> Callable[[], int]:
    def work() -> int:
        for first in range(0, total, batch):
            translate(range(first, min(first + batch, total)), beam, None)
        return total

    return work


def table(result: dict[str, Any]) -> str:
    """One line per model, beam and engine; speeds for each batch."""
    rows = result["rows"]
    batches = sorted({row["batch"] for row in rows})
    heads = [f"sentences/s, batch {batch}" for batch in batches]
    titles = ["beam", "engine", "model", "BLEU", "against full", *heads, "parameters"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    beams, engines = ({row[name]: 0 for row in rows} for name in ("beam", "engine"))
    for beam, engine in product(beams, engines):
        own = [row for row in rows if (row["beam"], row["engine"]) == (beam, engine)]
        for model in {row["model"]: 0 for row in own}:
            each = [row for row in own if row["model"] == model]
            row, gap = each[0], each[0]["difference"]
            cells = [str(beam), engine, model, f"{row['bleu']:.2f} ± {row['bleu_interval']:.2f}"]
            against = f"{gap['value']:+.2f} ({gap['low']:+.2f} to {gap['high']:+.2f})"
            cells.append("" if model == "full" else against)
            for batch in batches:
                timed = next(row for row in each if row["batch"] == batch)
                cells.append(f"{timed['sentences_per_second']:.0f} ({timed['faster']:.2f}x)")
            cells.append(f"{row['parameters'] / 1e6:.2f} M")
            lines.append(f"| {' | '.join(cells)} |")
    left = ["", "| model | " + " | ".join(ALL_SITES) + " | asked | promised | measured |"]
    left.append("|" + "---|" * (len(ALL_SITES) + 4))
    for model in {row["model"]: 0 for row in rows}:
        row = next(row for row in rows if row["model"] == model)
        numbers = [str(row["left"][site]) for site in ALL_SITES]
        speed = result["promises"].get(model) or {}
        said = [f"{speed[k]:.2f}" if k in speed else "" for k in ("asked", "promised", "measured")]
        left.append(f"| {' | '.join([model, *numbers, *said])} |")
    notes = [f"- {note}" for note in result["notes"]]
    return "\n".join([*lines, *left, "", *notes]) + "\n"


def draw(result: dict[str, Any], beam: int) -> Any:
    """BLEU against sentences per second: a panel for each engine and batch."""
    from headcount.picture import Picture

    rows = [row for row in result["rows"] if row["beam"] == beam]
    engines = list({row["engine"]: 0 for row in rows})
    batches = sorted({row["batch"] for row in rows})
    size = (3.4 * len(engines), 2.9 * len(batches))
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(len(batches), len(engines), squeeze=False, sharey=True)
    for (place, batch), (column, engine) in product(enumerate(batches), enumerate(engines)):
        panel = axes[place][column]
        for row in rows:
            if (row["engine"], row["batch"]) != (engine, batch):
                continue
            colour = COLOURS.get(row["kind"], "#222222")
            mark = MARKS[row["way"]] if row["kind"] not in ("full", "rival") else "*"
            x, y = row["sentences_per_second"], row["bleu"]
            panel.errorbar(x, y, yerr=row["bleu_interval"], color=colour, lw=0.5, alpha=0.4)
            label = " ".join(filter(None, (row["kind"], row["way"])))
            panel.plot(x, y, mark, color=colour, ms=6, label=label)
        panel.set_title(f"{engine}, batch {batch}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.2)
    for panel in axes[-1]:
        panel.set_xlabel("sentences per second", fontsize=8)
    for panel in axes[:, 0]:
        panel.set_ylabel("BLEU", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(),
        unique.keys(),
        loc="outside lower center",
        ncols=6,
        fontsize=7,
        frameon=False,
    )
    return figure


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--corpus", type=Path, required=True, help="with train, dev and test sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--speedups", default="1.25,1.5", help="targets of the prunings")
    parser.add_argument("--engine", default="ctranslate2", choices=list(ENGINES))
    parser.add_argument("--batch", type=int, default=1, help="at which targets are to be met")
    parser.add_argument(
        "--ways", default=",distil,random,sequence", help="empty: without a teacher"
    )
    parser.add_argument("--updates", type=int, default=1000, help="of every pruning")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--distil", type=float, default=0.5, help="the teacher's share")
    parser.add_argument("--pairs", type=int, help="to translate for `sequence`; 0: all")
    parser.add_argument(
        "--rival-updates",
        type=int,
        help="default: RUN's and the pruning's (give it where RUN was trained in two parts);"
        " 0: no rival",
    )
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--sentences", type=int, default=10**6, help="of the test set, for BLEU")
    parser.add_argument("--timed", type=int, default=192, help="sentences to time with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1, help="of random choices")
    options = parser.parse_args()
    options.speedups = [float(each) for each in options.speedups.split(",")]
    options.ways = options.ways.split(",")
    for name in ("beams", "batches"):
        setattr(options, name, [int(each) for each in getattr(options, name).split(",")])
    if options.rival_updates is None:
        options.rival_updates = load_run(options.run).config.training.updates + options.updates
    return options


if __name__ == "__main__":
    main()
