"""Sweeps: every pruning once, whatever is killed; one table."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import headcount.pruning.sweep as module
from headcount.errors import UserError
from headcount.pruning.record import is_finished, read_record
from headcount.pruning.sweep import Item, parse_numbers, prune_sweep, sweep_items
from headcount.run import load_run

COMMON: dict[str, Any] = {"updates": 4, "finetune": 1, "bleu_sentences": 0}


def items() -> list[Item]:
    return sweep_items([0.1], [1], ["learned", "random"], **COMMON)


def test_items() -> None:
    made = sweep_items([0.01, 0.1], [4], ["learned", "lrp"], seeds=2, sites=("enc",))
    assert [item.name for item in made] == [
        *("penalty-0.01-seed1", "penalty-0.01-seed2", "penalty-0.1-seed1", "penalty-0.1-seed2"),
        *("keep-4-exact-seed1", "keep-4-exact-seed2", "keep-4-lrp-seed1", "keep-4-lrp-seed2"),
    ]
    assert [item.settings.by for item in made[-4:]] == ["exact", "exact", "lrp", "lrp"]
    assert [item.settings.seed for item in made[:2]] == [1, 2]
    twice = sweep_items([0.01, 0.010], [4, 4], ["learned", "learned"])
    assert [item.name for item in twice] == ["penalty-0.01-seed1", "keep-4-exact-seed1"]
    with pytest.raises(UserError, match="nothing to sweep"):
        sweep_items([], [])
    with pytest.raises(UserError, match="--by lrp needs a number of heads"):
        sweep_items([0.01], [], ["lrp"])
    with pytest.raises(UserError, match="not a list of numbers"):
        parse_numbers("4,x", int, "--keep")


def test_killed_and_started_again(
    baseline: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second pruning dies; the next call makes the rest and no finished one again."""
    made: list[str] = []
    real = module.prune

    def counting(baseline: Path, train: Path, out: Path, *more: Any, **named: Any) -> Any:
        made.append(out.name)
        if len(made) == 2:
            named["observe"] = lambda line: (_ for _ in ()).throw(RuntimeError("killed"))
        return real(baseline, train, out, *more, **named)

    monkeypatch.setattr(module, "prune", counting)
    with pytest.raises(RuntimeError, match="killed"):
        prune_sweep(baseline, corpus, tmp_path, items())
    assert [is_finished(tmp_path / item.name) for item in items()] == [True, False, False]
    finished = tmp_path / items()[0].name / "model.safetensors"
    stamp = finished.stat().st_mtime_ns
    rows = prune_sweep(baseline, corpus, tmp_path, items())
    assert made == [item.name for item in items()[:2] + items()[1:]]
    assert finished.stat().st_mtime_ns == stamp
    assert [row["name"] for row in rows] == ["baseline", *(item.name for item in items())]
    again = prune_sweep(baseline, corpus, tmp_path, items())
    assert len(made) == 4, "nothing is left to do"
    for row, same in zip(rows, again, strict=True):
        del row["seconds_per_sentence"], same["seconds_per_sentence"]
    assert rows == again


RANDOM = sweep_items([], [1], ["random"], **COMMON)


@pytest.fixture(scope="module")
def swept(baseline: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of one pruning; not to be changed."""
    out = tmp_path_factory.mktemp("sweeps") / "random"
    prune_sweep(baseline, corpus, out, RANDOM)
    return out


def test_the_table(swept: Path) -> None:
    rows = json.loads((swept / "sweep.json").read_text())
    first, second = rows
    assert first["dev_loss"] == read_record(swept / second["name"])["before"]["dev_loss"]
    assert second["parameters"] < first["parameters"]
    for row in rows:
        assert row["seconds_per_sentence"] > 0
        assert 0 <= row["bleu"] <= 100
        assert row["bleu_interval"] >= 0
        assert row["chrf"] >= 0
    flat = list(csv.DictReader((swept / "sweep.csv").open()))
    assert [line["heads_enc"] for line in flat] == ["4", "1"]
    assert sorted(flat[1]["layers_enc"].split()) == ["0", "1"]


def test_ranks_share_prunings(
    baseline: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun every rank makes its share alone; the first one makes the table."""
    chosen = sweep_items([], [0, 1], ["random"], **COMMON)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert prune_sweep(baseline, corpus, tmp_path, chosen) == []
    assert [is_finished(tmp_path / item.name) for item in chosen] == [False, True]
    monkeypatch.setenv("RANK", "0")
    assert len(prune_sweep(baseline, corpus, tmp_path, chosen)) == 3


@pytest.mark.slow
def test_several_processes(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    chosen = sweep_items([], [0, 1], ["random"], **COMMON)
    rows = prune_sweep(baseline, corpus, tmp_path, chosen, jobs=2)
    assert [sum(map(len, row["heads"]["enc"])) for row in rows] == [4, 0, 1]


def test_bad_items_stop_everything_at_once(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only 4 heads"):
        prune_sweep(baseline, corpus, tmp_path / "out", sweep_items([], [2, 9], **COMMON))
    assert not (tmp_path / "out").exists()


def test_a_folder_holds_one_kind_of_pruning(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    """Finished prunings are not taken for those of other settings or of another baseline."""
    out, other = tmp_path / "out", tmp_path / "other"
    prune_sweep(baseline, corpus, out, sweep_items([], [1], ["random"], **COMMON))
    longer = sweep_items([], [1], ["random"], **(COMMON | {"updates": 5}))
    with pytest.raises(UserError, match="begun with --updates 4, now it is 5"):
        prune_sweep(baseline, corpus, out, longer)
    run = load_run(baseline)
    with torch.no_grad():
        run.model.target_embedding.table.weight.mul_(-1)
    run.save(other)
    with pytest.raises(UserError, match="with other weights"):
        prune_sweep(other, corpus, out, sweep_items([], [1], ["random"], **COMMON))
    mine = json.loads((out / "baseline.json").read_text())["weights"]
    prune_sweep(other, corpus, out, sweep_items([], [0], ["random"], **COMMON))
    assert json.loads((out / "baseline.json").read_text())["weights"] != mine


def test_killed_before_anything_was_written(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    chosen = sweep_items([], [1], ["random"], **COMMON)
    folder = tmp_path / chosen[0].name
    folder.mkdir()
    (folder / ".pruning.json.elsewhere.1.partial").write_text("{")
    assert len(prune_sweep(baseline, corpus, tmp_path, chosen)) == 2


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("scores.json", {"bleu": None}, "scores are finite numbers"),
        ("scores.json", {"chrf": float("nan")}, "scores are finite numbers"),
        ("pruning.json", {"heads": {"enc": 3}}, "heads.enc: must be a list"),
        ("pruning.json", {"after": {"dev_loss": "low"}}, "after.dev_loss: must be a number"),
        ("pruning.json", {"baseline": []}, "baseline: must be"),
    ],
)
def test_damaged_results(
    swept: Path, baseline: Path, corpus: Path, tmp_path: Path, file: str, change: dict, said: str
) -> None:
    """What an earlier call wrote is checked before it becomes a row of the table."""
    out = shutil.copytree(swept, tmp_path / "sweep")
    path = out / RANDOM[0].name / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=said):
        prune_sweep(baseline, corpus, out, RANDOM)
