"""Learning from a teacher, another run with the same vocabulary.

Word by word (Hinton, Vinyals & Dean 2015): the model also learns the teacher's distribution over
the next token, as a part of its objective. Sentence by sentence (Kim & Rush 2016): the teacher
translates the training text, and the model learns from its translations as from any other corpus.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headcount.config import LARGEST, TrainingConfig
from headcount.data.batches import Batch
from headcount.data.cleaning import spread
from headcount.data.corpus_folder import DESCRIPTION, Corpus, load_corpus
from headcount.data.fetch import sha256_of
from headcount.errors import UserError
from headcount.files import atomic_folder, inside, owned, read_lines, write_json
from headcount.model.decoding import Search
from headcount.model.transformer import Transformer
from headcount.progress import Progress, silent
from headcount.run import WEIGHTS, Run, load_run
from headcount.translation import translate_stream


@dataclass(frozen=True)
class Teacher:
    """A model that is not trained itself, and how much another one learns from it.

    share   of the target distribution: the rest is the reference's token
    states  weight of the mean squared difference between the encoder states of the two
    """

    model: Transformer
    share: float
    states: float = 0.0

    @torch.no_grad()
    def predict(self, batch: Batch, padded: bool, real: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder states `[batch, source, width]`, and probabilities `[tokens, vocabulary]`.

        The latter of the target positions `real` `[tokens]`, counted through the whole batch.
        """
        memory, mask = self.model.encode(batch.source, padded)
        states = self.model.decode(batch.target_input, memory, mask)
        return memory, self.model.logits(states.flatten(0, 1).index_select(0, real)).softmax(1)

    def difference(self, memory: Tensor, own: Tensor, source: Tensor) -> Tensor:
        """Squared difference of encoder states: mean over neurons, sum over source tokens."""
        squares = (memory - own).square().mean(2)  # [batch, source]
        return self.states * (squares * (source != self.model.pad)).sum()


def load_teacher(
    training: TrainingConfig, learner: Run, device: torch.device | str = "cpu"
) -> Teacher | None:
    """The teacher that a recipe names, where it names one; it must fit the run that learns."""
    if training.teacher is None:
        return None
    run = load_run(training.teacher, device)
    for side in ("source", "target"):
        own, other = (getattr(each, f"{side}_tokenizer").fingerprint() for each in (learner, run))
        if own != other:
            raise UserError(
                f"The teacher {run.folder} has another {side} vocabulary than the run.",
                "Give a teacher with the same tokenizers, or let it translate the training text"
                " (`headcount translate --corpus`).",
            )
    theirs, mine = run.config.model, learner.config.model
    if bool(theirs.decoder_layers) != bool(mine.decoder_layers) or not theirs.predicts:
        what = "translations" if mine.decoder_layers else "hidden tokens"
        raise UserError(
            f"The teacher {run.folder} does not predict {what}, as the run does.",
            "Give a teacher of the run's own kind.",
        )
    longest = learner.config.data.max_length + 1
    if theirs.max_positions < longest:
        raise UserError(
            f"The teacher {run.folder} has {theirs.max_positions} positions, and sentences have up"
            f" to {longest} tokens.",
            "Give another teacher, or lower data.max_length.",
        )
    if training.distil_states and theirs.width != mine.width:
        raise UserError(
            f"The teacher {run.folder} is {theirs.width} neurons wide, the run {mine.width}: their"
            " encoder states cannot be compared.",
            "Set distil_states to 0.",
        )
    run.model.requires_grad_(False)
    return Teacher(run.model, training.distil, training.distil_states)


def translate_corpus(
    run: Run,
    folder: Path,
    out: Path,
    search: Search | None = None,
    pairs: int | None = None,
    progress: Progress = silent,
) -> Corpus:
    """A corpus folder whose training targets are the run's translations; the rest is copied.

    What a run writes is simpler than what people write, and easier to learn for a smaller model.
    Dev and test sets stay as they are, so that scores can be compared. `pairs` of the training
    pairs are translated, spread evenly, by default all.
    """
    data = run.config.data
    corpus = load_corpus(folder, f"{data.source}-{data.target}")
    if out.exists():
        raise UserError(f"{out} already exists.", "Choose another --output.")
    total = min(corpus.counts["train"], pairs or LARGEST)
    lines = spread(list(read_lines(corpus.path("train", "source"))), total)
    with owned(out), atomic_folder(out) as partial:
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name.split(".")[0] in ("dev", "test"):
                shutil.copyfile(path, partial / path.name)
        translated = translate_stream(run, lines, search, total=total, progress=progress)
        texts = (lines, (best[0].text for best in translated))
        for language, side in zip(corpus.languages, texts, strict=True):
            path = inside(partial, f"train.{language}")
            with path.open("w", encoding="utf-8", newline="\n") as handle:
                handle.writelines(f"{line}\n" for line in side)
        counts = corpus.counts | {"train": total}
        write_json(partial / DESCRIPTION, _description(corpus, counts, run, partial))
    return load_corpus(out, check=False)


def _description(
    corpus: Corpus, counts: dict[str, int], run: Run, folder: Path
) -> dict[str, object]:
    """What `corpus.json` says of it: as before, with what translated it."""
    languages = dict(zip(("source", "target"), corpus.languages, strict=True))
    return corpus.description | {
        "languages": languages,
        "counts": counts,
        "translated_by": {"run": str(run.folder), "weights": sha256_of(run.folder / WEIGHTS)},
        "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
    }
