"""Put a trained run into the package as one of its models: float16, with a model card.

    python tools/ship_demo_model.py RUN --parts RUN ... --corpora CORPUS ... [--conllu GOLD.conllu]
    python tools/ship_demo_model.py RUN --as demo-ru --parts RUN ... --corpora CORPUS ...

RUN is a finished training of the last part, such as `recipes/demo-model-decoder.yaml`; `--parts`
are the runs of the parts before it, in order, whose logs come first. Every CORPUS is the folder of
one of its corpora, Tatoeba first: the card's scores come from their test sets, and its heads from
Tatoeba's test set, parsed by spaCy, and from gold trees where they are given.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from itertools import pairwise
from pathlib import Path

import torch

from headcount.config import load_recipe
from headcount.data.corpora import CORPORA
from headcount.data.corpus_folder import load_corpus
from headcount.errors import SHIPPED
from headcount.files import atomic_folder, write_text
from headcount.role.analysis import roles
from headcount.role.result import Roles
from headcount.run import WEIGHTS, Run, load_run, save_weights
from headcount.scoring import RESAMPLES, Scores, score_lines
from headcount.training.metrics import FILE as METRICS
from headcount.training.metrics import FINAL, Metrics, read_metrics
from headcount.translation import translate_lines

CARD = """\
# {title}

{languages}, {parameters:,} parameters: {encoder} encoder layers of {heads} heads,
{decoder} decoder layers of {decoder_heads} heads, {width} wide. Trained in {parts} parts,

{story}

`config.yaml` is the resolved last recipe, `metrics.jsonl` the log of all parts; the weights are
stored in float16. {updates:,} updates, {tokens:.1f} million source tokens, {hours:.1f} hours by its
log.{history}

## Scores

Test sentences, beam 4:

| text | sentences | BLEU | chrF2 |
|---|---|---|---|
{scores}

`{signature}`

## Heads

Encoder heads that meet the criteria of [docs/roles.md](../../../docs/roles.md), of {total}:

{roles}

## What it cannot do

{limits}

## Training text

{texts}

Made by `python tools/ship_demo_model.py`.
"""


@dataclasses.dataclass(frozen=True)
class Shipped:
    """What a card says that is not measured: how the model came about and what to expect of it."""

    title: str
    languages: str
    recipe: str
    story: str
    limits: str
    history: str = ""
    texts: str = ""
    """Credits of text that is not a known corpus."""


ONE_HEAD = """so that the encoder has to bring
together what belongs together: its heads specialise. The last one puts a decoder of the usual kind
onto that encoder and trains both."""

CARDS = {
    "demo": Shipped(
        "The demo's model",
        "English to French",
        "demo-model-decoder.yaml",
        """\
    headcount train recipes/demo-model.yaml --out runs/demo-model-1
    headcount train recipes/demo-model-further.yaml --start-from runs/demo-model-1 \\
        --out runs/demo-model-2
    headcount train recipes/demo-model-longer.yaml --start-from runs/demo-model-2 \\
        --out runs/demo-model-3
    torchrun --nproc-per-node 2 -m headcount train recipes/demo-model-decoder.yaml \\
        --start-from runs/demo-model-3 --out runs/demo-model

In the first three the decoder has one layer with one head, """
        + ONE_HEAD,
        """\
The model is small and knows everyday sentences and texts about software. It is here to be looked
into, not to translate with. No head points at rare words, at objects or at modifiers, and its
positional heads spread their attention: the largest weight is 0.4 to 0.6 on average.""",
        """
When the first part was trained, the first 2,070 updates had no joined pairs, and position biases
beyond 8 tokens were one value until update 12,730. The third part began with
weights that had been rounded to float16, and the rate of the last part fell as if it had 10,000
updates until its update 5,000.""",
    ),
    "demo-ru": Shipped(
        "The Russian model",
        "English to Russian",
        "russian-model-decoder.yaml",
        """\
    headcount train recipes/russian-model.yaml --out runs/russian-1
    headcount train recipes/russian-model-further.yaml --start-from runs/russian-1 \\
        --out runs/russian-2
    headcount train recipes/russian-model-decoder.yaml --start-from runs/russian-2 \\
        --out runs/russian-model

In the first two the decoder has one layer with one head, """
        + ONE_HEAD,
        """\
The model is small and knows short everyday sentences. It is here to be looked into, not to
translate with.""",
        texts="""\
- Tatoeba, English and Russian, short conversational sentences, 144,337 pairs, part of them joined
  through a third language. Licence: CC-BY 2.0 FR, contributors of Tatoeba (tatoeba.org).""",
    ),
}


def main() -> None:
    """Score the run, name its heads, and replace the package's model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--as", dest="name", choices=list(CARDS), default="demo")
    parser.add_argument("--parts", type=Path, nargs="+", required=True, help="the runs before it")
    parser.add_argument("--corpora", type=Path, nargs="+", required=True)
    parser.add_argument("--conllu", type=Path)
    options = parser.parse_args()
    run = load_run(options.run)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.copy_(parameter.half().float())
    card = CARDS[options.name]
    recipe = load_recipe(Path(__file__).parents[1] / "recipes" / card.recipe)
    config = run.config.model_copy(update={"data": recipe.data})
    run = dataclasses.replace(run, config=config)
    log = whole_log([*options.parts, options.run])
    text = make_card(card, run, log, options.corpora, options.conllu)
    out = SHIPPED[options.name]
    shutil.rmtree(out, ignore_errors=True)
    with atomic_folder(out) as partial:
        run.save(partial)
        save_weights(run.model, partial / WEIGHTS, half=True)
        write_text(partial / METRICS, "".join(json.dumps(line) + "\n" for line in log))
        write_text(partial / "README.md", text)
    print(text)


def whole_log(parts: list[Path]) -> list[Metrics]:
    """The training log from the first update on, updates counted through."""
    log: list[Metrics] = []
    for part in parts:
        done = max((line["update"] for line in log), default=0)
        log = [line for line in log if line["kind"] != FINAL]
        log += [{**line, "update": done + line["update"]} for line in read_metrics(part / METRICS)]
    return log


def make_card(
    card: Shipped, run: Run, log: list[Metrics], corpora: list[Path], conllu: Path | None
) -> str:
    """The model card, everything in it measured on the spot."""
    scores = {folder.name: test_scores(run, folder) for folder in corpora}
    sentences = corpora[0] / f"test.{run.config.data.source}"
    heads = {"the Tatoeba test set, parsed by spaCy": roles(run, sentences)}
    if conllu is not None:
        heads[f"gold trees ({conllu.name})"] = roles(run, conllu=conllu)
    training = [line for line in log if "epoch" in line]
    config = run.config.model
    return CARD.format(
        title=card.title,
        languages=card.languages,
        parts={3: "three", 4: "four"}[card.story.count("headcount train")],
        story=card.story,
        history=card.history,
        limits=card.limits,
        hours=seconds(log) / 3600,
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        encoder=config.encoder_layers,
        heads=config.heads,
        decoder=config.decoder_layers,
        decoder_heads=config.heads_at("dec"),
        width=config.width,
        updates=training[-1]["update"],
        tokens=training[-1]["source_tokens"] / 1e6,
        scores="\n".join(score_row(name, result) for name, result in scores.items()),
        signature=next(iter(scores.values())).bleu.signature,
        total=run.model.heads.count("enc"),
        roles="\n\n".join(f"On {text}:\n\n{role_list(result)}" for text, result in heads.items()),
        texts=card.texts or "\n".join(credit(part.name) for part in run.config.data.parts),
    )


def seconds(log: list[Metrics]) -> float:
    """How long all parts of a training took; each counts from its own beginning."""
    clock = [float(line["seconds"]) for line in log if "seconds" in line]
    return sum(now for now, after in pairwise([*clock, 0.0]) if after < now)


def score_row(name: str, scores: Scores) -> str:
    """One line of the table of scores."""
    figures = (str(each).removeprefix(f"{each.name} ") for each in (scores.bleu, scores.chrf))
    return f"| {name} | {scores.lines} | {' | '.join(figures)} |"


def role_list(result: Roles) -> str:
    """The heads that have a role, one line each."""
    lines = [
        f"- `{head}` {role.sentence}, confidence {head_roles.confidence:.2f}"
        for head, head_roles in result.heads.items()
        for role in head_roles.roles
    ]
    return "\n".join(lines) or "- none"


def credit(name: str) -> str:
    """Whom a corpus is owed to."""
    corpus = CORPORA[name]
    return f"- `{name}`, {corpus.help}. Licence: {corpus.licence}."


def test_scores(run: Run, folder: Path) -> Scores:
    """BLEU and chrF on a test set."""
    pairs = list(load_corpus(folder, check=False).pairs("test"))
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return score_lines(translate_lines(run, sources), references, RESAMPLES)


if __name__ == "__main__":
    main()
