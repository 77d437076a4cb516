"""BLEU against sentences per second: what pruning, a teacher and time as the price bring.

    python benchmarks/faster.py RUN --corpus DIR --out OUT [--speedups 1.25,1.5] [--updates 1000]

Models, all made from RUN with the same number of updates on the same corpus:

    control                 all of RUN, trained on for as long as the others
    heads, units, blocks    heads alone; with feed-forward units; with whole blocks too, each pruned
                            with `--speedup` in an engine (`--engine`, `--batch`)
    shape                   the largest even shape that is fast enough, cut out by a score
    ... distil              the same with RUN as the teacher, word by word
    ... sequence            with RUN's translations as training text (blocks only)
    ... random              as many of everything as the plain one kept in each layer, at random
    ... distil-random       as many as `distil` kept, at random, with the teacher (only if asked)
    rival                   the largest smaller model that is as fast, trained from scratch for the
                            updates of RUN's own training and of the pruning together
    --also NAME=RUN         a run that was made elsewhere, such as shape-1.5-long=runs/long

Each is scored on the test set (BLEU with a bootstrap interval, and the difference from RUN with its
interval by the paired bootstrap) and timed in headcount and in CTranslate2 float32 and int8, with
batches of 1 and 32; all models take turns. BLEU is that of the engine's own translations. A target
that a set of sites cannot reach is noted and left out.

OUT has one run folder per model, `results.json`, `table.md` and `faster-beam-B.svg`. The same
command goes on where an earlier one stopped; nothing that is finished is done again.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from faster_measures import counts_of, say, scores_of, speeds_of
from faster_report import draw, table
from faster_rivals import random_like, rival_config
from measuring import machine

from headcount.bench.costs import Costs, least, measure_costs
from headcount.bench.engines import ENGINES
from headcount.errors import UserError
from headcount.files import atomic_folder, read_json, require_file, write_json, write_text
from headcount.heads import ALL_SITES, SITES, UNIT_SITES, HeadTable
from headcount.model.arithmetic import count_parameters
from headcount.pruning.methods import SHAPE
from headcount.pruning.prune import prune
from headcount.pruning.record import is_finished, read_record
from headcount.pruning.timed import timed_sentences
from headcount.run import CONFIG, Run, load_run
from headcount.study.score_model import paired_difference
from headcount.training.distillation import translate_corpus
from headcount.training.train import train

SETS = {
    "heads": SITES,
    "units": (*SITES, *UNIT_SITES),
    "blocks": ALL_SITES,
    SHAPE: ALL_SITES,
}

PLAIN = ("", "distil", "random", "distil-random")
WAYS = {"blocks": (*PLAIN, "sequence"), SHAPE: ("", "distil")}


@dataclass(frozen=True)
class Model:
    """One model of the comparison: what was pruned, how fast it should be, how it was taught."""

    kind: str
    speedup: float | None = None
    way: str = ""
    run: Path | None = None
    """Where it is, if it was not made here."""

    @classmethod
    def named(cls, text: str) -> Model:
        """A model that was made elsewhere: `shape-1.5-long=RUN`."""
        match = re.fullmatch(r"([a-z]+)-([0-9.]+)-([a-z]+)=(.+)", text)
        if match is None or match[1] not in (*SETS, "rival"):
            raise argparse.ArgumentTypeError(f"{text}: give KIND-SPEEDUP-WAY=RUN")
        return cls(match[1], float(match[2]), match[3], Path(match[4]))

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
    models, notes = [Model("full", run=options.run)], []

    def wanted(model: Model) -> bool:
        return not options.models or model.name in options.models

    if wanted(Model("control")):
        models.append(Model("control"))
        _make_pruned(full, models[-1], SITES, costs, options)
    for speedup, (kind, sites) in product(options.speedups, SETS.items()):
        sites = tuple(site for site in sites if full.model.heads.count(site))
        most = costs.speedup(least(full.model.heads, sites))
        if most < speedup:
            notes.append(f"{kind} cannot be {speedup:g} times as fast; at most {most:.2f}.")
            continue
        for way in options.ways:
            if way not in WAYS.get(kind, PLAIN):
                continue
            model = Model(kind, speedup, way)
            if not wanted(model):
                continue
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
        if not wanted(model):
            continue
        if _make_rival(full, model, costs, options):
            models.append(model)
        else:
            notes.append(f"No model of the same shape is {speedup:g} times as fast.")
    models += options.also
    _write(models, full, costs, notes, options, final=not options.untimed)


def _costs(full: Run, options: argparse.Namespace) -> Costs:
    """The price list, measured once: for what is within reach, and for the rival's shape."""
    path = options.out / "costs.json"
    if not path.is_file():
        say("prices")
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
    say(model.name)
    corpus, baseline = options.corpus, options.run
    settings: dict[str, Any] = {
        "sites": sites,
        "updates": options.updates,
        "finetune": options.finetune,
        "precision": options.precision,
        "train_only": "encoder,decoder",
        "learning_rate": options.learning_rate,
        "batch_tokens": options.batch_tokens,
    }
    if model.kind == "control":
        settings["penalty"] = 0.0
    elif model.way.endswith("random"):
        taught = model.way.removesuffix("random").removesuffix("-")
        plain = options.out / Model(model.kind, model.speedup, taught).name
        baseline, keep = _random_scores(full, plain, sites, options)
        settings |= {"keep": keep, "by": "chosen"}
    else:
        settings |= {"speedup": model.speedup, "engine": options.engine, "batch": options.batch}
        settings["by"] = SHAPE if model.kind == SHAPE else None
        settings["costs"] = costs  # one price list for all, so that sizes can be compared
    if model.way.startswith("distil"):
        settings |= {"distil": options.distil, "teacher": options.run}
    if model.way == "sequence":
        corpus = options.out / "translated"
        if not corpus.exists():
            # As many pairs as the updates will see, with a margin.
            tokens = options.updates * (options.batch_tokens or full.config.training.batch_tokens)
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
        say(
            f"{model.name}: {shape.encoder_layers} + {shape.decoder_layers} layers,"
            f" {shape.heads} and {shape.heads_at('dec')} heads, {shape.ff_width} and"
            f" {shape.ff_width_at('dec_ff')} units, {options.rival_updates} updates"
        )
        train(config, folder, resume=folder.exists())
        write_json(done, {"updates": options.rival_updates})
    return True


def _write(
    models: Sequence[Model],
    full: Run,
    costs: Costs,
    notes: Sequence[str],
    options: argparse.Namespace,
    final: bool,
) -> None:
    """Score what is new; at the end time all models in turns, and write table and figures."""
    folders = {m.name: m.run or options.out / m.name for m in models}
    scores = {name: scores_of(name, folder, options) for name, folder in folders.items()}
    if not final:
        return
    say("timing")
    runs = [load_run(folder) for folder in folders.values()]
    speeds = speeds_of(runs, options)
    rows = []
    for place, (model, run) in enumerate(zip(models, runs, strict=True)):
        for beam, engine in product(options.beams, ENGINES):
            own, base = (
                scores[name][f"{engine}, beam {beam}"] for name in (model.name, models[0].name)
            )
            counts = [counts_of(name, engine, beam, options) for name in (model.name, "full")]
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
    say(f"{options.out / 'table.md'}")


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
        "--ways",
        default=",distil,random,sequence",
        help="empty: without a teacher; also distil-random",
    )
    parser.add_argument("--models", help="names such as units-1.5-distil,rival-1.5: only these")
    parser.add_argument("--also", type=Model.named, action="append", default=[], help="NAME=RUN")
    parser.add_argument("--untimed", action="store_true", help="make and score models, no more")
    parser.add_argument("--updates", type=int, default=1000, help="of every pruning")
    parser.add_argument("--finetune", type=int, help="the last of them, with the choice held fixed")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--batch-tokens", type=int, help="per update; default: as RUN was trained")
    parser.add_argument("--precision", help="while training; default: as RUN was trained")
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
    options.models = options.models and options.models.split(",")
    possible = {
        Model(kind, speedup, way).name
        for kind, speedup, way in product(SETS, options.speedups, options.ways)
        if way in WAYS.get(kind, PLAIN)
    }
    possible |= {Model("rival", speedup).name for speedup in options.speedups} | {"control"}
    unknown = set(options.models or ()) - possible
    if unknown:
        parser.error(f"--models {','.join(sorted(unknown))}: of {', '.join(sorted(possible))}")
    names = [model.name for model in options.also]
    twice = [name for name in names if name in possible or names.count(name) > 1]
    if twice:
        parser.error(f"--also {twice[0]}: there is another model of that name")
    for model in options.also:
        require_file(model.run / CONFIG)  # not after hours of pruning
    for name in ("beams", "batches"):
        setattr(options, name, [int(each) for each in getattr(options, name).split(",")])
    if options.rival_updates is None:
        training = load_run(options.run).config.training
        options.rival_updates = training.updates_with(options.updates, options.batch_tokens)
    return options


if __name__ == "__main__":
    main()
