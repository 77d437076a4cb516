"""`headcount prune-sweep`: many prunings of one baseline, and one table of the results.

Every pruning has its own folder, which shows whether it is finished, so that a sweep can be killed
at any moment and resumed without repeating anything. Prunings share nothing and can run in several
processes, or on the ranks that torchrun gives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from math import isfinite
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from headcount.bench.runs import interleaved
from headcount.data.cleaning import spread
from headcount.data.corpus_folder import load_corpus
from headcount.distribution import Workers, default_device
from headcount.errors import UserError
from headcount.files import owned, parsing, read_json, write_csv, write_json
from headcount.heads import SITES
from headcount.model.arithmetic import count_parameters
from headcount.processes import end_with_parent, threads_for
from headcount.progress import Progress, silent
from headcount.pruning.methods import EXACT, canonical
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
from headcount.run import PRUNING, Run, load_run, regroup
from headcount.scoring import read_pair, score
from headcount.translation import translate_lines

SCORES = "scores.json"
BASELINE = "baseline.json"
TIMED_LINES = 100
TIMED_ROUNDS = 3

Row = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One pruning of a sweep."""

    name: str
    settings: PruneSettings


def sweep_items(
    penalties: Iterable[float],
    keeps: Sequence[int],
    by: Sequence[str] | None = None,
    seeds: int = 1,
    **common: Any,
) -> list[Item]:
    """Every penalty, and every number of heads with every way to choose them, with every seed.

    `common` are settings that all share. Duplicates are pruned once.
    """
    if by and not keeps:
        raise UserError(
            f"--by {','.join(by)} needs a number of heads.", "Give --keep, or leave --by out."
        )
    first = int(common.pop("seed", 1))
    choices: dict[str, dict[str, Any]] = {
        f"penalty-{penalty:.15g}": {"penalty": penalty} for penalty in penalties
    }
    even = common.pop("even", False)
    for name, keep in product(by or [EXACT], keeps):
        method = canonical(name)
        choices[f"keep-{keep}-{method}"] = {"keep": keep, "by": method, "even": even}
    if not choices:
        raise UserError("There is nothing to sweep over.", "Give --penalties or --keep.")
    return [
        Item(f"{name}-seed{seed}", make_settings(**common, **choice, seed=seed))
        for name, choice in choices.items()
        for seed in range(first, first + seeds)
    ]


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
    for item in items:
        _check_item(source, train, out / item.name, item.settings)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    mine = list(items)[rank::world]
    with owned(out, rank == 0):
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


def _check_item(source: Run, train: Path, folder: Path, settings: PruneSettings) -> None:
    """Stop if a pruning is impossible, or already exists with other settings."""
    resolved = settings.resolved(source.config)
    source = regroup(source, resolved.ff_block)
    check_heads(resolved, source.model.heads, str(source.folder))
    check_choice(resolved, source)
    if (folder / PRUNING).is_file():
        same_record(folder, new_record(source, train, resolved))


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
        }
        rows.append(row | _read_scores(out / item.name / SCORES))
    runs = [source, *(load_run(out / item.name) for item in items)]
    lines = spread(_test_set(source, train)[0], TIMED_LINES)
    timings = interleaved([_translation(run, lines) for run in runs], TIMED_ROUNDS)
    for row, timing in zip(rows, timings, strict=True):
        row["seconds_per_sentence"] = timing["translate"].median
    write_json(out / "sweep.json", rows)
    _write_csv(out / "sweep.csv", rows)
    return rows


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
        "method": "none",
        "penalty": None,
        "seed": None,
        "updates": 0,
        "heads": source.model.heads.to_json(),
        "dev_loss": before[0] if before else None,
        "parameters": count_parameters(source.model),
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
