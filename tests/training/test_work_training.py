"""What a training step costs, counted: passes, matrix products and vocabulary-sized tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from headcount.config import Config, ModelConfig
from headcount.data.batches import Batch, Update
from headcount.distribution import Workers
from headcount.model.transformer import Transformer
from headcount.run import Run
from headcount.training.loop import Trainer
from headcount.training.objective import batch_losses
from headcount.training.preparation import prepare_training
from headcount.training.train import make_trainer
from work_counting import Operations, calls, rows, vocabulary_rows

VOCABULARY = 97
ENCODER, DECODER = 3, 2


def make_batch(lengths: list[int]) -> Batch:
    """Targets of these lengths, padded; a source token each and EOS."""
    longest = max(lengths)
    output, given = (torch.zeros(len(lengths), longest, dtype=torch.long) for _ in range(2))
    for row, length in enumerate(lengths):
        output[row, :length] = torch.arange(4, 4 + length)
        output[row, length - 1] = 3
        given[row, 0] = 2
        given[row, 1:length] = output[row, : length - 1]
    source = torch.tensor([[5, 3]] * len(lengths))
    indices = torch.arange(len(lengths)).numpy()
    return Batch(source, given, output, indices, 2 * len(lengths), sum(lengths))


def step(lengths: list[int], dropout: float = 0.1) -> Operations:
    torch.manual_seed(0)
    config = ModelConfig(
        encoder_layers=ENCODER,
        decoder_layers=DECODER,
        heads=2,
        width=8,
        ff_width=16,
        dropout=dropout,
    )
    model = Transformer(config, 50, VOCABULARY).train()
    with Operations() as operations:
        batch_losses(model, make_batch(lengths), 0.1).smoothed.backward()
    return operations


@pytest.mark.parametrize("lengths", [[4], [12, 1, 1, 1, 1, 2], [5] * 9])
def test_products_do_not_depend_on_the_batch(lengths: list[int]) -> None:
    """Queries, keys and values are one product; backward has two for each of forward."""
    encoder_layer, decoder_layer, output = 4, 2 + 3 + 2, 1
    forward = ENCODER * encoder_layer + DECODER * decoder_layer + output
    assert step(lengths).products() == 3 * forward


@pytest.mark.parametrize("lengths", [[5, 5], [12, 1, 1, 2]])
def test_no_look_at_a_tensor_makes_the_host_wait(
    lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without content: whatever asked for some would fail, as it would stall a GPU."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # unknown for these
    config = ModelConfig(encoder_layers=2, decoder_layers=2, heads=2, width=8, ff_width=16)
    model = Transformer(config, 50, VOCABULARY).train().to("meta")
    batch = make_batch(lengths)
    if len(set(lengths)) > 1:  # source too: the first sentence is one token shorter
        source = batch.source.clone()
        source[0] = torch.tensor([3, 0])
        batch = replace(batch, source=source, source_tokens=batch.source_tokens - 1)
    batch = batch.to("meta")
    batch_losses(model, batch, 0.1).smoothed.backward()
    parameters = list(model.parameters())
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    assert all(parameter.grad is not None for parameter in parameters)


def test_padding_gets_no_logits() -> None:
    lengths = [12, 1, 1, 1, 1, 2]
    wide = vocabulary_rows(VOCABULARY)
    sizes = [rows(shape) for _, shapes in step(lengths).done for shape in shapes if wide(shape)]
    assert sizes
    assert max(sizes) == sum(lengths)  # of 72 positions


def test_the_vocabulary_is_passed_over_twice() -> None:
    """Logits and their softmax, which becomes their gradient in place; smoothing needs no more."""
    lengths = [7, 3, 2]

    def wide(shape: tuple[int, ...]) -> bool:
        return shape == (sum(lengths), VOCABULARY)

    assert step(lengths).made(wide) == ["mm", "softmax"]


def test_dropout_draws_one_number_a_place() -> None:
    """The generator of torch, slow on a CPU, is asked for seeds only."""
    operations = step([5, 5])
    places = 2 + 2 * ENCODER + 3 * DECODER  # embeddings and the output of every block
    assert operations.count("randint") == places
    assert not operations.count("bernoulli_", "native_dropout", "rand", "uniform_")


@pytest.fixture
def trainer(make_config: Callable[..., Config], tmp_path: Path) -> Trainer:
    config = make_config(batch_tokens=180, device_tokens=60, clip_norm=1.0)
    prepared = prepare_training(config.data, config.training, lambda stage, done, total: None)
    source, target = prepared.source_tokenizer, prepared.target_tokenizer
    model = Transformer(config.model, source.size, target.size)
    run = Run(tmp_path / "run", config, model, source, target)
    return make_trainer(run, prepared, Workers(), lambda line: None)


def test_an_update_is_one_pass_each_way_a_micro_batch_and_one_step(trainer: Trainer) -> None:
    update: Update = next(islice(trainer._updates(), 1))
    passes = len(update.micro_batches)
    assert passes > 1
    trainer.model.train()
    window = trainer._window()
    with calls(Transformer, "encode", "decode") as called, Operations() as operations:
        trainer._train_update(update, window)
    assert called == {"encode": passes, "decode": passes}
    layers = trainer.model.config.encoder_layers, trainer.model.config.decoder_layers
    norms = 2 * layers[0] + 3 * layers[1] + 2
    assert operations.count("native_layer_norm") == passes * norms
    assert operations.count("native_layer_norm_backward") == passes * norms
    assert operations.count("fused_adam_") == 1


def test_a_step_reads_no_number_of_the_loss(trainer: Trainer) -> None:
    """Reading one would make a GPU wait for each step; seeds are drawn on the CPU anyway."""
    update = next(islice(trainer._updates(), 1))
    trainer.model.train()
    window = trainer._window()
    with Operations() as operations:
        trainer._train_update(update, window)
    read = [name for name, _ in operations.done if name == "local_scalar_dense"]
    assert len(read) == operations.count("randint")


def test_to_go_on_is_no_question_to_a_device(trainer: Trainer) -> None:
    with Operations() as operations:
        assert not trainer._should_stop()
    assert not operations.done
