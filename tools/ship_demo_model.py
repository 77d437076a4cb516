"""Put a trained run into the package as the demo's model: averaged, float16, with a model card.

    python tools/ship_demo_model.py RUN CORPUS [--checkpoints 3]

RUN is a training of `recipes/demo-model.yaml`, still going on or finished; its last checkpoints are
averaged. CORPUS is the folder that `headcount data tatoeba-en-fr` made: the card's scores come from
its test set.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path

import torch

from headcount.data.corpora import load_corpus
from headcount.files import atomic_folder, write_text
from headcount.run import WEIGHTS, Run, load_run, save_weights
from headcount.scoring import RESAMPLES, Scores, score_lines
from headcount.study.demo import shipped_model
from headcount.training.checkpoints import average_weights, list_checkpoints
from headcount.training.metrics import read_metrics
from headcount.translation import translate_lines

CARD = """\
# The demo's model

English to French, {parameters:,} parameters: {encoder} encoder layers of {heads} heads,
{decoder} decoder layers, {width} wide. Trained by `headcount train recipes/demo-model.yaml`
(`config.yaml` is the resolved recipe, `metrics.jsonl` the training log) for {updates:,} updates,
{epochs:.1f} epochs; the weights are {weights}, in float16.

On the {sentences} test sentences, beam 4:

- {bleu}
- {chrf}

Made by `python tools/ship_demo_model.py`. The model is small and knows short, everyday sentences
only. It is here to be looked into, not to translate with.

Training data: {attribution}. Licence of the data: {licence}.
"""


def main() -> None:
    """Average, score, and replace the package's model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--checkpoints", type=int, default=3)
    given = parser.parse_args()
    paths = list_checkpoints(given.run)[-given.checkpoints :]
    run = load_run(given.run)
    mean = average_weights(paths)
    with torch.no_grad():
        for name, parameter in run.model.named_parameters():
            parameter.copy_(mean[name].half().float())
    data = run.config.data.model_copy(update={"corpus": "tatoeba-en-fr", "folder": None})
    run = dataclasses.replace(run, config=run.config.model_copy(update={"data": data}))
    card = make_card(run, given.corpus, len(paths), int(paths[-1].name))
    out = shipped_model()
    shutil.rmtree(out, ignore_errors=True)
    with atomic_folder(out) as partial:
        run.save(partial)
        save_weights(run.model, partial / WEIGHTS, half=True)
        shutil.copyfile(given.run / "metrics.jsonl", partial / "metrics.jsonl")
        write_text(partial / "README.md", card)
    print(card)


def make_card(run: Run, corpus_folder: Path, checkpoints: int, updates: int) -> str:
    """The model card, scores measured on the spot."""
    corpus = load_corpus(corpus_folder, check=False)
    scores = test_scores(run, corpus_folder)
    lines = [line for line in read_metrics(run.folder / "metrics.jsonl") if "epoch" in line]
    tokens = max(line["source_tokens"] for line in lines)
    frequencies = run.source_frequencies
    assert frequencies is not None
    in_epoch = int(frequencies.sum()) + corpus.description["counts"]["train"]
    config = run.config.model
    return CARD.format(
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        encoder=config.encoder_layers,
        decoder=config.decoder_layers,
        heads=config.heads,
        width=config.width,
        updates=updates,
        epochs=tokens / in_epoch,
        weights="those of the last update"
        if checkpoints == 1
        else f"the mean of the last {checkpoints} checkpoints",
        sentences=scores.lines,
        bleu=f"{scores.bleu} `{scores.bleu.signature}`",
        chrf=f"{scores.chrf} `{scores.chrf.signature}`",
        attribution=corpus.description["attribution"],
        licence=corpus.description["licence"],
    )


def test_scores(run: Run, corpus_folder: Path) -> Scores:
    """BLEU and chrF on the test set."""
    pairs = list(load_corpus(corpus_folder, check=False).pairs("test"))
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return score_lines(translate_lines(run, sources), references, RESAMPLES)


if __name__ == "__main__":
    main()
