"""What all verbs print alike: a line that fits the terminal, and text that cannot steer it."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import cast

import pytest

from headcount.cli.console import LINE_SECONDS, SafeConsole, StageReporter, StatusLine, clock
from headcount.cli.prune_display import plan_lines, plan_table
from headcount.cli.train import TrainingDisplay
from headcount.config import TrainingConfig
from headcount.heads import ALL_SITES
from headcount.pruning.plan import Plan, Row

TRAIN = {
    "kind": "train",
    "update": 12345,
    "epoch": 7,
    "loss": 3.41234,
    "source_tokens_per_second": 12345.6,
    "seconds": 4321.0,
}
DEV = [{"kind": "dev", "update": 6000 * i, "dev_loss": 2.4, "dev_bleu": 20.0 + i} for i in (1, 2)]


def drawn(what: object, width: int) -> list[str]:
    console = SafeConsole(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_what_matters_comes_before_the_bar(width: int) -> None:
    display = TrainingDisplay(TrainingConfig(updates=20_000))
    for line in [TRAIN, *DEV]:
        display.take(line)
    line = drawn(display.render(), width)[0]
    assert len(line) == width
    wanted = ["loss 3.412", "12346 tokens/s", "best BLEU 22.00", "44:39 left"]
    wanted = wanted[:3] if width == 60 else wanted
    assert line.startswith("  ".join(wanted))
    assert line.count("━") + line.count("╸") >= 4
    if width == 200:
        assert "update 12345  epoch 8" in line


@pytest.mark.parametrize("width", [1, 5, 20])
def test_a_terminal_that_is_far_too_narrow(width: int) -> None:
    assert all(len(line) <= width for line in drawn(StatusLine(["loss 3.412"], 0.5), width))


def test_without_bleu_the_loss_is_shown() -> None:
    display = TrainingDisplay(TrainingConfig(updates=20_000))
    display.take(TRAIN)
    display.take({"kind": "dev", "update": 6000, "dev_loss": 2.25})
    assert "best dev loss 2.250" in drawn(display.render(), 100)[0]


def test_escape_sequences_are_shown_not_obeyed() -> None:
    assert drawn("a\x1b[31mb\x9bc", 80) == [r"a\x1b[31mb\x9bc"]


def test_a_long_stage_prints_a_line_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = SafeConsole(file=io.StringIO(), highlight=False, markup=False)
    monkeypatch.setattr("headcount.cli.console.remarks", console)
    now = 1000.0
    monkeypatch.setattr("headcount.cli.console.time.monotonic", lambda: now)
    report, quiet = StageReporter(False), StageReporter(True)
    for done in range(15):  # one every ten seconds
        for each in (report, quiet):
            each("Timing", done, 14)
        now += LINE_SECONDS / 3
    report("Pruning", 1, None)
    now += LINE_SECONDS
    report("Pruning", 70, None)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    of_time = re.compile(r"\d\d:\d\d:\d\d ")
    shown = [of_time.sub("", line) for line in lines]
    steps = [f"Timing: {done} of 14" for done in (3, 6, 9, 12)]
    assert shown == [*steps, "Timing: done.", "Pruning: 70"]
    assert sum(bool(of_time.match(line)) for line in lines) == 5


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]


def test_a_plan_fits_80_columns() -> None:
    sites = (*ALL_SITES, "together")
    rows = [Row(site, 1024, 1000, 0.999, 1.0, 12.34, 12.34, 12.34) for site in sites]
    lines = drawn(plan_table(cast(Plan, SimpleNamespace(rows=rows)), "runs/a"), 80)
    assert [line.split()[1] for line in lines if "1024" in line] == list(sites)
    assert not any("…" in line for line in lines)
    heads = list(zip(*(line.split("┃")[2:-1] for line in lines[2:4]), strict=True))
    assert ["".join(cells).split() for cells in heads] == [
        ["have"], ["keep"], ["parameters"], ["multiply-", "adds"], ["speed"], ["at", "most"],
        ["by", "counts"],
    ]  # fmt: skip


@pytest.mark.parametrize(("ceiling", "said"), [(1.0, True), (1.2, False)])
def test_a_plan_says_where_a_ceiling_is_not_measurable(ceiling: float, said: bool) -> None:
    costs = SimpleNamespace(engine="headcount", batch=1, beam=4, full=0.01, error=0.0)
    plan = SimpleNamespace(
        costs=costs, rows=[SimpleNamespace(ceiling=ceiling)], asked=None, percent=None
    )
    assert ("hardly faster than the whole one" in plan_lines(cast(Plan, plan))) is said
