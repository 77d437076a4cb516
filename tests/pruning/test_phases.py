"""What a pruning checks and says: equal logits, heads that nothing could close, undecided gates."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import headcount.pruning.process as process
from headcount.data.batches import Batch
from headcount.errors import Notice, UserError
from headcount.heads import Head
from headcount.model.gating import masked, remove_heads
from headcount.model.transformer import Transformer
from headcount.pruning.process import Pruning, check_equal
from headcount.pruning.prune import prune
from headcount.pruning.record import read_record
from headcount.run import load_run, regroup
from headcount.training.checkpoints import TrainingState
from headcount.training.metrics import read_metrics
from headcount.training.objective import Losses

QUICK = {"finetune": 1, "bleu_sentences": 4}


def test_logits_may_differ_by_rounding_only() -> None:
    logits = torch.tensor([[100.0, -3.0], [0.5, 2.0]])
    assert check_equal(logits, logits + 1e-4) == pytest.approx(1e-4, rel=0.1)
    with pytest.raises(UserError, match=r"differ by up to 0\.002.*0\.001 is rounding"):
        check_equal(logits, logits + torch.tensor([[0.0, 0.002], [0.0, 0.0]]))
    with pytest.raises(UserError, match="up to nan"):
        check_equal(logits, logits * float("nan"))
    small = logits / 1000
    assert check_equal(small, small + 5e-6) <= 1e-5


def test_a_removal_that_changes_the_model_is_refused(
    baseline: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one of the closed heads stays. Nothing that looks like a finished run is left."""

    def wrong(model: Any, closed: Any) -> Any:
        return remove_heads(model, closed[1:])

    monkeypatch.setattr(process, "remove_heads", wrong)
    with pytest.raises(UserError, match="has changed the model"):
        prune(baseline, corpus, tmp_path / "out", keep=1, by="random", updates=0)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_the_phases_follow_one_another(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    """Heads are chosen in 4 updates; what fixing them costs is measured once, before the fifth."""
    prune(baseline, corpus, tmp_path / "out", keep=2, updates=7, finetune=3, bleu_sentences=4)
    lines = read_metrics(tmp_path / "out" / "metrics.jsonl")
    kinds = [(line["kind"], line["update"]) for line in lines if line["kind"] != "dev"]
    assert kinds == [
        *[("train", update) for update in range(1, 5)],
        ("decided", 5),
        *[("train", update) for update in range(5, 8)],
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"updates": 6, "warmup": 50}, "rises for 50 updates, but heads are chosen after 5"),
        ({"updates": 6, "warmup": 0}, "none can close in 5 updates"),
    ],
)
def test_a_pruning_that_cannot_prune_says_so_first_and_last(
    given: dict[str, int], said: str, baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    with pytest.warns(Notice) as told:
        prune(baseline, corpus, tmp_path / "out", penalty=0.05, **QUICK, **given)
    first, last = str(told[0].message), str(told[-1].message)
    assert said in first
    assert "--updates" in first
    assert "No head was removed: all 4 at enc are still open. Raise --penalty" in last


def test_undecided_gates_are_named(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    with pytest.warns(Notice, match="neither open nor closed") as told:
        prune(
            baseline, corpus, tmp_path / "out", penalty=9, warmup=0, gate_learning_rate=1.2,
            updates=3, finetune=1,
        )  # fmt: skip
    text = next(str(w.message) for w in told if "neither" in str(w.message))
    assert "enc.0.0, enc.0.1, enc.1.0, enc.1.1" in text
    assert text.count("BLEU") == 2


def test_who_asks_for_all_heads_is_not_warned(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        prune(baseline, corpus, tmp_path / "out", keep=4, by="random", updates=0)


@pytest.mark.parametrize(
    ("sites", "given"),
    [
        ("enc", {"keep": 1}),
        ("enc,dec,cross", {"keep": 5, "by": "random"}),
        ("enc_ff,dec_layers", {"keep": "enc_ff=2,dec_layers=3", "by": "random"}),
    ],
)
def test_cut_heads_train_on_as_if_they_were_masked(
    sites: str,
    given: dict[str, Any],
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fine-tuning without closed heads ends with the model of fine-tuning with gates of 0.

    Without dropout: a block that is gone draws no random numbers. Weights that do nothing (biases
    of keys, the norm of a layer without heads) may differ, so logits are compared.
    """
    settings = {"updates": 9, "finetune": 5, "bleu_sentences": 4, "ff_block": 4, "sites": sites}
    settings |= {"learning_rate": 0.01}
    shutil.copytree(baseline, tmp_path / "run")
    config = (baseline / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(config.replace("dropout: 0.1", "dropout: 0.0"))

    class Masked(Pruning):
        def _go_on_with(self, smaller: Transformer) -> None:
            closed = self.objective.selection.closed()
            losses = self.objective.losses
            self.objective.fix(self.target.model)

            def masked_losses(batch: Batch) -> Losses:
                with masked(self.target.model, closed):
                    return losses(batch)

            monkeypatch.setattr(self.objective, "losses", masked_losses)

        def _finish(self, progress: TrainingState) -> None:
            closed = self.objective.selection.closed()
            self.target.model = remove_heads(self.target.model.eval(), closed)
            super()._finish(progress)

    tokens = torch.tensor([[5, 6, 7, 8, 3]])
    cut = prune(tmp_path / "run", corpus, tmp_path / "cut", **settings, **given)
    monkeypatch.setattr("headcount.pruning.prune.Pruning", Masked)
    slow = prune(tmp_path / "run", corpus, tmp_path / "masked", **settings, **given)
    before = regroup(load_run(tmp_path / "run"), 4).model
    unmoved = remove_heads(before, closed_in(tmp_path / "cut"))
    assert cut.model.heads == slow.model.heads == unmoved.heads
    logits = [run.model(tokens, tokens) for run in (cut, slow)]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits[0], unmoved(tokens, tokens), atol=0.01)


def closed_in(folder: Path) -> list[Head]:
    return [Head.parse(head) for head in read_record(folder)["closed"]]
