"""How far imported models of every family are from `transformers`, and their exports from the run.

    python benchmarks/families.py [--configurations 20] [--exported 5]

Tiny checkpoints with random weights and settings, of every family and variant, made by
`transformers` itself (`tests/interop/family_checkpoints.py`). Prints a line of JSON for each: the
largest difference of logits at import over all configurations, and those of the exports of some of
them after heads were pruned (log-probabilities in CTranslate2).
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from headcount.data.builtin import generate
from headcount.heads import Head
from headcount.interop.export import export
from headcount.interop.importing import import_run
from headcount.model.gating import remove_heads

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "interop"))
from family_checkpoints import Maker

TRANSLATORS = ("m2m100", "bart", "mbart", "t5", "mt5", "madlad")
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert")
HEADS = ("ForMaskedLM", "ForSequenceClassification", "Model")


def main() -> None:
    """Print the table, family by family."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configurations", type=int, default=20)
    parser.add_argument("--exported", type=int, default=5)
    options = parser.parse_args()
    maker, lines = make_maker()
    variants: list[tuple[str, dict[str, Any]]] = [(family, {}) for family in TRANSLATORS]
    variants += [(family, {"head": head}) for family in ENCODERS for head in HEADS]
    for family, changes in variants:
        largest = {"import": 0.0}
        formats = (
            ("transformers", "ctranslate2", "onnx") if family in TRANSLATORS else ("transformers",)
        )
        for seed in range(options.configurations):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                made = maker.make(family, folder / "model", seed, **dict(changes))
                imported = import_run(folder / "model", folder / "run", **made.options)
                largest["import"] = max(largest["import"], imported.difference)
                if seed >= options.exported:
                    continue
                run = imported.run
                run.model = remove_heads(run.model, [Head("enc", 0, 0)])
                for to in formats:
                    difference = export(run, to, folder / to, lines=lines[:5]).difference
                    largest[to] = max(largest.get(to, 0.0), difference)
        row = {"family": family, **changes, "configurations": options.configurations}
        row |= {"exported": options.exported}
        print(json.dumps(row | {k: float(f"{v:.2g}") for k, v in largest.items()}), flush=True)


def make_maker() -> tuple[Maker, list[str]]:
    """What makes checkpoints, with tokenisers trained on the built-in corpus."""
    import sentencepiece
    import transformers

    pairs = list(generate(400, seed=3))
    english, french = [sentence.text for sentence, _ in pairs], [other for _, other in pairs]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*english, *french]), model_writer=model, vocab_size=300,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return Maker(transformers, [*english, *french], model.getvalue()), english


if __name__ == "__main__":
    main()
