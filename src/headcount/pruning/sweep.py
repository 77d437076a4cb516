"""`headcount prune-sweep`: many prunings of one baseline, and one table of the results.

Every pruning has its own folder, which shows whether it is finished, so that a sweep can be killed
at any moment and resumed without repeating anything. Prunings share nothing and can run in several
processes, or on the ranks that torchrun gives.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from headcount.bench.costs import Costs
from headcount.bench.runs import interleaved
from headcount.bench.speed_figure import Point, draw_speeds
from headcount.data.cleaning import spread
from headcount.data.corpus_folder import load_corpus
from headcount.data.fetch import sha256_of
from headcount.distribution import Workers, default_device
from headcount.errors import UserError
from headcount.files import atomic_path, owned, parsing, read_json, write_csv, write_json
from headcount.heads import SITES
from headcount.model.arithmetic import count_parameters
from headcount.picture import Picture
from headcount.processes import end_with_parent, threads_for
from headcount.progress import Progress, silent
from headcount.pruning.methods import EXACT, NEEDS, TIMED, canonical, method_named
from headcount.pruning.process import check_corpus
from headcount.pruning.prune import prune
from headcount.pruning.record import (
    Record,
    is_finished,
    new_record,
    read_record,
    same_record,
)
from headcount.pruning.settings import PruneSettings, check_choice, check_heads, make_settings
from headcount.pruning.timed import known_costs
from headcount.run import PRUNING, WEIGHTS, Run, load_run, regroup
from headcount.scoring import read_pair, score
from headcount.translation import translate_lines

SCORES = "scores.json"
BASELINE = "baseline.json"
PRICES = "prices.json"
FIGURE = "sweep.svg"
NONE = "none"
"""The method of the baseline."""
TIMED_LINES = 100
TIMED_ROUNDS = 3

Row = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One pruning of a sweep; `costs` is the price list of a speed-up, once it is known."""

    name: str
    settings: PruneSettings
    costs: Costs | None = None


def sweep_items(
    penalties: Iterable[float],
    keeps: Sequence[int | str],
    by: Sequence[str] | None = None,
    seeds: int = 1,
    speedups: Sequence[float] = (),
    engine: str | None = None,
    batch: int | None = None,
    **common: Any,
) -> list[Item]:
    """Every penalty, number of heads and speed-up, in every way to choose them, with every seed.

    A number of heads may be one for each site, `enc=12,enc_ff=48`. `common` are settings that all
    share. Duplicates are pruned once.
    """
    ways = _ways(by or (), {"penalty": penalties, "keep": keeps, "speedup": speedups})
    if (engine or batch) and not speedups:
        raise UserError(
            "--engine and --batch say where a speed-up is measured.",
            "Give --speedups, or leave them out.",
        )
    first = int(common.pop("seed", 1))
    choices: dict[str, dict[str, Any]] = {
        f"penalty-{penalty:.15g}": {"penalty": penalty} for penalty in penalties
    }
    even = common.pop("even", False)
    for method, keep in product(ways["keep"], keeps):
        shown = str(keep).replace("=", "").replace(",", "-").replace(" ", "")
        choices[f"keep-{shown}-{method}"] = {"keep": keep, "by": method, "even": even}
    timing = {"engine": engine, "batch": batch}
    for method, speedup in product(ways["speedup"], speedups):
        choices[f"speedup-{speedup:.15g}-{method}"] = {"speedup": speedup, "by": method, **timing}
    if not choices:
        raise UserError(
            "There is nothing to sweep over.", "Give --penalties, --keep or --speedups."
        )
    return [
        Item(f"{name}-seed{seed}", make_settings(**common, **choice, seed=seed))
        for name, choice in choices.items()
        for seed in range(first, first + seeds)
    ]


def _ways(by: Sequence[str], amounts: Mapping[str, Iterable[float | str]]) -> dict[str, list[str]]:
    """For each thing that says how much stays, the methods to choose with."""
    named: dict[str, list[str]] = {needs: [] for needs in amounts}
    for name in map(canonical, by):
        needs = method_named(name).needs
        if not list(amounts[needs]):
            raise UserError(f"--by {name} needs {NEEDS[needs]}.", "Or leave it out of --by.")
        named[needs].append(name)
    return named | {"keep": named["keep"] or [EXACT], "speedup": named["speedup"] or [TIMED]}


def parse_keeps(text: str) -> list[int | str]:
    """`4,8,16`, or numbers for several sites: `enc=12,enc_ff=48; enc=6,enc_ff=24`."""
    if "=" not in text:
        return parse_numbers(text, int, "--keep")
    return [part.strip() for part in text.split(";") if part.strip()]


def parse_numbers(text: str, kind: type[float], option: str) -> list[Any]:
    """`4,8,16` as numbers of a kind (int or float)."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UserError(
            f"{option} {text}: not a list of numbers.", "Write them with commas: 4,8,16."
        ) from error


def prune_sweep(
    baseline: Path | str,
    train: Path | str,
    out: Path | str,
    items: Sequence[Item],
    *,
    jobs: int = 1,
    progress: Progress = silent,
) -> list[Row]:
    """Prune one run many times; resumable, one table; under torchrun spread over its ranks.

    Runs all prunings that are not finished yet, and writes a table of all, the baseline first.

    Under torchrun every rank runs its share (all ranks must see the folder), and the first one
    waits for the others and writes the table; otherwise `jobs` processes share the work.
    """
    baseline, train, out = Path(baseline), Path(train), Path(out)
    source = load_run(baseline)
    if not source.config.model.decoder_layers:
        raise UserError(
            f"{baseline} is an encoder alone: it has no translations that a sweep could compare.",
            "Call `headcount prune` for each number of heads.",
        )
    check_corpus(source, train)
    resolved = [_checked(source, train, out / item.name, item.settings) for item in items]
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    with owned(out, rank == 0):
        items = _priced(source, train, out, items, resolved, rank, progress)
        mine = items[rank::world]
        if jobs <= 1:
            for item in mine:
                make_item(baseline, train, out, item, progress)
        else:
            _make_in_processes(baseline, train, out, mine, jobs, progress)
        if rank:
            return []
        while not all(_is_scored(out / item.name) for item in items):
            time.sleep(1)
        return _table(source, train, out, items)


def _checked(source: Run, train: Path, folder: Path, settings: PruneSettings) -> PruneSettings:
    """The resolved settings, if the pruning is possible and does not exist with other settings."""
    resolved = settings.resolved(source.config, source.model.heads)
    source = regroup(source, resolved.ff_block)
    check_heads(resolved, source.model.heads, str(source.folder))
    check_choice(resolved, source)
    if (folder / PRUNING).is_file():
        same_record(folder, new_record(source, train, resolved))
    return resolved


def _priced(
    source: Run,
    train: Path,
    out: Path,
    items: Sequence[Item],
    resolved: Sequence[PruneSettings],
    rank: int,
    progress: Progress,
) -> list[Item]:
    """The items; those with a speed-up have one price list, which the first rank has measured.

    So their sizes can be compared, and no list is measured while another pruning trains beside it.
    """
    priced, known = list(items), _read_prices(out)
    if all(settings.speedup is None for settings in resolved):
        return priced
    timed = load_run(source.folder, default_device())
    weights = sha256_of(timed.folder / WEIGHTS)
    for number, settings in enumerate(resolved):
        if settings.speedup is None:
            continue
        names = {"sites", "engine", "batch", "ff_block"}
        of = settings.model_dump(mode="json", include=names)
        key = json.dumps({"weights": weights, **of}, sort_keys=True)
        while rank and key not in known:
            time.sleep(1)
            known = _read_prices(out)
        run = regroup(timed, settings.ff_block)
        costs = known_costs(run, train, settings, progress, known.get(key))
        assert costs is not None
        known[key] = costs
        priced[number] = replace(items[number], costs=costs)
    if known and not rank:  # now that every target is within reach
        write_json(out / PRICES, {key: costs.to_json() for key, costs in known.items()})
    return priced


def _read_prices(out: Path) -> dict[str, Costs]:
    """The price lists of earlier calls, by what they are of."""
    path = out / PRICES
    stored = read_json(path) if path.is_file() else {}
    with parsing(path, "Delete it: prices are then measured anew."):
        return {key: Costs(**costs) for key, costs in stored.items()}


def make_item(
    baseline: Path, train: Path, out: Path, item: Item, progress: Progress = silent
) -> None:
    """One pruning and its scores on the test set, as far as they are not there yet."""
    folder = out / item.name
    if not is_finished(folder):
        prune(
            baseline,
            train,
            folder,
            item.settings,
            resume=folder.exists(),
            costs=item.costs,
            workers=Workers(device=default_device()),
            observe=lambda line: progress(f"Pruning {item.name}", line["update"], None),
        )
    if not _is_scored(folder):
        scores = score_on_test_set(load_run(folder, default_device()), train)
        write_json(folder / SCORES, scores)
    progress(f"Pruning {item.name}", 1, 1)


def score_on_test_set(run: Run, train: Path) -> dict[str, Any]:
    """BLEU with its interval and chrF on the corpus's test set."""
    scores = score(run, *_test_set(run, train))
    bleu, chrf = scores.bleu, scores.chrf
    return {"bleu": bleu.value, "bleu_interval": bleu.interval, "chrf": chrf.value}


def _start_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    end_with_parent()


def _make_in_processes(
    baseline: Path, train: Path, out: Path, items: Sequence[Item], jobs: int, progress: Progress
) -> None:
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker, (threads_for(jobs),))
    with pool:
        futures = [pool.submit(make_item, baseline, train, out, item) for item in items]
        workers = list((pool._processes or {}).values())
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                progress("Pruning", done, len(items))
        except BaseException:
            for worker in workers:  # their work so far is saved, and the next call resumes it
                worker.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _table(source: Run, train: Path, out: Path, items: Sequence[Item]) -> list[Row]:
    """One row per model: heads, quality, size and speed; kept as `sweep.json` and `sweep.csv`."""
    records = [read_record(out / item.name) for item in items]
    rows = [_baseline_row(source, train, out, records)]
    everything = rows[0]["heads"]
    for item, record in zip(items, records, strict=True):
        row = {
            "name": item.name,
            "method": record["method"],
            "penalty": record["settings"]["penalty"],
            "seed": record["settings"]["seed"],
            "updates": record["progress"]["update"],
            "heads": everything | record["heads"],  # earlier versions recorded heads alone
            "dev_loss": record["after"]["dev_loss"],
            "parameters": record["parameters"],
            **_speed(record),
        }
        rows.append(row | _read_scores(out / item.name / SCORES))
    runs = [source, *(load_run(out / item.name) for item in items)]
    lines = spread(_test_set(source, train)[0], TIMED_LINES)
    timings = interleaved([_translation(run, lines) for run in runs], TIMED_ROUNDS)
    for row, timing in zip(rows, timings, strict=True):
        row["seconds_per_sentence"] = timing["translate"].median
    write_json(out / "sweep.json", rows)
    _write_csv(out / "sweep.csv", rows)
    with atomic_path(out / FIGURE) as partial:
        _figure(rows).savefig(partial, format="svg", facecolor="white")
    return rows


def _speed(record: Mapping[str, Any]) -> Row:
    """How much faster a model was to be, should be by the prices, and is; and where."""
    speed = record.get("speed") or {}
    return {name: speed.get(name) for name in ("asked", "promised", "measured", "engine", "batch")}


def _figure(rows: Sequence[Row]) -> Picture:
    """BLEU against speed in this package, and against what was asked of an engine."""
    points = []
    for row in rows:
        way = None if row["method"] == NONE else method_named(row["method"])
        label, colour, mark = (way.label, way.colour, "o") if way else ("baseline", "#222222", "*")
        faster = rows[0]["seconds_per_sentence"] / row["seconds_per_sentence"]
        point = Point(
            "headcount, many sentences at once", faster, row["bleu"], label, colour, mark,
            row["bleu_interval"],
        )  # fmt: skip
        points.append(point)
        if row["asked"] is not None:
            panel = f"{row['engine']}, batch {row['batch']}; hollow: promised"
            points.append(replace(point, panel=panel, speed=row["measured"]))
            points.append(replace(point, panel=panel, speed=row["promised"], solid=False))
    return draw_speeds(points, 2, "times as fast")


def _baseline_row(source: Run, train: Path, out: Path, records: Sequence[Record]) -> Row:
    weights = records[0]["baseline"]["weights"]
    path = out / BASELINE
    stored = read_json(path) if path.exists() else None
    # An earlier sweep in this folder may have had another baseline.
    if not isinstance(stored, dict) or stored.get("weights") != weights:
        write_json(path, {"weights": weights, **score_on_test_set(source, train)})
    before = [record["before"]["dev_loss"] for record in records if "before" in record]
    return {
        "name": "baseline",
        "method": NONE,
        "penalty": None,
        "seed": None,
        "updates": 0,
        "heads": source.model.heads.to_json(),
        "dev_loss": before[0] if before else None,
        "parameters": count_parameters(source.model),
        **_speed({}),
        **_read_scores(path),
    }


def pruned_sites(rows: Sequence[Row]) -> list[str]:
    """The sites of attention, and those at which any row has been pruned."""
    layouts = [rows[0]["heads"] | row["heads"] for row in rows]
    differ = [site for site in layouts[0] if any(h[site] != layouts[0][site] for h in layouts)]
    return [site for site in layouts[0] if site in SITES or site in differ]


def _read_scores(path: Path) -> dict[str, float]:
    """What `score_on_test_set` gave."""
    stored = read_json(path)
    with parsing(path, "Delete it and sweep again: it is made anew."):
        scores = {name: stored[name] for name in ("bleu", "bleu_interval", "chrf")}
        if not all(type(value) in (int, float) and isfinite(value) for value in scores.values()):
            raise ValueError("scores are finite numbers")
    return scores


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The same table, flat: heads by site, and by layer as `2 0 1`."""
    flat = []
    for row in rows:
        heads: dict[str, int | str] = {}
        for site in pruned_sites(rows):
            layers = row["heads"][site]
            heads[f"heads_{site}"] = sum(map(len, layers))
            heads[f"layers_{site}"] = " ".join(str(len(layer)) for layer in layers)
        flat.append({k: v for k, v in row.items() if k != "heads"} | heads)
    write_csv(path, flat, list(flat[0]))


def _translation(run: Run, lines: Sequence[str]) -> dict[str, Callable[[], int]]:
    return {"translate": lambda: len(translate_lines(run, lines))}


def _test_set(run: Run, train: Path) -> tuple[list[str], list[str]]:
    data = run.config.data
    corpus = load_corpus(train, f"{data.source}-{data.target}", check=False)
    return read_pair(corpus.path("test", "source"), corpus.path("test", "target"))


def _is_scored(folder: Path) -> bool:
    return (folder / SCORES).is_file()
