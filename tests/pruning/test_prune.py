"""Pruning from a run to a run: every method, killed at any moment, the baseline untouched."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import headcount.pruning.process as process
from headcount.config import load_recipe
from headcount.errors import Notice, UserError
from headcount.heads import ALL_SITES, SITES, Head
from headcount.pruning.prune import prune
from headcount.pruning.record import is_finished, read_record
from headcount.pruning.settings import PruneSettings, make_settings
from headcount.ranking.rank import rank
from headcount.run import load_heads, load_run
from headcount.training.checkpoints import list_checkpoints
from headcount.training.metrics import read_metrics
from headcount.training.train import train
from headcount.translation import translate_lines
from two_processes import run_in_two_processes


def quick(**given: Any) -> PruneSettings:
    return make_settings(**({"updates": 10, "finetune": 3, "bleu_sentences": 4} | given))


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def total(heads: dict[str, list[list[int]]]) -> dict[str, int]:
    return {site: sum(map(len, layers)) for site, layers in heads.items()}


NESTED = {
    "enc": 2, "enc_ff": 4, "enc_layers": 2, "dec": 1, "cross": 1, "dec_ff": 3, "dec_layers": 3,
}  # fmt: skip
"""Three whole blocks of a decoder of six: one of each kind, as each must hold something."""

METHODS: dict[str, tuple[dict[str, Any], dict[str, int] | None]] = {
    "penalty": ({"penalty": 0.05}, None),
    "all close": ({"penalty": 9, "gate_learning_rate": 2.0}, {"enc": 0, "dec": 4, "cross": 4}),
    "exact": ({"keep": 3}, {"enc": 3, "dec": 4, "cross": 4}),
    "none": ({"keep": 0}, {"enc": 0, "dec": 4, "cross": 4}),
    "all": ({"keep": 4}, {"enc": 4, "dec": 4, "cross": 4}),
    "even": ({"keep": 6, "even": True, "sites": SITES}, {"enc": 2, "dec": 2, "cross": 2}),
    "random": ({"keep": 1, "by": "random"}, {"enc": 1, "dec": 4, "cross": 4}),
    "confidence": ({"keep": 2, "by": "confidence"}, {"enc": 2, "dec": 4, "cross": 4}),
    "no fine-tuning": ({"keep": 1, "by": "random", "updates": 0}, {"enc": 1, "dec": 4, "cross": 4}),
    "decoder": ({"keep": 1, "sites": ("dec", "cross")}, {"enc": 4}),
    "from scratch": ({"penalty": 0.01, "from_scratch": True}, None),
    "units": ({"penalty": 0.01, "sites": ("enc_ff", "dec_ff"), "ff_block": 4}, {"enc": 4}),
    "even units": (
        {"keep": {"dec_ff": 6, "enc_layers": 2}, "ff_block": 6, "by": "activation", "even": True},
        {"dec_ff": 6, "enc_layers": 2, "cross": 4},
    ),
    "heads, units, blocks": (
        {"keep": {"enc": 1, "enc_ff": 3, "dec_ff": 0, "dec_layers": 4}, "ff_block": 4},
        {"enc": 1, "enc_ff": 3, "dec_ff": 0, "dec_layers": 4, "enc_layers": 4},
    ),
    "blocks by relevance": (
        {"keep": 3, "sites": "enc_layers,dec_layers", "by": "lrp"}, {"enc_ff": None},
    ),
    "blocks at random": (
        {"keep": {"enc_layers": 0, "dec_layers": 1}, "by": "random", "updates": 0},
        {"enc": 0, "enc_ff": 0, "enc_layers": 0, "dec_layers": 1},
    ),
    "blocks and what they hold": ({"keep": NESTED, "ff_block": 4}, NESTED),
    "the same by score": ({"keep": NESTED, "ff_block": 4, "by": "gradient", "updates": 4}, NESTED),
    "the same at random": (
        {"keep": NESTED, "ff_block": 4, "by": "random", "updates": 0, "seed": 5}, NESTED,
    ),
    "penalty on blocks": (
        {
            "penalty": 0.5, "sites": "enc,enc_ff,enc_layers", "ff_block": 4, "warmup": 1,
            "gate_learning_rate": 2, "start": 0.3,
        },
        None,
    ),
    "distilled gates": ({"penalty": 0.05, "distil": 0.9}, None),
    "distilled": ({"keep": 1, "by": "random", "distil_states": 1}, {"enc": 1, "dec": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_pruned_run_is_a_run(name: str, baseline: Path, corpus: Path, tmp_path: Path) -> None:
    given, expected = METHODS[name]
    before = contents(baseline)
    run = prune(baseline, corpus, tmp_path / "out", quick(**given))
    record = read_record(tmp_path / "out")
    assert contents(baseline) == before
    counts = {site: run.model.heads.count(site) for site in ALL_SITES}
    assert total(record["heads"]) == counts
    there = [str(head) for head in run.model.heads.heads(record["settings"]["sites"])]
    assert record["kept"] == there
    everything = [str(h) for h in load_run(baseline).model.heads.heads(SITES)]
    assert {*record["kept"], *record["closed"]} >= {
        head for head in everything if head.split(".")[0] in record["settings"]["sites"]
    }
    if expected:
        assert counts | {s: n for s, n in expected.items() if n is not None} == counts
    if "keep" in given:
        keep = given["keep"]
        if isinstance(keep, dict):
            assert counts | keep == counts, "as many as were asked for are there"
        else:
            assert sum(counts[site] for site in record["settings"]["sites"]) == keep
    if name == "even units":
        assert [len(blocks) for blocks in run.model.heads.layers["dec_ff"]] == [3, 3]
        assert [len(blocks) for blocks in run.model.heads.layers["enc_layers"]] == [1, 1]
    assert record["finished"]
    assert record["largest_logit_difference"] <= 1e-5
    assert record["decided"]["binary"]["dev_loss"] > 0
    assert ("before" in record) == (name != "from scratch")
    assert ("gated" in record["decided"]) == ("penalty" in given)
    assert (record["teacher"] is not None) == name.startswith("distilled")
    again = load_run(tmp_path / "out")
    assert translate_lines(again, ["the cat sees"]) == translate_lines(run, ["the cat sees"])
    assert sum(p.numel() for p in again.model.parameters()) == record["parameters"]
    if given.get("updates") != 0:
        lines = read_metrics(tmp_path / "out" / "metrics.jsonl")
        assert [line for line in lines if line["kind"] == "train"]


@pytest.mark.parametrize("by", ["exact", "gradient", "random"])
def test_more_than_the_blocks_can_hold_is_refused(
    by: str, baseline: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is prepared or measured, and nothing is left behind."""
    monkeypatch.setattr(process, "prepare_together", None)
    settings = quick(keep="enc=3,enc_ff=1,enc_layers=2", ff_block=4, by=by)
    said = "enc=3 needs 2 and enc_ff=1 needs 1 of the whole blocks at enc_layers, but only 2 stay"
    with pytest.raises(UserError, match=said):
        prune(baseline, corpus, tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


def test_gates_are_logged(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    prune(baseline, corpus, tmp_path / "out", quick(penalty=0.05, sites=SITES))
    lines = read_metrics(tmp_path / "out" / "metrics.jsonl")
    trained = [line for line in lines if line["kind"] == "train"]
    for line in trained:
        assert len(line["open_probability"]) == 12
        assert line["expected_open"] == pytest.approx(sum(line["open_probability"]), abs=1e-2)
        assert 0 <= line["open"] <= 12
        assert "undecided" in line
    first, last = trained[0]["expected_open"], trained[-1]["expected_open"]
    assert last < first, "the penalty closes gates"


def test_a_teacher_changes_what_is_learned(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    """With all heads kept, a model that learns only from itself hardly moves."""
    changes = {}
    for name, given in {"alone": {}, "taught": {"distil": 1.0}}.items():
        run = prune(baseline, corpus, tmp_path / name, quick(keep=4, updates=20, **given))
        assert run.config.training.teacher == (baseline if given else None)
        record = read_record(tmp_path / name)
        changes[name] = record["before"]["dev_loss"] - record["after"]["dev_loss"]
    assert changes["alone"] > 2 * abs(changes["taught"])


def test_bf16_changes_rounding_alone(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    runs = {
        name: prune(baseline, corpus, tmp_path / name, keep=2, updates=6, precision=name)
        for name in ("float32", "bf16")
    }
    default = prune(baseline, corpus, tmp_path / "default", keep=2, updates=6)
    weights = {name: torch.nn.utils.parameters_to_vector(run.model.parameters())
               for name, run in (*runs.items(), ("default", default))}  # fmt: skip
    assert torch.equal(weights["default"], weights["float32"])
    assert not torch.equal(weights["bf16"], weights["float32"])
    assert weights["bf16"].dtype == torch.float32
    assert torch.allclose(weights["bf16"], weights["float32"], atol=0.02)
    assert runs["bf16"].config.training.precision == "bf16"


def test_decoder_stays_fixed_while_encoder_heads_are_pruned(
    baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    prune(baseline, corpus, tmp_path / "enc", quick(keep=2))
    prune(baseline, corpus, tmp_path / "all", quick(keep=9, sites=SITES))
    prune(baseline, corpus, tmp_path / "gates", quick(keep=4, train_only=("gates",)))
    old, new = (load_file(f / "model.safetensors") for f in (baseline, tmp_path / "enc"))
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert {name.split(".")[0] for name in changed} == {
        "source_embedding",
        "encoder",
        "encoder_norm",
    }
    everything = load_file(tmp_path / "all" / "model.safetensors")
    assert not torch.equal(everything["output_weight"], old["output_weight"])
    none = load_file(tmp_path / "gates" / "model.safetensors")
    assert all(torch.equal(none[name], old[name]) for name in old)


def test_the_first_loss_is_the_baselines(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    """Nearly open gates: the loss of the first update is that of training on without gates."""
    seen = {}
    for name, given in {"gates": {"penalty": 0.01}, "none": {"keep": 4}}.items():
        lines: list[dict[str, Any]] = []
        prune(baseline, corpus, tmp_path / name, quick(**given), observe=lines.append)
        seen[name] = next(line["loss"] for line in lines if line["kind"] == "train")
    assert seen["gates"] == pytest.approx(seen["none"], rel=0.05)


class Killed(Exception):
    """Stands for a kill: nothing of the package catches it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, where: str) -> Callable[[dict[str, Any]], None]:
    """Make the pruning die at one of its stations."""

    def die(*arguments: Any, **named: Any) -> None:
        raise Killed

    if where.startswith("update"):
        number = int(where.split()[1])

        def observe(line: dict[str, Any]) -> None:
            if line["update"] == number:
                raise Killed

        return observe
    monkeypatch.setattr(process, where, die)
    return lambda line: None


@pytest.fixture(scope="module")
def uninterrupted(
    baseline: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[PruneSettings, Path]]:
    """One pruning of each kind that learns, to compare with."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    kinds = {
        "penalty": quick(
            penalty=0.5,
            patience=2,
            warmup=1,
            gate_learning_rate=2,
            ff_block=4,
            sites="enc,enc_ff,dec_layers",
        ),
        "keep": quick(keep=1, distil=0.6, distil_states=0.5),
    }
    for name, settings in kinds.items():
        prune(baseline, corpus, folder / name, settings)
    return {name: (settings, folder / name) for name, settings in kinds.items()}


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("keep", "update 1"),
        ("penalty", "update 5"),
        ("keep", "update 5"),
        ("penalty", "update 6"),
        ("keep", "update 8"),
        ("keep", "remove_heads"),
        ("penalty", "count_parameters"),
        ("penalty", "save_checkpoint"),
    ],
)
def test_killed_and_resumed_equals_not_killed(
    method: str,
    where: str,
    uninterrupted: dict[str, tuple[PruneSettings, Path]],
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, expected = uninterrupted[method]
    with monkeypatch.context() as patch:
        observe = kill_at(patch, where)
        with pytest.raises(Killed):
            prune(baseline, corpus, tmp_path / "parts", settings, observe=observe)
    assert not is_finished(tmp_path / "parts")
    prune(baseline, corpus, tmp_path / "parts", settings, resume=True)
    whole, parts = read_record(expected), read_record(tmp_path / "parts")
    for record in (whole, parts):
        del record["progress"]["seconds"]
    assert whole == parts
    folders = (expected, tmp_path / "parts")
    one, other = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(one[name], other[name]) for name in one)
    logged = [
        [(line["kind"], line["update"]) for line in read_metrics(folder / "metrics.jsonl")]
        for folder in folders
    ]
    assert logged[0] == logged[1]


def test_interrupted_between_updates(
    baseline: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the update, saves, and says how to go on."""
    import signal

    def interrupt(line: dict[str, Any]) -> None:
        if line["update"] == 4 and line["kind"] == "train":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="Stopped at update 4"):
        prune(baseline, corpus, tmp_path / "out", quick(keep=2), observe=interrupt)
    assert [path.name for path in list_checkpoints(tmp_path / "out")][-1] == "00000004"
    with pytest.raises(UserError, match="not finished"):
        load_run(tmp_path / "out")
    run = prune(baseline, corpus, tmp_path / "out", quick(keep=2), resume=True)
    assert run.model.heads.count("enc") == 2


@pytest.mark.slow
def test_two_processes_equal_one(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    """Every worker sees the same gates, and the penalty counts once."""
    options = ["--train", corpus, "--out", tmp_path / "two", "--penalty", "0.5"]
    options += ["--updates", "8", "--finetune", "2", "--distil", "0.5", "--distil-states", "1"]
    options += ["--sites", "enc,enc_ff,enc_layers", "--ff-block", "4"]
    run_in_two_processes("-m", "headcount", "prune", baseline, *options, "--quiet")
    common = {"penalty": 0.5, "updates": 8, "finetune": 2, "distil": 0.5, "distil_states": 1,
              "sites": "enc,enc_ff,enc_layers", "ff_block": 4}  # fmt: skip
    prune(baseline, corpus, tmp_path / "one", make_settings(**common))
    one, two = (read_metrics(tmp_path / n / "metrics.jsonl") for n in ("one", "two"))
    assert [line["kind"] for line in one] == [line["kind"] for line in two]
    for here, there in zip(one, two, strict=True):
        for name in {"nll", "expected_open", "open_probability", "dev_loss"} & set(here):
            # Adam blows up the rounding noise of small gradients, more so with every update.
            error = 1e-4 * 2 ** here["update"]
            assert here[name] == pytest.approx(there[name], rel=error, abs=error)
    records = [read_record(tmp_path / name) for name in ("one", "two")]
    assert records[0]["kept"] == records[1]["kept"]
    chosen = next(number for number, line in enumerate(two) if line["kind"] == "decided")
    after = [line["open_probability"] for line in two[chosen:] if "open_probability" in line]
    assert len(after) == 3
    assert after == after[:1] * 3, "gates no longer move once heads are chosen"


def test_a_finished_one_is_not_repeated(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    prune(baseline, corpus, tmp_path / "out", quick(keep=2))
    before = contents(tmp_path / "out")
    prune(baseline, corpus, tmp_path / "out", quick(keep=2), resume=True)
    assert contents(tmp_path / "out") == before


def test_pruned_runs_are_pruned_again_and_trained_on(
    baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    keep = dict.fromkeys(SITES, 2) | {"enc_ff": 3, "dec_layers": 5}
    first = prune(baseline, corpus, tmp_path / "first", quick(keep=keep, ff_block=8))
    keep = dict.fromkeys(SITES, 1) | {"enc_ff": 2, "enc_layers": 3}
    second = prune(tmp_path / "first", corpus, tmp_path / "second", quick(keep=keep, ff_block=2))
    assert set(second.model.head_list()) < set(first.model.head_list())
    assert second.model.heads.count("dec_layers") == 5
    with pytest.raises(UserError, match="in blocks of 8 units, which cannot be taken as blocks of"):
        prune(tmp_path / "first", corpus, tmp_path / "x", quick(keep=1, sites="enc_ff", ff_block=3))
    recipe = load_recipe(
        tmp_path / "second" / "config.yaml", ["training.updates=14", "training.warmup=1000"]
    )
    longer, progress = train(recipe, tmp_path / "second", resume=True)
    assert progress.update == 14
    assert longer.model.heads == second.model.heads
    old, new = second.model.output_weight, longer.model.output_weight
    assert not torch.equal(old, new)
    assert float((old - new).detach().abs().max()) < 0.1, "it goes on from the pruned weights"


def test_the_same_heads_from_random_weights(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    """Table 2's rightmost column: `headcount train --heads-from`."""
    keep = {"enc": 2, "cross": 3, "enc_ff": 5, "dec_layers": 5}
    pruned = prune(baseline, corpus, tmp_path / "pruned", quick(keep=keep, ff_block=4))
    recipe = load_recipe(
        tmp_path / "pruned" / "config.yaml",
        ["training.updates=3", "data.source_vocabulary=40", "data.target_vocabulary=40"],
    )
    heads = load_heads(tmp_path / "pruned", recipe.model)
    run, _ = train(recipe, tmp_path / "scratch", heads=heads)
    assert run.model.heads == pruned.model.heads == load_run(tmp_path / "scratch").model.heads


def test_scores_of_the_head_table_are_used(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(baseline, tmp_path / "ranked")
    run = load_run(tmp_path / "ranked")
    table = run.head_table()
    best = [Head("enc", 1, 0), Head("enc", 1, 1)]
    table.add("lrp", {head: float(head in best) for head in run.model.heads.heads(("enc",))})
    table.save(run.analysis)
    prune(tmp_path / "ranked", corpus, tmp_path / "out", quick(keep=2, by="lrp"))
    assert read_record(tmp_path / "out")["kept"] == [str(head) for head in best]


def test_other_options_of_relevance_are_noticed(
    baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    """A head table may have been written by a version with other defaults."""
    for name, options in (("usual", {}), ("signed", {"normalise": "signed"})):
        shutil.copytree(baseline, tmp_path / name)
        rank(tmp_path / name, corpus / "dev.en", by="lrp", sites="enc", save=True, **options)
    settings = quick(keep=2, by="lrp", updates=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prune(tmp_path / "usual", corpus, tmp_path / "out", settings)
    assert not [notice for notice in caught if "head table" in str(notice.message)]
    with pytest.warns(Notice, match=r"head table, measured with normalise signed"):
        prune(tmp_path / "signed", corpus, tmp_path / "out-signed", settings)


def test_random_follows_the_seed(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    kept = []
    for number, seed in enumerate((1, 1, 2)):
        settings = quick(keep=5, by="random", updates=0, seed=seed, sites=SITES)
        prune(baseline, corpus, tmp_path / str(number), settings)
        kept.append(tuple(read_record(tmp_path / str(number))["kept"]))
    assert kept[0] == kept[1]
    assert kept[1] != kept[2]
