"""Distillation against the loss written out in full; refusals; text that a teacher translated."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headcount.cli import main
from headcount.config import Config
from headcount.data.batches import Batch
from headcount.errors import UserError
from headcount.model.decoding import Search
from headcount.model.transformer import Transformer
from headcount.run import load_run
from headcount.training.distillation import Teacher, load_teacher, translate_corpus
from headcount.training.metrics import read_metrics
from headcount.training.objective import Objective, batch_losses
from headcount.training.train import train
from headcount.translation import translate_lines

VOCABULARY = (23, 19)

ModelMaker = Callable[..., Transformer]


def make_batch(make_tokens: Callable[..., Tensor]) -> Batch:
    source, output = make_tokens([4, 2, 6], 23, 1), make_tokens([3, 5, 1], 19, 2)
    shifted = torch.cat([torch.full((3, 1), 2), output[:, :-1]], 1)
    target_input = torch.where(output == 0, 0, shifted)
    counts = int((source != 0).sum()), int((output != 0).sum())
    return Batch(source, target_input, output, torch.arange(3).numpy(), *counts)


def slow_losses(
    model: Transformer, batch: Batch, smoothing: float, teacher: Teacher
) -> tuple[Tensor, Tensor]:
    """Token by token: cross-entropy to a target distribution, and squared differences of states."""
    memory, mask = model.encode(batch.source)
    example, other = teacher.model.encode(batch.source)
    logits = model.logits(model.decode(batch.target_input, memory, mask))
    taught = teacher.model.logits(teacher.model.decode(batch.target_input, example, other))
    loss, nll = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for row, labels in enumerate(batch.target_output):
        for place, label in enumerate(labels.tolist()):
            if label == 0:
                continue
            logs = logits[row, place].log_softmax(0)
            wanted = torch.full_like(logs, smoothing / len(logs))
            wanted[label] += 1 - smoothing
            soft = taught[row, place].exp() / taught[row, place].exp().sum()
            target = (1 - teacher.share) * wanted + teacher.share * soft.detach()
            loss, nll = loss - (target * logs).sum(), nll - logs[label]
        for place, token in enumerate(batch.source[row].tolist()):
            if token:
                difference = memory[row, place] - example[row, place].detach()
                loss = loss + teacher.states * (difference**2).sum() / len(difference)
    return loss, nll


@pytest.mark.parametrize(("share", "states"), [(0.3, 0.0), (1.0, 0.0), (0.5, 2.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_loss_written_out(
    share: float,
    states: float,
    smoothing: float,
    bias: bool,
    make_model: ModelMaker,
    make_tokens: Callable[..., Tensor],
) -> None:
    model = make_model(1, VOCABULARY, output_bias=bias)
    teacher = Teacher(make_model(2, VOCABULARY, encoder_layers=1, ff_width=8), share, states)
    batch = make_batch(make_tokens)

    losses = batch_losses(model, batch, smoothing, teacher)
    losses.smoothed.backward()
    ours = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    expected, nll = slow_losses(model, batch, smoothing, teacher)
    expected.backward()
    theirs = [p.grad for p in model.parameters() if p.grad is not None]

    assert losses.smoothed.item() == pytest.approx(expected.item(), rel=1e-9)
    assert losses.nll.item() == pytest.approx(nll.item(), rel=1e-9)
    assert not losses.nll.requires_grad
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert all(p.grad is None for p in teacher.model.parameters())


def test_a_model_has_nothing_to_learn_from_itself(
    make_model: ModelMaker, make_tokens: Callable[..., Tensor]
) -> None:
    model = make_model(1, VOCABULARY)
    losses = batch_losses(model, make_batch(make_tokens), 0.1, Teacher(model, 1.0, 3.0))
    losses.smoothed.backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.abs().max() < 1e-12


def test_a_batch_is_the_sum_of_its_sentences(
    make_model: ModelMaker, make_tokens: Callable[..., Tensor]
) -> None:
    """So any division into micro-batches and processes gives the same update."""
    model, batch = make_model(1, VOCABULARY), make_batch(make_tokens)
    teacher = Teacher(make_model(2, VOCABULARY), 0.4, 1.5)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(3):
        sides = [side[row : row + 1] for side in (batch.source, batch.target_input)]
        output = batch.target_output[row : row + 1]
        counts = int((sides[0] != 0).sum()), int((output != 0).sum())
        alone = Batch(*sides, output, torch.arange(1).numpy(), *counts)
        total += batch_losses(model, alone, 0.1, teacher).smoothed.detach()
    whole = batch_losses(model, batch, 0.1, teacher).smoothed
    assert whole.item() == pytest.approx(total.item(), rel=1e-9)


def test_states_count_once_however_few_tokens_are_asked_for(
    make_model: ModelMaker, make_tokens: Callable[..., Tensor]
) -> None:
    """Hidden tokens stand for all tokens of a batch; its states are all compared as it is."""
    model, batch = make_model(1, VOCABULARY), make_batch(make_tokens)
    other = make_model(2, VOCABULARY)
    first = batch.target_output.clone()
    first[:, 1:] = 0  # the first of each sentence
    asked = replace(batch, target_output=first, target_tokens=3)

    teacher = Teacher(other, 0.4, 1.5)
    objective = Objective(model, 0.1, teacher, ask=lambda _: asked)
    words, _ = slow_losses(model, asked, 0.1, Teacher(other, 0.4))
    both, nll = slow_losses(model, asked, 0.1, teacher)
    losses = objective.losses(batch)
    weight = batch.target_tokens / 3
    expected = weight * words + (both - words)
    assert weight > 2
    assert losses.smoothed.item() == pytest.approx(expected.item(), rel=1e-9)
    assert losses.nll.item() == pytest.approx(weight * nll.item(), rel=1e-9)


def test_the_teachers_distribution_is_gone_before_backward(
    make_model: ModelMaker, make_tokens: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as large as the logits: keeping it would add half to a training step's memory."""
    seen: list[weakref.ref[Tensor]] = []
    predict = Teacher.predict

    def watched(self: Teacher, *arguments: Any) -> tuple[Tensor, Tensor]:
        memory, soft = predict(self, *arguments)
        seen.append(weakref.ref(soft))
        return memory, soft

    monkeypatch.setattr(Teacher, "predict", watched)
    model, batch = make_model(1, VOCABULARY), make_batch(make_tokens)
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = batch_losses(model, batch, 0.1, Teacher(make_model(2, VOCABULARY), 0.5))
    assert seen[0]() is None
    large = [tensor for tensor in kept if tensor.shape == (batch.target_tokens, VOCABULARY[1])]
    assert len(large) == 1, "the gradient of the logits alone"
    losses.smoothed.backward()


@pytest.fixture
def teacher_run(make_config: Callable[..., Config], tmp_path: Path) -> Path:
    train(make_config(updates=4), tmp_path / "teacher")
    return tmp_path / "teacher"


def test_training_with_a_teacher_resumes_exactly(
    make_config: Callable[..., Config], teacher_run: Path, tmp_path: Path
) -> None:
    taught = {"teacher": str(teacher_run), "distil": 0.7, "distil_states": 0.5}
    train(make_config(**taught), tmp_path / "whole")
    train(make_config(**taught, updates=8), tmp_path / "parts")
    train(make_config(**taught), tmp_path / "parts", resume=True)
    train(make_config(updates=3), tmp_path / "alone")
    whole, parts = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "parts"))
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], rtol=0, atol=0)
    first, other = (
        read_metrics(tmp_path / name / "metrics.jsonl")[0]["loss"] for name in ("whole", "alone")
    )
    assert first != pytest.approx(other, rel=1e-3), "the teacher is a part of the loss"


def test_teachers_that_do_not_fit(
    make_config: Callable[..., Config], teacher_run: Path, run_folder: Path
) -> None:
    learner = load_run(teacher_run)
    training = learner.config.training
    assert load_teacher(training, learner) is None

    def problem(teacher: Path, **changes: Any) -> str:
        with pytest.raises(UserError) as stopped:
            load_teacher(training.model_copy(update={"teacher": teacher, **changes}), learner)
        return stopped.value.problem

    assert "another source vocabulary" in problem(run_folder)
    assert "not a run folder" in problem(teacher_run.parent)
    narrow = load_run(teacher_run)
    narrow.config.model.width = 8
    learner.config = narrow.config
    assert "16 neurons wide, the run 8" in problem(teacher_run, distil_states=1.0)


def test_a_corpus_with_the_teachers_translations(
    corpus: Path, teacher_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "translated"
    command = ["translate", teacher_run, "--corpus", corpus, "--output", out, "--beam", 2]
    command += ["--pairs", 100]
    monkeypatch.setattr("sys.argv", ["headcount", *map(str, command), "--quiet"])
    main()
    sources = (out / "train.en").read_text().splitlines()
    assert len(sources) == 100
    assert set(sources) < set((corpus / "train.en").read_text().splitlines())
    run = load_run(teacher_run)
    expected = translate_lines(run, sources, Search.of(run.config.search, beam=2))
    assert (out / "train.fr").read_text().splitlines() == expected
    for name in ("dev.en", "dev.fr", "test.en", "test.fr"):
        assert (out / name).read_text() == (corpus / name).read_text()
    assert not [path for path in out.iterdir() if path.is_dir()], "prepared data is not copied"
    config = run.config.model_copy(
        update={"data": run.config.data.model_copy(update={"folder": out})}
    )
    train(config, tmp_path / "student")
    with pytest.raises(UserError, match="already exists"):
        translate_corpus(run, corpus, out)
