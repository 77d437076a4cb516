"""What pruning costs: every setting of an encoder pruning with paired tests, and the findings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headcount.pruning.methods import method_named
from headcount.study.cases import Case, by_setting, cases_of, retained
from headcount.study.claims.amounts import bleu_difference, mean
from headcount.study.claims.verdict import NAMES, Verdict
from headcount.study.results import StudyModel, StudyResults
from headcount.study.tables import Cell, Column, Table

ENCODER = ("enc",)


def encoder_prunings_table(results: StudyResults) -> Table | None:
    """Encoder prunings: heads left, BLEU, and the difference from the full model and the control.

    The control (`Case.controls`) was fine-tuned as long as the others with all of its heads. It
    tells what fine-tuning alone does.
    """
    rows = [row for case in cases_of(results) for row in _rows(case)]
    if not rows:
        return None
    columns = [
        Column("setting", "setting"),
        Column("how", "heads chosen"),
        Column("heads", "heads left", True, by="heads_mean"),
        Column("seeds", "seeds", True),
        Column("bleu", "BLEU", True),
        Column("against_full", "against the full model (95 %)", True, by="difference"),
        Column("against_control", "against the control (95 %)", True, by="control_difference"),
    ]
    hidden = {"seeds"} if all(row["seeds"] == 1 for row in rows) else set()
    if not any("against_control" in row for row in rows):
        hidden.add("against_control")
    return Table(
        "encoder-prunings",
        "Encoder prunings",
        "Test BLEU of models with fewer encoder heads, and its difference from that of the full"
        " model"
        + (
            ""
            if "against_control" in hidden
            else " and of a control that was fine-tuned as long with all its heads"
        )
        + ", with 95 % intervals of the paired bootstrap over sentences"
        + (
            "."
            if "seeds" in hidden
            else ", and over seeds where there are several; where there is one, the interval says"
            " nothing about what another seed would give."
        ),
        tuple(column for column in columns if column.key not in hidden),
        tuple(rows),
    )


def _rows(case: Case) -> list[dict[str, Cell]]:
    scored = [model for model in case.pruned_at(ENCODER) if model.bleu is not None]
    if case.full.bleu is None:
        return []
    # Where there are controls of several kinds, those with most seeds are compared with.
    settings = by_setting(model for model in case.controls(ENCODER) if model in scored)
    controls = max(settings, key=len, default=[])
    rows = []
    for models in by_setting(scored):
        heads = [retained(model, ENCODER) for model in models]
        row: dict[str, Cell] = {
            "setting": case.label,
            "how": method_named(str(models[0].method)).label,
            "heads": _span(heads),
            "heads_mean": mean(heads),
            "seeds": len(models),
            "bleu": mean([model.bleu or 0.0 for model in models]),
            **_compared(models, [case.full], "full"),
        }
        if models in settings:
            row["how"] = f"control: {row['how']}"
        elif controls:
            row |= _compared(models, controls, "control")
        rows.append(row)
    return sorted(rows, key=lambda row: -float(row["heads_mean"] or 0))


def _compared(
    models: Sequence[StudyModel], others: Sequence[StudyModel], name: str
) -> dict[str, Cell]:
    """A difference as people read it, and as numbers."""
    difference = bleu_difference(models, others)
    known = math.isfinite(difference.half_width)
    begin = "" if name == "full" else f"{name}_"
    interval = f" ({difference.low:+.2f} to {difference.high:+.2f})" if known else ""
    return {
        f"against_{name}": f"{difference.value:+.2f}{interval}",
        f"{begin}difference": difference.value,
        f"{begin}difference_low": difference.low if known else None,
        f"{begin}difference_high": difference.high if known else None,
        f"{begin}paired": int(difference.paired),
    }


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def findings_table(verdicts: Sequence[Verdict]) -> Table:
    """The paper's findings in a line each; those about relevance under both readings."""
    rows: list[dict[str, Cell]] = [
        {
            "section": verdict.claim.section,
            "statement": verdict.claim.statement,
            "verdict": verdict.label,
            **{key: _under(verdict, reading) for key, reading in NAMES.items()},
            "id": verdict.claim.id,
        }
        for verdict in verdicts
    ]
    readings = {key: name for key, name in NAMES.items() if any(row[key] for row in rows)}
    columns = [
        Column("section", "paper"),
        Column("statement", "finding"),
        Column("verdict", "verdict"),
    ]
    columns += [Column(key, name) for key, name in readings.items()]
    return Table(
        "findings",
        "Findings",
        "The paper's findings and their verdicts"
        + (
            "; those about relevance also by each reading. The paper's, which the verdict follows,"
            " is signed sums."
            if readings
            else "."
        ),
        tuple(columns),
        tuple(rows),
    )


def _under(verdict: Verdict, reading: str) -> str:
    """The verdict of one reading; of several models, for how many it holds."""
    read = [(label, dict(finding.readings)) for label, finding in verdict.findings]
    findings = tuple((label, readings[reading]) for label, readings in read if reading in readings)
    return Verdict(verdict.claim, findings).label if findings else ""
