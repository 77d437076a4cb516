"""Training as properties: resuming equals no interruption, several processes equal one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headcount.config import Config, parse_config
from headcount.distribution import Workers
from headcount.errors import Notice, UserError
from headcount.run import load_run
from headcount.training.checkpoints import list_checkpoints
from headcount.training.metrics import dev_loss, read_metrics
from headcount.training.preparation import prepare_training
from headcount.training.train import train
from two_processes import PATIENCE, TORCHRUN, run_in_two_processes

Make = Callable[..., Config]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def timeless(run: Path) -> list[dict[str, object]]:
    """The lines of a run's log without what depends on the clock."""
    times = ("seconds", "source_tokens_per_second")
    lines = read_metrics(run / "metrics.jsonl")
    return [{name: v for name, v in line.items() if name not in times} for line in lines]


def write_recipe(config: Config, path: Path) -> Path:
    path.write_text(config.to_yaml())
    return path


def start(recipe: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headcount", "train", str(recipe), "--out", str(out), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def test_loss_falls_and_the_run_can_be_used(make_config: Make, tmp_path: Path) -> None:
    run, progress = train(
        make_config(updates=60, warmup=20, learning_rate_scale=1.0), tmp_path / "run"
    )
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.5
    assert progress.update == 60
    assert progress.stopped == "all updates done"
    again = load_run(tmp_path / "run")
    assert_same(dict(run.model.named_parameters()), dict(again.model.named_parameters()))
    assert again.source_frequencies is not None
    assert np.array_equal(again.source_frequencies, run.source_frequencies)
    dev = [line for line in lines if line["kind"] == "dev"]
    assert {"dev_loss", "dev_bleu", "confidence_max", "positional_max"} <= set(dev[-1])


def test_same_seed_same_weights_other_seed_other_weights(make_config: Make, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(make_config(seed=seed), tmp_path / name)
    assert_same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    name = "encoder.0.self_attention.attention.in_weight"
    assert not torch.equal(weights(tmp_path / "a")[name], weights(tmp_path / "c")[name])


def test_stopping_early_and_resuming_changes_nothing(make_config: Make, tmp_path: Path) -> None:
    train(make_config(updates=12), tmp_path / "whole")
    train(make_config(updates=5), tmp_path / "parts")
    train(make_config(updates=12), tmp_path / "parts", resume=True)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    whole, parts = (timeless(tmp_path / name) for name in ("whole", "parts"))
    assert whole == parts
    assert [line["kind"] for line in whole] == [
        "train",
        "train",
        "dev",
        "train",
        "train",
        "dev",
        "final",
    ]


def test_pausing_changes_neither_checkpoints_nor_their_average(
    make_config: Make, tmp_path: Path
) -> None:
    settings = {"average_checkpoints": 3, "keep_checkpoints": 3, "evaluate_every": 50}
    train(make_config(updates=14, **settings), tmp_path / "whole")
    for updates in (10, 11, 14):  # save_every is 4: checkpoints 10 and 11 are out of turn
        train(make_config(updates=updates, **settings), tmp_path / "parts", resume=True)
    names = [[p.name for p in list_checkpoints(tmp_path / run)] for run in ("whole", "parts")]
    assert names[0] == names[1] == ["00000008", "00000012", "00000014"]
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


@pytest.mark.slow
def test_kill_at_random_moments_then_resume_gives_the_same_weights(
    make_config: Make, tmp_path: Path
) -> None:
    config = make_config(updates=150, save_every=7, evaluate_every=40)
    recipe = write_recipe(config, tmp_path / "recipe.yaml")
    whole = start(recipe, tmp_path / "whole", "--quiet")
    assert whole.wait(PATIENCE) == 0
    rng = random.Random(3)
    killed = 0
    for _ in range(12):
        seen = len(list_checkpoints(tmp_path / "killed"))
        process = start(recipe, tmp_path / "killed", "--resume", "--quiet")
        # Wait until it has come further than before, then a random moment, then kill it.
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            newest = list_checkpoints(tmp_path / "killed")
            if killed >= 3 or len(newest) > seen or (newest and seen >= 5):
                break
            time.sleep(0.02)
        if killed < 3 and process.poll() is None:
            time.sleep(rng.uniform(0.0, 0.3))
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
            continue
        assert process.wait(PATIENCE) == 0
        break
    assert killed == 3
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "killed")


@pytest.mark.slow
def test_a_training_starts_from_the_weights_of_another(make_config: Make, tmp_path: Path) -> None:
    first, _ = train(make_config(updates=4), tmp_path / "first")
    # a rate of almost nothing: what is trained on is what was there
    still = {"updates": 1, "learning_rate_scale": 1e-9}
    begun, state = train(make_config(**still), tmp_path / "on", start_from=tmp_path / "first")
    for name, tensor in weights(tmp_path / "first").items():
        torch.testing.assert_close(weights(tmp_path / "on")[name], tensor, atol=1e-6, rtol=0)
    assert begun.source_tokenizer.fingerprint() == first.source_tokenizer.fingerprint()
    seen = read_metrics(tmp_path / "first" / "metrics.jsonl")[-2]["source_tokens"]
    assert state.source_tokens > seen > 0


def with_model(config: Config, **changes: Any) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})


@pytest.mark.slow
def test_a_training_starts_with_another_decoder(make_config: Make, tmp_path: Path) -> None:
    positions = {"relative_positions": "layer"}
    spread = positions | {"position_spread": (0.0, 3.0)}  # only about first weights
    first, _ = train(with_model(make_config(updates=4), **spread), tmp_path / "first")
    still = make_config(updates=1, learning_rate_scale=1e-9)
    config = with_model(still, **positions, decoder_layers=3, decoder_heads=1)
    with pytest.warns(Notice, match=r"begins anew: .* another model\.decoder_layers"):
        begun, _ = train(config, tmp_path / "on", start_from=tmp_path / "first")
    before, after = weights(tmp_path / "first"), weights(tmp_path / "on")
    for name in after:
        if name.startswith("decoder"):
            drawn = name.endswith("in_weight") and name in before
            assert not (drawn and torch.allclose(after[name], before[name], atol=1e-3)), name
        else:
            torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)
    assert begun.model.heads.count("cross") == 3
    written_out = with_model(still, **positions, decoder_heads=first.config.model.heads)
    with warnings.catch_warnings():  # the same decoder: nothing begins anew
        warnings.simplefilter("error", Notice)
        train(written_out, tmp_path / "same", start_from=tmp_path / "first")
    same = weights(tmp_path / "same")
    for name, tensor in before.items():
        torch.testing.assert_close(same[name], tensor, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_held_positions_stay_while_all_else_trains(make_config: Make, tmp_path: Path) -> None:
    def config(updates: int, held: bool) -> Config:
        made = with_model(make_config(updates=updates, save_every=2), relative_positions="layer")
        training = made.training.model_copy(update={"hold_positions": held})
        return made.model_copy(update={"training": training})

    train(config(4, held=False), tmp_path / "first")
    train(config(4, held=True), tmp_path / "whole", start_from=tmp_path / "first")
    before, after = weights(tmp_path / "first"), weights(tmp_path / "whole")
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {f"encoder_positions.{layer}.table" for layer in range(2)}
    train(config(2, held=True), tmp_path / "parts", start_from=tmp_path / "first")
    with pytest.raises(UserError, match=r"another training\.hold_positions \(True, now False\)"):
        train(config(4, held=False), tmp_path / "parts", resume=True)
    train(config(4, held=True), tmp_path / "parts", resume=True)
    assert_same(after, weights(tmp_path / "parts"))


def test_positions_cannot_be_held_where_there_are_none() -> None:
    with pytest.raises(UserError, match="hold_positions needs"):
        parse_config({"training": {"hold_positions": True}}, "recipe")


@pytest.mark.slow
def test_a_training_that_was_begun_from_a_run_is_resumed_before_its_first_checkpoint(
    make_config: Make, tmp_path: Path
) -> None:
    train(make_config(updates=4), tmp_path / "first")
    config = make_config(updates=2)
    train(config, tmp_path / "whole", start_from=tmp_path / "first")
    train(config, tmp_path / "on", start_from=tmp_path / "first")
    shutil.rmtree(tmp_path / "on" / "checkpoints")  # as if it had been killed at once
    train(config, tmp_path / "on", resume=True)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "on"))
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "on")


def test_heads_come_from_one_run(make_config: Make, tmp_path: Path) -> None:
    run, _ = train(make_config(updates=1), tmp_path / "first")
    with pytest.raises(UserError, match="both say which heads"):
        train(
            make_config(updates=1),
            tmp_path / "on",
            heads=run.model.heads,
            start_from=tmp_path / "first",
        )


def test_a_training_does_not_start_from_another_shape(make_config: Make, tmp_path: Path) -> None:
    train(make_config(updates=1), tmp_path / "first")
    config = make_config(updates=1)
    wider = config.model_copy(update={"model": config.model.model_copy(update={"ff_width": 96})})
    with pytest.raises(UserError, match=r"another model\.ff_width"):
        train(wider, tmp_path / "on", start_from=tmp_path / "first")
    assert not (tmp_path / "on").exists()


def test_two_processes_equal_one(make_config: Make, tmp_path: Path) -> None:
    config = make_config(updates=8, save_every=1, evaluate_every=8, keep_checkpoints=20)
    recipe = write_recipe(config, tmp_path / "recipe.yaml")
    train(config, tmp_path / "one")
    out = tmp_path / "two"
    printed = run_in_two_processes(
        "-m", "headcount", "train", recipe, "--out", out, "--quiet", "--json"
    )
    assert json.loads(printed)["update"] == 8  # one process speaks for both
    # Adam's first moment after one update is the gradient times (1 - beta1). Weights themselves
    # may differ: Adam blows up the rounding noise of gradients that are zero, as of key biases.
    one, two = (first_moments(tmp_path / name, update=1) for name in ("one", "two"))
    assert max(float(tensor.abs().max()) for tensor in one.values()) > 1e-3
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-4, atol=1e-7, msg=name)
    final = [read_metrics(tmp_path / n / "metrics.jsonl")[-1]["dev_loss"] for n in ("one", "two")]
    assert final[0] == pytest.approx(final[1], rel=1e-5)


def first_moments(run: Path, update: int) -> dict[str, torch.Tensor]:
    state = load_file(run / "checkpoints" / f"{update:08d}" / "optimiser.safetensors")
    return {name: tensor for name, tensor in state.items() if name.endswith("exp_avg")}


def test_as_many_checkpoints_are_averaged_as_are_best(make_config: Make, tmp_path: Path) -> None:
    config = make_config(updates=40, save_every=10, average_checkpoints=3, keep_checkpoints=3)
    run, _ = train(config, tmp_path / "run")
    paths = list_checkpoints(tmp_path / "run")
    assert [path.name for path in paths] == ["00000020", "00000030", "00000040"]
    prepared = prepare_training(config.data, config.training, lambda *progress: None)
    losses, means = {}, {}
    for count in (1, 2, 3):
        stacks = [load_file(path / "model.safetensors") for path in paths[-count:]]
        means[count] = {n: torch.stack([s[n] for s in stacks]).mean(0) for n in stacks[0]}
        with torch.no_grad():
            for name, parameter in run.model.named_parameters():
                parameter.copy_(means[count][name])
        losses[count] = dev_loss(run.model, prepared.dev, run.target_tokenizer, Workers())
    best = min(losses, key=losses.__getitem__)
    for name, tensor in weights(tmp_path / "run").items():
        torch.testing.assert_close(tensor, means[best][name])
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["averaged"] == best
    assert len(set(losses.values())) == 3


def test_flat_dev_loss_stops_training(make_config: Make, tmp_path: Path) -> None:
    config = make_config(updates=500, evaluate_every=1, patience=2, learning_rate_scale=1e-12)
    _, progress = train(config, tmp_path / "run")
    assert progress.stopped == "dev loss is flat"
    assert progress.update < 20


def test_a_loss_that_is_not_a_number_is_reported(make_config: Make, tmp_path: Path) -> None:
    config = make_config(updates=200, learning_rate_scale=1e30, warmup=8, clip_norm=0.0)
    with pytest.raises(UserError, match=r"no longer a finite number since update \d+.*checkpoint"):
        train(config, tmp_path / "run")
    for path in list_checkpoints(tmp_path / "run"):
        assert all(t.isfinite().all() for t in load_file(path / "model.safetensors").values())


def test_weights_gone_bad_do_not_replace_good_ones(make_config: Make, tmp_path: Path) -> None:
    config = make_config(updates=200, learning_rate_scale=1e30, evaluate_every=1, log_every=500)
    with pytest.raises(UserError, match="no longer a finite number"):
        train(config, tmp_path / "run")
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(np.isfinite(line["dev_loss"]) for line in lines)


def test_evaluation_does_not_count_as_slow_training(
    make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> dict[str, float]:
        time.sleep(0.5)
        return {"dev_loss": 1.0}

    monkeypatch.setattr("headcount.training.train.evaluate_run", slow)
    train(make_config(updates=12, evaluate_every=3, log_every=3), tmp_path / "run")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    trained = [line for line in lines if line["kind"] == "train"]
    tokens = [b["source_tokens"] - a["source_tokens"] for a, b in pairwise(trained)]
    seconds = [b["seconds"] - a["seconds"] for a, b in pairwise(trained)]
    expected = [count / time for count, time in zip(tokens, seconds, strict=True)]
    assert [line["source_tokens_per_second"] for line in trained[1:]] == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_training_in_bf16_stays_close_to_float32(make_config: Make, tmp_path: Path) -> None:
    losses = {}
    for precision in ("float32", "bf16"):
        # oneDNN's bf16 kills the process on virtual machines that announce AMX and forbid it.
        with torch.backends.mkldnn.flags(enabled=False):
            train(make_config(precision=precision), tmp_path / precision)
        lines = read_metrics(tmp_path / precision / "metrics.jsonl")
        losses[precision] = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.03)
    assert losses["bf16"] != losses["float32"]


def test_files_of_something_else_are_left_alone(make_config: Make, tmp_path: Path) -> None:
    precious = tmp_path / "work" / "checkpoints" / "other.pt"
    precious.parent.mkdir(parents=True)
    precious.write_text("not ours")
    for resume in (False, True):
        with pytest.raises(UserError, match="checkpoints of something else"):
            train(make_config(updates=2), tmp_path / "work", resume=resume)
    assert precious.read_text() == "not ours"


def test_an_existing_run_is_not_overwritten(make_config: Make, tmp_path: Path) -> None:
    train(make_config(updates=2), tmp_path / "run")
    before = weights(tmp_path / "run")
    with pytest.raises(UserError, match="--resume"):
        train(make_config(updates=2, seed=5), tmp_path / "run")
    other = make_config(updates=4)
    other.model.ff_width = 64
    with pytest.raises(UserError, match="ff_width"):
        train(other, tmp_path / "run", resume=True)
    assert_same(before, weights(tmp_path / "run"))


def test_a_finished_run_keeps_the_settings_it_was_trained_with(
    make_config: Make, tmp_path: Path
) -> None:
    train(make_config(updates=4), tmp_path / "run")
    files = [tmp_path / "run" / name for name in ("config.yaml", "metrics.jsonl")]
    before = [file.read_text() for file in files]
    changes = ({"seed": 7}, {"label_smoothing": 0.3}, {"batch_tokens": 99}, {"updates": 2},
               {"device_tokens": 33})  # fmt: skip
    for change in changes:
        with pytest.raises(UserError, match=rf"training\.{next(iter(change))}\b"):
            train(make_config(**({"updates": 4} | change)), tmp_path / "run", resume=True)
        assert [file.read_text() for file in files] == before
    train(make_config(updates=4, log_every=1), tmp_path / "run", resume=True)
    train(make_config(updates=6, learning_rate_scale=0.1), tmp_path / "run", resume=True)


@pytest.mark.parametrize("limit", [{"minutes": 1e-6}, {"patience": 1, "evaluate_every": 1}])
def test_a_run_that_ended_early_keeps_its_settings_too(
    make_config: Make, tmp_path: Path, limit: dict[str, Any]
) -> None:
    settings = {"updates": 500, "learning_rate_scale": 1e-12, **limit}
    train(make_config(**settings), tmp_path / "run")
    with pytest.raises(UserError, match=rf"training\.seed .*raise training\.{next(iter(limit))} "):
        train(make_config(**settings, seed=7), tmp_path / "run", resume=True)


def test_a_training_is_not_resumed_from_another_run(make_config: Make, tmp_path: Path) -> None:
    for name in ("first", "second"):
        train(make_config(updates=2), tmp_path / name)
    settings = {"start_from": tmp_path / "first"}
    train(make_config(updates=4), tmp_path / "on", **settings)
    train(make_config(updates=6), tmp_path / "on", resume=True, **settings)
    for name in ("on", "second"):
        with pytest.raises(UserError, match="did not begin with"):
            train(
                make_config(updates=8), tmp_path / name, resume=True, start_from=tmp_path / "second"
            )


def test_a_training_begun_from_a_run_does_not_silently_begin_again(
    make_config: Make, tmp_path: Path
) -> None:
    train(make_config(updates=2), tmp_path / "first")
    train(make_config(updates=4), tmp_path / "on", start_from=tmp_path / "first")
    log = (tmp_path / "on" / "metrics.jsonl").read_text()
    for checkpoint in list_checkpoints(tmp_path / "on"):
        (checkpoint / "model.safetensors").write_bytes(b"damaged")
    with (
        pytest.warns(Notice, match="is damaged"),
        pytest.raises(UserError, match="no undamaged checkpoint"),
    ):
        train(make_config(updates=8), tmp_path / "on", resume=True)
    assert (tmp_path / "on" / "metrics.jsonl").read_text() == log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(
    make_config: Make, tmp_path: Path, number: int
) -> None:
    recipe = write_recipe(make_config(updates=100_000, save_every=10), tmp_path / "recipe.yaml")
    process = start(recipe, tmp_path / "run")
    deadline = time.monotonic() + PATIENCE
    while not list_checkpoints(tmp_path / "run") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    last = errors.decode().strip().splitlines()[-1]
    assert last.endswith(f"Continue with: headcount train --resume {tmp_path / 'run'}")
    newest = list_checkpoints(tmp_path / "run")[-1]
    assert json.loads((newest / "state.json").read_text())["update"] == int(newest.name)


def test_a_signal_does_not_wait_for_the_next_line_of_the_log(
    make_config: Make, tmp_path: Path
) -> None:
    config = make_config(updates=100_000, save_every=10, log_every=100_000)
    recipe = write_recipe(config, tmp_path / "recipe.yaml")
    command = [*TORCHRUN, "-m", "headcount", "train", str(recipe), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    while not list_checkpoints(tmp_path / "run") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert "Continue with: headcount train --resume" in errors.decode()
    newest = list_checkpoints(tmp_path / "run")[-1]
    assert json.loads((newest / "state.json").read_text())["update"] == int(newest.name)
