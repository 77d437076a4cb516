"""What the loop refuses to go on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headcount.config import Config
from headcount.distribution import Workers
from headcount.errors import Notice, UserError
from headcount.training.preparation import prepare_training
from headcount.training.train import make_trainer, train


@dataclass(frozen=True)
class PeerAt(Workers):
    """One of two workers; the other one resumes from `peer`."""

    world: int = 2
    peer: int = 0

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor + torch.tensor([self.peer, self.peer**2]).to(tensor)

    def wait(self) -> None:
        """There is nobody to wait for."""


@pytest.mark.parametrize(("peer", "agree"), [(12, True), (8, False), (0, False), (16, False)])
def test_workers_must_resume_from_the_same_checkpoint(
    make_config: Callable[..., Config], tmp_path: Path, peer: int, agree: bool
) -> None:
    config = make_config(updates=12, evaluate_every=50)
    run, _ = train(config, tmp_path / "run")
    prepared = prepare_training(config.data, config.training, lambda stage, done, total: None)
    trainer = make_trainer(run, prepared, PeerAt(peer=peer), lambda line: None)
    if agree:
        assert trainer.resume()
        assert trainer.progress.update == 12
    else:
        with pytest.raises(UserError, match="same newest checkpoint"):
            trainer.resume()


def test_updates_stay_as_they_were_cut_at_the_beginning(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = make_config(updates=4, evaluate_every=50, device_tokens=200)
    run, _ = train(config, tmp_path / "run")
    prepared = prepare_training(config.data, config.training, lambda stage, done, total: None)
    trainer = make_trainer(run, prepared, PeerAt(peer=4), lambda line: None)
    with pytest.warns(Notice, match="work for 1 of its 2 processes"):
        assert trainer.resume()
    alone = make_trainer(run, prepared, Workers(), lambda line: None)
    assert alone.resume()
    again, expected = (next(iter(t._updates())) for t in (trainer, alone))
    assert again.number == expected.number == 4
    assert [micro.indices.tolist() for micro in again.micro_batches] == [
        micro.indices.tolist() for micro in expected.micro_batches
    ]
