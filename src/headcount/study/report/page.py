"""The page: one HTML file that needs nothing else and loads nothing else.

Everything that comes from data is escaped: by Jinja in HTML, by `embed` in JSON. A content security
policy allows the page's own script and style only, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from headcount.errors import UserError
from headcount.heads import SITE_NAMES, SITES
from headcount.study.cases import cases_of
from headcount.study.claims.verdict import FAILS, HOLDS, MIXED, UNDECIDED, UNTESTABLE, Verdict
from headcount.study.explorer import ModelAttention, fit
from headcount.study.figures import ANIMATION
from headcount.study.figures.drawing import OTHER, Drawing, Nothing, function_colours
from headcount.study.figures.gates import watched_model
from headcount.study.recipe import FULL
from headcount.study.report.story import (
    cards_of,
    claims_line,
    commands_left,
    findings_seen,
    headline,
    seeds_line,
    story,
)
from headcount.study.results import StudyModel, StudyResults
from headcount.study.study_tables import describe
from headcount.study.tables import Table

LIMIT = 15_000_000
"""Bytes of a page at most."""
MARGIN = 500_000
GATE_STEPS = 60
PIXELS_PER_INCH = 144
"""A figure's letters are then about as large as the page's."""
SCRIPTS = ("report.js", "drawing.js", "explorer.js")
CLASSES = {
    HOLDS: "holds",
    MIXED: "mixed",
    UNDECIDED: "undecided",
    FAILS: "fails",
    UNTESTABLE: "untestable",
}


def render_page(
    results: StudyResults,
    verdicts: Sequence[Verdict],
    tables: Sequence[Table],
    figures: Sequence[Drawing | Nothing],
    attention: Sequence[ModelAttention],
) -> str:
    """The whole page; it has as many sentences to explore as fit."""
    text = _render(results, verdicts, tables, figures, [])
    room = LIMIT - MARGIN - len(text.encode())
    fitting = fit(attention, max(0, room))
    text = _render(results, verdicts, tables, figures, fitting)
    if len(text.encode()) > LIMIT:
        raise UserError(
            f"The page would have {len(text.encode()) / 1e6:.0f} MB, more than {LIMIT / 1e6:.0f}.",
            "Split the study: its tables and figures alone are too large for one page.",
        )
    return text


def _render(
    results: StudyResults,
    verdicts: Sequence[Verdict],
    tables: Sequence[Table],
    figures: Sequence[Drawing | Nothing],
    attention: Sequence[ModelAttention],
) -> str:
    drawn = [figure for figure in figures if isinstance(figure, Drawing)]
    widths = {d.name: round(PIXELS_PER_INCH * d.figure.get_figwidth()) for d in drawn}
    sizes = "".join(f"  #{name} {{ width: {width}px; }}\n" for name, width in widths.items())
    style, script = page_parts()
    style += f"@media screen {{\n{sizes}}}\n"
    shown = [explored for explored in attention if explored.sentences]
    page = _read("report.html")
    empty = [figure for figure in figures if isinstance(figure, Nothing)]
    folded = [verdict for verdict in verdicts if verdict.verdict == UNTESTABLE]
    return (
        environment()
        .get_template("report.html")
        .render(
            policy=content_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            results=results,
            seeds=seeds_line(results),
            headline=headline(results),
            seen=findings_seen(verdicts),
            story=story(results),
            todo=commands_left(results, bool(shown)),
            cards=cards_of(results),
            claims_line=claims_line([v for v in verdicts if results.is_study or v not in folded]),
            verdicts=verdicts,
            folded=folded if results.is_study else [],
            untestable=UNTESTABLE,
            classes=CLASSES,
            has=_sections(results, verdicts, [*drawn, *tables]),
            tables={table.name: table for table in tables},
            figures={drawing.name: drawing for drawing in drawn},
            nothing={figure.name: figure.sentence for figure in empty},
            unplaced=[drawing.name for drawing in drawn if f'figure("{drawing.name}")' not in page],
            images={drawing.name: _image(results, drawing.name) for drawing in drawn},
            phone_images={d.name: _image(results, f"{d.name}-phone") for d in drawn if d.phone},
            widths=widths,
            animation=ANIMATION,
            gates=embed(_gates(results)),
            explorer=embed(_explorer(results, shown)),
            attention=[embed([s.to_json() for s in explored.sentences]) for explored in shown],
            sentences=max((len(explored.sentences) for explored in shown), default=0),
            site_names=SITE_NAMES,
        )
    )


def environment() -> Environment:
    """Templates of this folder, with all values escaped."""
    jinja = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    jinja.filters["tight"] = lambda text: str(text).replace(" %", "\u00a0%")
    return jinja


def page_parts() -> tuple[str, str]:
    """Style and script of a page with an explorer."""
    return _read("report.css"), "\n".join(_read(name) for name in SCRIPTS)


def embed(value: Any) -> Markup:
    """JSON that is safe inside a `<script>` element, with any strings in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def content_policy(style: str, script: str) -> str:
    """Nothing may be loaded, and nothing may run, but what is in the page."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _read(name: str) -> str:
    return (files("headcount.study.report") / name).read_text(encoding="utf-8")


def _sections(
    results: StudyResults, verdicts: Sequence[Verdict], shown: Sequence[Drawing | Table]
) -> dict[str, bool]:
    """Which sections have something to show."""
    names = {drawing.name for drawing in shown}
    return {
        "functions": any(model.roles for model in results.models)
        or bool(names & {"specialisation", "agreement"}),
        "pruning": any(model.pruning or model.kind != FULL for model in results.models),
        "claims": any(verdict.verdict != UNTESTABLE for verdict in verdicts),
    }


def _image(results: StudyResults, name: str) -> str:
    """A figure as a data URI."""
    svg = (results.out / "figures" / f"{name}.svg").read_bytes()
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


def _gates(results: StudyResults) -> dict[str, Any] | None:
    """Gates over training in per cent, at a limited number of points in time."""
    model = watched_model(results)
    if model is None or model.gates is None:
        return None
    gates = model.gates
    last = len(gates.updates) - 1
    count = min(GATE_STEPS, last + 1)
    times = [round(i * last / max(1, count - 1)) for i in range(count)]
    kept = set(model.heads.heads())
    return {
        "model": model.id,
        "heads": [str(head) for head in gates.heads],
        "kept": [head in kept for head in gates.heads],
        "updates": [gates.updates[time] for time in times],
        "open": [[round(100 * p) for p in gates.probabilities[time]] for time in times],
    }


def _explorer(results: StudyResults, attention: Sequence[ModelAttention]) -> dict[str, Any]:
    """What the explorer needs besides attention: models, their heads, measures and roles."""
    labels = {
        model.id: case.label
        for case in cases_of(results)
        for model in (case.full, *case.pruned, *case.scratch)
    }
    models = [results.model(explored.model) for explored in attention]
    return {
        "sites": {site: SITE_NAMES[site] for site in SITES},
        "colours": function_colours(),
        "other": OTHER,
        "models": [_model(model, labels.get(model.id, "")) for model in models],
    }


def _model(model: StudyModel, label: str) -> dict[str, Any]:
    heads = model.heads.heads()
    measures = [name for name in model.table.columns if _is_number(model, name)]
    return {
        "id": model.id,
        "label": label,
        "how": describe(model),
        "baseline": model.baseline,
        "bleu": model.bleu,
        "layers": {site: [list(i) for i in model.heads.layers[site]] for site in SITES},
        "measures": measures,
        "values": {
            str(head): [_rounded(model.table.columns[name].get(head)) for name in measures]
            for head in heads
        },
        "roles": {str(head): _roles(model, head) for head in heads if _roles(model, head)},
    }


def _is_number(model: StudyModel, name: str) -> bool:
    """Whether a column of the head table is a measure."""
    values = model.table.columns[name].values()
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return bool(numbers) and len(numbers) == len(values) and name != "random"


def _rounded(value: Any) -> float | None:
    return None if value is None else float(f"{float(value):.4g}")


def _roles(model: StudyModel, head: Any) -> list[Mapping[str, Any]]:
    roles = [] if model.roles is None else model.roles.of(head)
    return [
        {
            "kind": role.kind,
            "name": str(role),
            "label": role.label,
            "score": round(role.value, 4),
            "baseline": round(role.baseline, 4),
        }
        for role in roles
    ]
