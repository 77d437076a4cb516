"""Encoders alone: measures to hidden tokens or classes against slow references, and the verbs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_checkpoints import Maker
from torch.nn import functional as F
from typer.testing import CliRunner

import headcount
from headcount.cli import app
from headcount.errors import UserError
from headcount.explore.answers import Answers
from headcount.heads import Head
from headcount.interop.importing import import_run
from headcount.model.gating import gated, masked
from headcount.pruning.record import read_record
from headcount.run import Run, load_run
from headcount.training.masking import HIDDEN, draws_of

BERT = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
SIZES = {
    "masked bert": ("bert", {**BERT, "head": "ForMaskedLM"}),
    "masked roberta": ("roberta", {**BERT, "head": "ForMaskedLM"}),
    "classifying distilbert": ("distilbert", {"n_layers": 2, "head": "ForSequenceClassification"}),
    "classifying xlm-roberta": ("xlm-roberta", {**BERT, "head": "ForSequenceClassification"}),
    "headless bert": ("bert", {**BERT, "head": "Model"}),
}
PREDICT = [name for name in SIZES if name != "headless bert"]


@pytest.fixture(scope="module")
def folders(
    transformers: Any,
    english: list[str],
    french: list[str],
    sentencepiece_models: tuple,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    maker = Maker(transformers, [*english[:400], *french[:400]], sentencepiece_models[0])
    made = {}
    for seed, (name, (family, sizes)) in enumerate(SIZES.items()):
        folder = tmp_path_factory.mktemp(family)
        maker.make(family, folder / "model", seed, **sizes)
        import_run(folder / "model", folder / "run")
        made[name] = folder / "run"
    return made


@pytest.fixture
def text(tmp_path: Path, english: list[str]) -> Path:
    """A folder with text of one language."""
    for part, lines in {"train": english[20:120], "dev": english[:20]}.items():
        (tmp_path / f"{part}.en").write_text("\n".join(lines) + "\n")
    return tmp_path


def questions(run: Run, lines: list[str], seed: int) -> list[tuple[list[int], dict[int, int]]]:
    """What the run reads for each line, and what it has to predict at which position."""
    ids, asked = run.source_tokenizer, []
    for number, line in enumerate(lines):
        tokens = [*ids.encode(line), ids.eos]
        if run.config.model.classes:
            logits = run.model(torch.tensor([tokens]), torch.tensor([tokens]))
            asked.append((tokens, {0: int(logits[0, 0].argmax())}))
            continue
        draws = draws_of([number], len(tokens), seed)[0].tolist()
        inside = range(len(ids.before), len(tokens) - 1 - len(ids.after))
        hidden = [i for i in inside if draws[i] < HIDDEN] or [min(inside, key=draws.__getitem__)]
        read = [ids.mask if i in hidden else token for i, token in enumerate(tokens)]
        asked.append((read, {i: tokens[i] for i in hidden}))
    return asked


def loss(run: Run, tokens: list[int], labels: dict[int, int]) -> torch.Tensor:
    """Cross-entropy summed over what is asked."""
    source = torch.tensor([tokens])
    logits = run.model(source, source)[0].double()
    return sum(F.cross_entropy(logits[i], torch.tensor(label)) for i, label in labels.items())


@pytest.mark.parametrize("name", PREDICT)
def test_measures_are_what_they_say(
    folders: dict[str, Path], english: list[str], name: str
) -> None:
    """Of every head: the loss without it, |d loss / d gate| by differences, shares of relevance."""
    run, lines = load_run(folders[name]), english[:4]
    found = headcount.rank(run, lines, by="lrp,ablation,gradient,confidence", seed=3)
    run.model.double()
    with torch.no_grad():
        asked = questions(run, lines, 3)
        count = sum(len(labels) for _, labels in asked)
        full = sum(float(loss(run, *each)) for each in asked)
        for head in run.model.head_list():
            with masked(run.model, [head]):
                rise = sum(float(loss(run, *each)) for each in asked) - full
            assert found["ablation"][head] == pytest.approx(rise / count, abs=1e-5)
            place, at = (head.site, head.layer), head.index
            slopes = 0.0
            for each in asked:
                sides = []
                for step in (1e-5, -1e-5):
                    gates = torch.ones(len(run.model.heads.layers[head.site][head.layer])).double()
                    gates[at] += step
                    with gated(run.model, {place: gates}):
                        sides.append(float(loss(run, *each)))
                slopes += abs(sides[0] - sides[1]) / 2e-5
            assert found["gradient"][head] == pytest.approx(slopes / count, rel=1e-3, abs=1e-5)
    for layer in range(run.config.model.encoder_layers):
        shares = [v for head, v in found["lrp"].items() if head.layer == layer]
        assert sum(shares) == pytest.approx(1.0, abs=1e-3)
    assert found.about["steps"] == count


def test_classes_on_the_lines_of_references(folders: dict[str, Path], english: list[str]) -> None:
    run = load_run(folders["classifying distilbert"])
    names = run.config.model.classes
    own = headcount.rank(run, english[:3], by="ablation")
    with torch.no_grad():
        predicted = [names[labels[0]] for _, labels in questions(run, english[:3], 1)]
    assert headcount.rank(run, english[:3], predicted, by="ablation")["ablation"] == own["ablation"]
    others = [next(name for name in names if name != label) for label in predicted]
    asked = headcount.rank(run, english[:3], others, by="ablation")
    assert asked["ablation"] != own["ablation"]
    with pytest.raises(UserError, match=r"'nonsense' is no class of .*class 0"):
        headcount.rank(run, english[:3], ["nonsense"] * 3, by="ablation")
    masked_run = load_run(folders["masked bert"])
    with pytest.raises(UserError, match="no translations to compare with"):
        headcount.rank(masked_run, english[:3], english[:3], by="ablation")


def test_a_head_of_another_kind_is_noted(folders: dict[str, Path], tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folders["headless bert"].parent / "model", model)
    settings = json.loads((model / "config.json").read_text())
    settings["architectures"] = ["BertForTokenClassification"]
    (model / "config.json").write_text(json.dumps(settings))
    imported = import_run(model, tmp_path / "run")
    assert "BertForTokenClassification is not kept" in imported.notes[-1]


def test_one_output_is_no_class(folders: dict[str, Path], tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folders["classifying distilbert"].parent / "model", model)
    settings = json.loads((model / "config.json").read_text())
    settings |= {"id2label": {"0": "x"}, "label2id": {"x": 0}}
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="gives a number, not a class"):
        import_run(model, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_a_head_there_is_nothing_to_explain(
    folders: dict[str, Path], english: list[str], text: Path
) -> None:
    run = load_run(folders["headless bert"])
    assert set(headcount.rank(run, english[:3]).columns) == {"confidence", "random"}
    for measure in ("lrp", "lrp_signed", "gradient", "ablation"):
        with pytest.raises(UserError, match=r"no output head.*rank --by confidence"):
            headcount.rank(run, english[:3], by=measure)
    with pytest.raises(UserError, match="without a masked-language head"):
        headcount.prune(run, text, text / "out", keep=2)
    assert not (text / "out").exists()
    with pytest.raises(UserError, match="without a masked-language head"):
        headcount.prune(load_run(folders["classifying distilbert"]), text, text / "out", keep=2)
    assert not (text / "out").exists()


BATCH = ["--batch-tokens", "300"]
METHODS = {
    "gates": ["--penalty", "2", "--updates", "9", "--gate-learning-rate", "1", *BATCH],
    "exact": ["--keep", "3", "--updates", "6", *BATCH],
    "lrp": ["--keep", "3", "--by", "lrp", "--updates", "6", *BATCH],
    "gradient": ["--keep", "3", "--by", "gradient", "--no-finetune"],
    "random": ["--keep", "3", "--by", "random", "--no-finetune"],
    "exact, with a teacher": ["--keep", "3", "--updates", "6", "--distil", "0.5", *BATCH],
}


@pytest.mark.parametrize("method", METHODS)
def test_pruned_with_hidden_tokens(folders: dict[str, Path], text: Path, method: str) -> None:
    run = folders["masked bert"]
    options = [*METHODS[method], "--quiet", "--json"]
    arguments = ["prune", str(run), "--train", str(text), "--out", str(text / "out"), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None, result.exception
    pruned = load_run(text / "out")
    record = read_record(text / "out")
    left = pruned.model.heads.count("enc")
    assert left < 8 if method == "gates" else left == 3
    for when in ("before", "after"):
        assert "dev_bleu" not in record[when]
        assert 0 < record[when]["dev_loss"] < 20
    assert record["largest_logit_difference"] < 1e-4
    if left:
        again = headcount.rank(pruned, text / "dev.en", by="lrp,confidence")
        assert set(again["lrp"]) == set(pruned.model.head_list())
    assert headcount.export(pruned, "transformers", text / "back").padded_heads == 8 - left


def test_training_lowers_the_loss_of_hidden_tokens(folders: dict[str, Path], text: Path) -> None:
    """More than half an update's worth of luck: the objective is what is evaluated."""
    headcount.prune(
        folders["masked bert"], text, text / "out", keep=8, by="random", updates=40,
        batch_tokens=300, learning_rate=5e-3, train_only="encoder,decoder",
    )  # fmt: skip
    record = read_record(text / "out")
    assert record["after"]["dev_loss"] < record["before"]["dev_loss"] - 0.5


@pytest.mark.parametrize("name", PREDICT)
def test_relevance_of_one_sentence(folders: dict[str, Path], english: list[str], name: str) -> None:
    model = headcount.load(folders[name])
    mask = (
        ""
        if model.model.config.classes
        else model.source_tokenizer.tokens()[model.source_tokenizer.mask or 0]
    )
    result = model.relevance(f"{english[0]} {mask}".strip(), rule="zplus")
    steps = 1 if model.model.config.classes else len(result.source_tokens)
    assert result.source.shape == (steps, len(result.source_tokens))
    assert (result.source >= -1e-6).all()
    assert len(result.predicted) == len(result.steps) == steps
    if mask:
        assert mask in result.source_tokens
    tokens, logs = model.log_probabilities(english[0])
    assert np.isfinite(logs).all()
    assert len(tokens) == len(logs)
    assert set(result.heads["lrp"]) <= set(model.heads)
    without = model.relevance(english[0], off=["enc.0.0"])
    assert without.heads["lrp"].get(Head("enc", 0, 0), 0.0) == 0.0


def test_answers_of_the_live_page(folders: dict[str, Path], english: list[str]) -> None:
    models = {name: headcount.load(folder) for name, folder in folders.items()}
    answers = Answers(models)
    assert "The old woman reads a [MASK] in the garden." in answers.sentences
    about = {each["name"]: each for each in answers.about()["models"]}
    for name in SIZES:
        assert (about[name]["translates"], about[name]["predicts"]) == (False, name in PREDICT)
        asked = {"model": name, "text": english[0], "off": ["enc.0.0"]}
        attention = answers.answer("attention", asked)
        assert len(attention["tokens"]) > 3
        predicted = answers.answer("translation", asked)
        assert bool(predicted["tokens"]) == (name in PREDICT)
        if name == "masked bert":
            line = english[0].lower()
            shown = "".join(attention["tokens"][1:-1]).replace("▁", " ")
            assert shown.replace(" ", "") == line.replace(" ", "")
            assert shown.split()[0] == line.split()[0]
        if name in PREDICT:
            relevance = json.loads(json.dumps(answers.answer("relevance", asked)))
            assert relevance["target_tokens"] == []
            assert len(relevance["steps"]) == len(relevance["source"]) == len(predicted["tokens"])
