"""One table object, three forms; and the numbers of the paper's tables."""

from __future__ import annotations

import csv
import io
import re

import pytest
from planted import FULL, PlantedModel, keep, plant

from headcount.study.claims import check
from headcount.study.pruning_tables import findings_table
from headcount.study.results import load_results
from headcount.study.study_tables import all_tables, claims_table, mean_spearman
from headcount.study.tables import Column, Table, latex_escape

TABLE = Table(
    "odd",
    "Table 9",
    "50 % of <everything> & more_or_less",
    (Column("name", "na|me"), Column("value", "value", numeric=True, digits=1)),
    (
        {"name": "a|b\nc", "value": 1.25, "hidden": 7},
        {"name": "<script>alert(1)</script>", "value": None, "hidden": None},
        {"name": r"50% & $x_1$ \ {v → s} ~^#", "value": 3.0, "hidden": 1},
    ),
)


@pytest.fixture(scope="module")
def tables(paper_like):
    results = load_results(paper_like)
    return {table.name: table for table in [*all_tables(results), claims_table(check(results))]}


def test_markdown():
    lines = TABLE.markdown().splitlines()
    rows = lines[2:]
    assert rows[1] == "|---|---:|"
    # Every row has the same number of cells: pipes in the text are escaped.
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}
    assert rows[2] == r"| a\|b c | 1.2 |"
    assert "<script>" not in TABLE.markdown()


def test_latex():
    text = TABLE.latex()
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert [line.count(" & ") for line in body] == [1, 1, 1]
    assert all(line.endswith(r"\\") for line in body)
    assert r"\begin{tabular}{lr}" in text
    escaped = latex_escape(r"50% & $x_1$ \ {v → s} ~^#")
    assert escaped == (
        r"50\% \& \$x\_1\$ \textbackslash{} \{v $\rightarrow$ s\} \textasciitilde{}"
        r"\textasciicircum{}\#"
    )


def test_csv_has_all_values():
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert [row["hidden"] for row in rows] == ["7", "", "1"]
    assert rows[0]["name"] == "a|b\nc"
    assert [row["value"] for row in rows] == ["1.25", "", "3.0"]


def test_save(tmp_path):
    TABLE.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.csv", "odd.md", "odd.tex"]


def test_table_1(tables):
    table = tables["table1-dependencies"]
    assert [(row["relation"], row["direction"]) for row in table.rows][:3] == [
        ("nsubj", "v → s"),
        ("nsubj", "s → v"),
        ("obj", "v → o"),
    ]
    first = table.rows[0]
    assert first["EN-RU, OpenSubtitles"] == "77 / 40"
    assert first["EN-RU, OpenSubtitles head"] == "enc.2.0"
    assert first["EN-FR accuracy"] == pytest.approx(0.77)
    assert table.columns[2].sort_value(first) == pytest.approx(0.77)
    assert len(table.columns) == 6


def test_table_2(tables):
    rows = tables["table2-all-sites"].rows
    assert [row["heads"] for row in rows[:5]] == [
        "48/48/48",
        "14/31/30",
        "12/21/25",
        "8/13/15",
        "5/9/12",
    ]
    assert rows[0]["model"] == "baseline"
    assert rows[0]["bleu_scratch"] is None
    assert [row["bleu"] - row["bleu_scratch"] for row in rows[1:5]] == pytest.approx(
        [0.15, 0.30, 0.45, 0.60]
    )
    assert len(rows) == 10


def test_other_tables(tables):
    assert len(tables["models"].rows) == 44
    assert tables["models"].columns[3].text(tables["models"].rows[0]) == "32.40 ± 0.60"
    assert tables["persons"].rows[0]["third"] == pytest.approx(50)
    assert {row["verdict"] for row in tables["claims"].rows} >= {"holds for 4 of 4"}
    assert "bench" not in tables


def test_agreement_by_hand(tmp_path):
    """Two layers of five heads: one in the same order, one in another; four heads are too few."""

    def column(*layers: list[float]) -> dict[str, float]:
        return {f"enc.{i}.{j}": v for i, layer in enumerate(layers) for j, v in enumerate(layer)}

    lrp = column([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4])
    confidence = column([0.1, 0.2, 0.3, 0.4, 0.5], [0.9, 0.3, 0.4, 0.5, 0.6], [4, 3, 2, 1])
    model = PlantedModel("full", columns={"lrp": lrp, "confidence": confidence})
    found = load_results(plant(tmp_path, [model])).model("full")
    # Differences of ranks in layer 1: 4, -1, -1, -1, -1; 1 - 6 * 20 / (5 * 24) = 0.
    assert mean_spearman(found, "lrp", "confidence", "enc") == pytest.approx((1 + 0) / 2)
    assert mean_spearman(found, "lrp", "confidence", "dec") is None


def test_bench(tmp_path):
    from headcount.files import write_json

    study = plant(tmp_path, [PlantedModel("full")])
    timing = {"median": 0.02, "low": 0.01, "high": 0.03}
    write_json(
        study / "bench.json",
        [
            {"run": "full", "heads": {"enc": 48, "dec": 48, "cross": 48}, "parameters": 625_000,
             "file_bytes": 2_500_000, "peak_bytes": 1, "peak_bytes_above_idle": 1,
             "timings": {"greedy, batch 1": timing}, "encode_removed": 0.0,
             "translate_removed": 0.25}
        ],
    )  # fmt: skip
    table = {t.name: t for t in all_tables(load_results(study))}["bench"]
    texts = [column.text(table.rows[0]) for column in table.columns]
    assert texts == ["full", "48/48/48", "2.5", "75", "20.00"]


def test_encoder_prunings_against_the_full_model_and_the_control(tmp_path):
    """Seeds of one setting are one row; the control kept all its heads."""
    names = [str(head) for head in FULL.heads(("enc",))]

    def pruned(name, kept, bleu, **more):
        return PlantedModel(
            name, "pruned", keep(kept), "hard_concrete", ("enc",), "full", bleu=bleu, **more
        )

    models = [
        PlantedModel("full", bleu=30.0),
        pruned("control", names, 31.0, penalty=0.0),
        pruned("p", names[:10], 29.0, penalty=0.02),
        pruned("q", names[:12], 30.0, penalty=0.02, seed=2),
        pruned("small", names[:8], 28.0, penalty=0.001),
        pruned("small2", names, 30.0, penalty=0.001, seed=2),
    ]
    results = load_results(plant(tmp_path, models))
    table = {t.name: t for t in all_tables(results)}["encoder-prunings"]
    control, small, both = table.rows
    assert control["how"].startswith("control: ")
    assert control["against_full"].startswith("+1.00 (")
    assert (both["heads"], both["seeds"], both["bleu"]) == ("10 to 12", 2, 29.5)
    assert both["difference"] == pytest.approx(-0.5)
    assert both["control_difference"] == pytest.approx(-1.5)
    # A small penalty under which one seed has lost nothing is not a control.
    assert (small["heads"], small["control_difference"]) == ("8 to 48", pytest.approx(-2))
    assert [column.key for column in table.columns] == [
        "how", "heads", "seeds", "bleu", "against_full", "against_control",
    ]  # fmt: skip


def test_findings_under_both_readings(tmp_path):
    flat = {f"enc.{layer}.{i}": 1 / 8 for layer in range(6) for i in range(8)}
    sharp = {name: 0.9 if name.endswith(".0") else 0.1 / 7 for name in flat}
    model = PlantedModel("full", columns={"lrp": flat, "lrp_signed": sharp})
    table = findings_table(check(load_results(plant(tmp_path, [model]))))
    rows = {row["id"]: row for row in table.rows}
    first = rows["few-heads-carry-relevance"]
    verdicts = (first["verdict"], first["signed"], first["absolute"])
    assert verdicts == ("holds", "holds", "does not hold")
    assert rows["gates-decide"]["signed"] == ""
    assert "| finding | verdict | signed sums | absolute values |" in table.markdown()
