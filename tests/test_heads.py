"""Heads, the layouts they make up, and the table of what is known of them."""

from __future__ import annotations

import csv
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import UserError
from headcount.heads import ALL_SITES, SITES, Head, HeadLayout, HeadTable, kinds_at, parse_sites

heads = st.builds(Head, st.sampled_from(SITES), st.integers(0, 11), st.integers(0, 15))


@given(heads)
def test_a_head_is_written_and_read(head: Head) -> None:
    assert Head.parse(str(head)) == head
    assert Head.parse(f" {head} ") == head


@pytest.mark.parametrize("text", ["", "enc", "enc.0", "enc.0.1.2", "encoder.0.1", "enc.-1.0"])
def test_what_is_not_a_head(text: str) -> None:
    with pytest.raises(UserError, match="not a head"):
        Head.parse(text)


def test_sites_come_in_their_order() -> None:
    assert parse_sites("cross, enc") == ("enc", "cross")
    for wrong in ("", " , ", "enc,encoder"):
        with pytest.raises(UserError, match="Unknown attention site"):
            parse_sites(wrong)


def test_what_is_at_a_site() -> None:
    assert kinds_at(["enc", "dec"]) == "heads"
    assert kinds_at(["enc", "dec_ff"]) == "heads and blocks of units"
    assert kinds_at(ALL_SITES) == "heads, blocks of units and blocks"


def test_full_layout() -> None:
    layout = HeadLayout.full(3, 2, 4)
    assert [layout.count(site) for site in SITES] == [12, 8, 8]
    assert len(layout.heads()) == len(set(layout.heads())) == 28
    assert layout.heads(["dec"])[:5] == [*(Head("dec", 0, i) for i in range(4)), Head("dec", 1, 0)]


@given(kept=st.sets(heads), sites=st.sets(st.sampled_from(SITES)))
def test_keeping(kept: set[Head], sites: set[str]) -> None:
    full = HeadLayout.full(3, 2, 4)
    smaller = full.keeping(kept, sites)
    expected = [h for h in full.heads() if h.site not in sites or h in kept]
    assert smaller.heads() == expected
    assert [len(smaller.layers[site]) for site in SITES] == [3, 2, 2]  # layers may be empty
    assert HeadLayout.from_json(smaller.to_json(), "here") == smaller


@pytest.mark.parametrize(
    "value", [None, 3, [], {}, {"enc": [[0]], "dec": [[0]]}, {s: [["x"]] for s in SITES}]
)
def test_layouts_that_are_none(value: Any) -> None:
    with pytest.raises(UserError, match=r"heads\.json does not hold what it should"):
        HeadLayout.from_json(value, "heads.json")


def test_rows_are_sorted_and_unique() -> None:
    table = HeadTable(
        [Head("cross", 0, 0), Head("enc", 1, 0), Head("enc", 0, 11), Head("enc", 1, 0)]
    )
    assert [row["head"] for row in table.rows()] == ["enc.0.11", "enc.1.0", "cross.0.0"]


def test_columns_stay_when_others_come(tmp_path: Path) -> None:
    all_heads = HeadLayout.full(1, 1, 2).heads()
    table = HeadTable(all_heads)
    table.add("confidence", {head: 0.5 + 0.1 * head.index for head in all_heads})
    table.add("role", {all_heads[1]: "positional"})
    table.save(tmp_path)
    again = HeadTable.load(tmp_path, all_heads)
    assert again.rows() == table.rows()
    again.add("confidence", {all_heads[0]: 1.0})  # replaces the whole column
    again.save(tmp_path)
    final = HeadTable.load(tmp_path, all_heads)
    assert final["confidence"] == {all_heads[0]: 1.0}
    assert final["role"] == {all_heads[1]: "positional"}
    with open(tmp_path / "head-table.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["role"] for row in rows] == ["", "positional", "", "", "", ""]
    assert rows[0]["confidence"] == "1.0"


def test_a_pruned_model_reads_only_its_own_rows(tmp_path: Path) -> None:
    full = HeadLayout.full(1, 1, 2).heads()
    table = HeadTable(full)
    table.add("confidence", dict.fromkeys(full, 0.5))
    table.save(tmp_path)
    assert set(HeadTable.load(tmp_path, full[:2])["confidence"]) == set(full[:2])


def test_stray_heads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"not in the table: \['dec\.0\.0'\]"):
        HeadTable([Head("enc", 0, 0)]).add("x", {Head("dec", 0, 0): 1})


def test_no_table_yet(tmp_path: Path) -> None:
    table = HeadTable.load(tmp_path, [Head("enc", 0, 0)])
    assert table.columns == {}


def test_a_notebook_shows_the_table() -> None:
    table = HeadTable([Head("enc", 0, 0)])
    table.add("<x>", {Head("enc", 0, 0): 0.12345})
    html = table._repr_html_()
    assert "<td>0.1235</td>" in html or "<td>0.1234</td>" in html
    assert "&lt;x&gt;" in html


def table_of_four() -> HeadTable:
    table = HeadTable(HeadLayout.full(2, 1, 2).heads(["enc"]))
    table.add("lrp", {head: 0.1 * head.layer + 0.2 * head.index for head in table.heads[:3]})
    table.add("role", {table.heads[0]: "positional"})
    return table


def test_a_table_prints_as_a_table() -> None:
    assert str(table_of_four()).split("\n") == [
        "   head     lrp        role",
        "enc.0.0  0.0000  positional",
        "enc.0.1  0.2000",
        "enc.1.0  0.1000",
        "enc.1.1",
    ]
    assert len(table_of_four()) == 4


def test_heads_are_found_by_name() -> None:
    column = table_of_four()["lrp"]
    assert column["enc.0.1"] == column[Head("enc", 0, 1)] == pytest.approx(0.2)
    assert "enc.0.1" in column
    assert "enc.1.1" not in column
    with pytest.raises(KeyError, match=r"enc\.1\.1"):
        column["enc.1.1"]
    with pytest.raises(UserError, match=r"'enc\.1' is not a head"):
        column["enc.1"]
    with pytest.raises(UserError, match=r"no column 'lpr'\. It has: lrp, role"):
        table_of_four()["lpr"]


def test_a_table_is_sorted_by_a_column() -> None:
    table = table_of_four()
    assert [str(head) for head in table.sort("lrp").heads] == [
        "enc.0.1", "enc.1.0", "enc.0.0", "enc.1.1",
    ]  # fmt: skip
    assert str(table.heads[0]) == "enc.0.0"  # the table itself stays


def test_pandas_is_asked_for_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pandas is not installed"):
        table_of_four().to_pandas()
    frames = types.ModuleType("pandas")
    frames.DataFrame = lambda rows: types.SimpleNamespace(  # type: ignore[attr-defined]
        set_index=lambda name: {row.pop(name): row for row in rows}
    )
    monkeypatch.setitem(sys.modules, "pandas", frames)
    assert table_of_four().to_pandas()["enc.0.1"]["lrp"] == pytest.approx(0.2)


def test_a_plot_has_a_panel_per_site() -> None:
    table = HeadTable(HeadLayout.full(2, 1, 3).heads())
    table.add("role", {table.heads[0]: "positional"})
    table.add("lrp", {head: float(head.index) for head in table.heads})
    figure = table.plot()
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert [image.shape for image in images] == [(2, 3), (1, 3), (1, 3)]
    assert images[0][1].tolist() == [0.0, 1.0, 2.0]
