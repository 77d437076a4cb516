"""The tables of a study: the paper's two, and the numbers behind its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import torch

from headcount.heads import SITES
from headcount.pruning.methods import method_named
from headcount.ranking.agreement import MIN_HEADS, comparisons, spearman
from headcount.ranking.measures import MEASURES
from headcount.role.head_roles import BestHead
from headcount.role.relations import PAPER_RELATIONS
from headcount.study.cases import Case, cases_of, first_seeds, retained
from headcount.study.claims.verdict import Verdict
from headcount.study.pruning_tables import encoder_prunings_table
from headcount.study.recipe import FULL, SCRATCH
from headcount.study.results import StudyModel, StudyResults
from headcount.study.tables import Cell, Column, Table


def all_tables(results: StudyResults) -> list[Table]:
    """Every table that the study has something to put into."""
    makers: Sequence[Callable[[StudyResults], Table | None]] = (
        dependency_table,
        pruning_table,
        encoder_prunings_table,
        models_table,
        agreement_table,
        persons_table,
        bench_table,
    )
    tables = [table for make in makers if (table := make(results)) is not None]
    return [_without_single_setting(table) for table in tables]


def _without_single_setting(table: Table) -> Table:
    """The column of settings is left out if all rows have the same one."""
    if len({row.get("setting") for row in table.rows}) > 1:
        return table
    return replace(table, columns=tuple(c for c in table.columns if c.key != "setting"))


def dependency_table(results: StudyResults) -> Table | None:
    """Table 1: the best head against the positional baseline, both directions, all settings."""
    cases = [c for c in first_seeds(cases_of(results)) if c.full.roles and c.full.roles.relations]
    if not cases:
        return None
    keys: dict[tuple[str, str], BestHead] = {}
    best: dict[tuple[str, str, str], BestHead] = {}
    for case in cases:
        assert case.full.roles is not None
        for line in _paper_first(case.full.roles.relations):
            keys.setdefault((line.relation, line.direction), line)
            best[line.relation, line.direction, case.label] = line
    rows: list[dict[str, Cell]] = []
    for (relation, direction), first in keys.items():
        row: dict[str, Cell] = {"relation": relation, "direction": first.arrow}
        for case in cases:
            row |= _dependency_cells(case.label, best.get((relation, direction, case.label)))
        rows.append(row)
    columns = [Column("relation", "relation"), Column("direction", "direction")]
    columns += [
        Column(case.label, f"{case.label}: best head / baseline", True, by=f"{case.label} accuracy")
        for case in cases
    ]
    return Table(
        "table1-dependencies",
        "Table 1",
        "Dependency scores: accuracy of the best encoder head / of the positional baseline, in"
        " per cent. The CSV file has heads, instances and 95 % intervals.",
        tuple(columns),
        tuple(rows),
    )


def _dependency_cells(label: str, line: BestHead | None) -> dict[str, Cell]:
    if line is None or line.score.value is None or line.baseline.value is None:
        return {label: None}
    return {
        label: f"{100 * line.score.value:.0f} / {100 * line.baseline.value:.0f}",
        f"{label} head": str(line.head),
        f"{label} accuracy": line.score.value,
        f"{label} accuracy_low": line.score.low,
        f"{label} accuracy_high": line.score.high,
        f"{label} baseline": line.baseline.value,
        f"{label} margin_low": line.margin.low,
        f"{label} margin_high": line.margin.high,
        f"{label} instances": line.instances,
    }


def _paper_first(lines: Sequence[BestHead]) -> list[BestHead]:
    """The paper's relations in its order; others after them."""
    names = list(PAPER_RELATIONS)
    return sorted(
        lines, key=lambda line: names.index(line.relation) if line.relation in names else len(names)
    )


def pruning_table(results: StudyResults) -> Table | None:
    """Table 2: heads left at each site, BLEU of the pruned model and of its from-scratch twin."""
    rows: list[dict[str, Cell]] = []
    for case in cases_of(results):
        if not case.all_sites_learned:
            continue
        rows.append(_pruning_row(case, case.full, None) | {"model": "baseline"})
        twins = {pruned.id: scratch for pruned, scratch in case.twins()}
        for model in case.all_sites_learned:
            rows.append(_pruning_row(case, model, twins.get(model.id)))
    if not rows:
        return None
    return Table(
        "table2-all-sites",
        "Table 2",
        "BLEU with heads pruned in all attention: encoder self-attention / decoder self-attention"
        " / decoder-encoder attention; fine-tuned from the trained model, and models with the same"
        " heads trained from scratch.",
        (
            Column("setting", "setting"),
            Column("model", "model"),
            Column("heads", "heads (e/d/d-e)", by="total"),
            Column("bleu", "BLEU from trained", True),
            Column("bleu_scratch", "BLEU from scratch", True),
        ),
        tuple(rows),
    )


def _pruning_row(case: Case, model: StudyModel, scratch: StudyModel | None) -> dict[str, Cell]:
    return {
        "setting": case.label,
        "model": "control" if model in case.controls(SITES) else "sparse heads",
        "id": model.id,
        "heads": "/".join(str(model.heads.count(site)) for site in SITES),
        "bleu": model.bleu,
        "bleu_scratch": None if scratch is None else scratch.bleu,
        "total": retained(model),
        "bleu_interval": model.scores.bleu_interval,
        "bleu_scratch_interval": None if scratch is None else scratch.scores.bleu_interval,
        "penalty": model.penalty,
        "seed": model.seed,
    }


def models_table(results: StudyResults) -> Table:
    """All models: heads, quality and size."""
    rows = [_model_row(model) for model in results.models]
    columns = [
        Column("id", "model"),
        Column("how", "how"),
        Column("heads", "heads (e/d/d-e)", by="total"),
        Column("bleu_shown", "BLEU", True, by="bleu"),
        Column("chrf", "chrF", True),
        Column("dev_loss", "dev loss", True, 3),
        Column("parameters", "parameters", True),
    ]
    shown = [c for c in columns if any(row.get(c.key) not in (None, "") for row in rows)]
    return Table(
        "models",
        "Models",
        "Every model: heads left, test BLEU with half its 95 % interval, chrF, loss on the"
        " development set in nats per token, and size.",
        tuple(shown),
        tuple(rows),
    )


def _model_row(model: StudyModel) -> dict[str, Cell]:
    scores = model.scores
    spread = "" if scores.bleu_interval is None else f" ± {scores.bleu_interval:.2f}"
    return {
        "id": model.id,
        "how": describe(model),
        "heads": "/".join(str(model.heads.count(site)) for site in SITES),
        "bleu_shown": None if scores.bleu is None else f"{scores.bleu:.2f}{spread}",
        "chrf": scores.chrf,
        "dev_loss": scores.dev_loss,
        "parameters": scores.parameters,
        "total": retained(model),
        "bleu": scores.bleu,
        "bleu_interval": scores.bleu_interval,
        "lines": scores.lines,
        "kind": model.kind,
        "method": model.method,
        "penalty": model.penalty,
        "keep": model.keep,
        "seed": model.seed,
        "signature": scores.bleu_signature,
    }


def describe(model: StudyModel) -> str:
    """How a model was obtained, in a few words."""
    if model.kind == FULL:
        return "full model"
    if model.kind == SCRATCH:
        return f"from scratch, heads of {model.baseline}"
    how = method_named(str(model.method)).label
    amount = ""
    if model.penalty is not None:
        amount = f", penalty {model.penalty:g}"
    elif model.keep is not None:
        amount = f", keep {model.keep}"
    return f"pruned: {how}{amount} ({', '.join(model.sites)})"


def agreement_table(results: StudyResults) -> Table | None:
    """How far measures of importance agree within the layers of the full models."""
    rows: list[dict[str, Cell]] = []
    for case in cases_of(results):
        known = [name for name in MEASURES if case.full.column(name)]
        for first, second in combinations(known, 2):
            row: dict[str, Cell] = {"setting": case.label, "first": first, "second": second}
            means: dict[str, Cell] = {
                site: mean_spearman(case.full, first, second, site) for site in SITES
            }
            if any(mean is not None for mean in means.values()):
                rows.append(row | means)
    if not rows:
        return None
    return Table(
        "agreement",
        "Agreement",
        "Spearman's rank correlation between measures of importance, mean over the layers of each"
        " site of the full model.",
        (
            Column("setting", "setting"),
            Column("first", "measure"),
            Column("second", "and"),
            *(Column(s, s, True) for s in SITES if any(row[s] is not None for row in rows)),
        ),
        tuple(rows),
    )


def mean_spearman(model: StudyModel, first: str, second: str, site: str) -> float | None:
    """Mean over layers of the rank correlation of two columns; None where nothing can be ranked.

    Layers with fewer than `MIN_HEADS` heads are left out: so few agree too often by chance.
    """
    a, b = model.column(first), model.column(second)
    correlations = []
    for layer in range(len(model.heads.layers[site])):
        heads = [head for head in model.layer(site, layer) if head in a and head in b]
        if len(heads) < MIN_HEADS:
            continue
        pair = torch.tensor([[column[head] for head in heads] for column in (a, b)])
        value = float(spearman(*comparisons(pair)))
        if value == value:  # not NaN: neither measure is constant
            correlations.append(value)
    return sum(correlations) / len(correlations) if correlations else None


def persons_table(results: StudyResults) -> Table | None:
    """Grammatical person of subjects, by which the paper explains differences between domains."""
    rows: list[dict[str, Cell]] = []
    for case in first_seeds(cases_of(results)):
        persons = None if case.full.roles is None else case.full.roles.persons
        if persons and persons.get("subjects"):
            shares = {name: _percent(persons.get(name)) for name in ("first", "second", "third")}
            rows.append({"setting": case.label, **shares, "subjects": persons["subjects"]})
    if not rows:
        return None
    return Table(
        "persons",
        "Persons",
        "Grammatical person of subjects in the analysed sentences, per cent (Sec. 5.2, footnote).",
        (
            Column("setting", "setting"),
            *(Column(name, name, True, 0) for name in ("first", "second", "third")),
            Column("subjects", "subjects", True),
        ),
        tuple(rows),
    )


def bench_table(results: StudyResults) -> Table | None:
    """Speed, memory and size, measured side by side."""
    rows: list[dict[str, Cell]] = []
    timings: list[str] = []
    for timed in results.bench:
        row: dict[str, Cell] = {
            "run": str(timed["run"]).rstrip("/").rsplit("/", 1)[-1],
            "heads": "/".join(str(timed["heads"][site]) for site in SITES),
            "total": sum(timed["heads"].values()),
            "parameters": timed["parameters"],
            "megabytes": 4 * timed["parameters"] / 1e6,
            "arithmetic": 100 * (1 - timed["translate_removed"]),
        }
        for name, timing in timed["timings"].items():
            row[name] = 1000 * timing["median"]
            row[f"{name} low"], row[f"{name} high"] = 1000 * timing["low"], 1000 * timing["high"]
            timings = list(dict.fromkeys([*timings, name]))
        rows.append(row)
    if not rows:
        return None
    return Table(
        "bench",
        "Speed",
        "Milliseconds per sentence (median over rounds), size in float32, and the arithmetic that"
        " is left of the first model's, per cent.",
        (
            Column("run", "model"),
            Column("heads", "heads (e/d/d-e)", by="total"),
            Column("megabytes", "MB", True, 1),
            Column("arithmetic", "arithmetic, %", True, 0),
            *(Column(name, name, True) for name in timings),
        ),
        tuple(rows),
    )


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """Every claim with its criterion, its verdict and the numbers behind it."""
    return Table(
        "claims",
        "Claims",
        "Findings of the paper as statements about this study; criteria were fixed beforehand and"
        " verdicts are computed.",
        (
            Column("section", "paper"),
            Column("statement", "claim"),
            Column("criterion", "criterion"),
            Column("verdict", "verdict"),
            Column("reason", "found here"),
        ),
        tuple(
            {
                "section": verdict.claim.section,
                "statement": verdict.claim.statement,
                "criterion": verdict.claim.criterion,
                "verdict": verdict.label,
                "reason": verdict.reason,
                "id": verdict.claim.id,
            }
            for verdict in verdicts
        ),
    )


def _percent(share: float | int | None) -> float | None:
    return None if share is None else 100.0 * share
