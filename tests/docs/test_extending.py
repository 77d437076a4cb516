"""The programs of docs/extending.md run as they stand, and do what the page says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headcount.config import parse_config
from headcount.data.builtin import generate
from headcount.data.conllu import write_conllu
from headcount.data.tokenizer import Tokenizer
from headcount.heads import Head
from headcount.model.transformer import Transformer
from headcount.pruning.methods import METHODS
from headcount.ranking.lrp.propagate import Propagation
from headcount.ranking.lrp.rules import RULES, LrpOptions
from headcount.ranking.measures import MEASURES
from headcount.role import ROLES
from headcount.run import Run, load_run
from headcount.study.claims import CLAIMS
from headcount.study.figures import FIGURES
from ranking import neurons

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
SOURCES, STEPS = [2, 3], [3, 2]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What the programs add to the package's lists is taken out again."""
    kept = [*FIGURES], [*CLAIMS], dict(METHODS._entries), dict(ROLES._entries)
    rules, measures = dict(RULES._entries), dict(MEASURES._entries)
    yield
    RULES._entries, MEASURES._entries = rules, measures
    FIGURES[:], CLAIMS[:] = kept[0], kept[1]
    METHODS._entries, ROLES._entries = kept[2], kept[3]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page takes for granted: RUN, DATA, test.en, test.fr, test.conllu."""
    data = tmp_path / "DATA"
    data.mkdir()
    for seed, (split, count) in enumerate({"train": 150, "dev": 15, "test": 40}.items()):
        pairs = list(generate(count, seed=seed))
        for language, lines in (
            ("en", [sentence.text for sentence, _ in pairs]),
            ("fr", [translation for _, translation in pairs]),
        ):
            text = "".join(f"{line}\n" for line in lines)
            (data / f"{split}.{language}").write_text(text, encoding="utf-8")
    write_conllu(tmp_path / "test.conllu", [sentence for sentence, _ in pairs])
    for name in ("test.en", "test.fr"):
        (tmp_path / name).write_bytes((data / name).read_bytes())
    _save_run(tmp_path / "RUN", data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _save_run(folder: Path, data: Path) -> None:
    """A run that was never trained, with one head that always looks at full stops."""
    config = parse_config(
        {
            "data": {"corpus": None, "folder": str(data), "max_length": 60},
            "model": {"layers": 2, "heads": 2, "width": 16, "ff_width": 24},
            "training": {"batch_tokens": 200, "device_tokens": 200, "warmup": 5},
        },
        where="test",
    )
    sides = [
        (data / f"train.{side}").read_text(encoding="utf-8").split("\n") for side in ("en", "fr")
    ]
    source, target = (Tokenizer.train(lines, 300) for lines in sides)
    torch.manual_seed(0)
    model = Transformer(config.model, source.size, target.size)
    _plant_full_stop(model, [piece.id for piece in source.pieces("A .")][-1])
    Run(folder, config, model.eval(), source, target).save()


def _plant_full_stop(model: Transformer, mark: int) -> None:
    """Head enc.0.0 asks every token for what only the embedding of `mark` has."""
    attention, width = model.attentions()["enc", 0], model.config.width
    direction = torch.randn(width)
    direction -= direction.mean()
    with torch.no_grad():
        model.source_embedding.table.weight[mark] = 5 * direction
        queries, keys, _ = attention.in_weight.chunk(3)
        queries[: attention.head_width] = 0.0
        keys[: attention.head_width] = 0.0
        attention.in_bias[0] = 100.0  # the query of every token
        keys[0] = direction


def programs() -> dict[str, str]:
    """The program of each section of the page; a corpus is described without one."""
    by_section = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        name = section.split("\n")[0]
        if name != "A corpus":
            (by_section[name],) = re.findall(r"```python\n(.*?)```", section, re.S)
    return by_section


def run_program(name: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(compile(programs()[name], f"{PAGE} ({name})", "exec"), space)
    return space


def test_all_programs_one_after_another(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = list(programs())
    assert len(names) == 6
    spaces = {name: run_program(name) for name in names}

    shares = spaces["A rule of LRP"]["ranking"]["lrp"]
    for layer in range(2):
        assert sum(v for head, v in shares.items() if head.layer == layer) == pytest.approx(1)

    run = load_run(folder / "RUN")
    focus = run.head_table()["focus"]
    assert set(focus) == set(run.model.heads.heads(["enc"]))
    assert all(-5 < value < 0 for value in focus.values())
    best = sorted(focus, key=focus.__getitem__)[-2:]
    assert set(load_run(folder / "BY-FOCUS").model.heads.heads(["enc"])) == set(best)

    roles = run.head_table()["roles"]
    assert [head for head, names in roles.items() if "punctuation" in names] == [Head("enc", 0, 0)]

    record = json.loads((folder / "BY-SIGMOID" / "pruning.json").read_text())
    assert record["method"] == "sigmoid"
    assert len(record["kept"]) == 2

    report = folder / "RUN" / "analysis" / "report"
    page = (report / "report.html").read_text(encoding="utf-8")
    assert (report / "figures" / "confidence-by-layer.csv").is_file()
    assert "More figures" in page
    assert 'id="confidence-by-layer"' in page
    assert "punctuation" in page
    assert "is the surest" in capsys.readouterr().out


@pytest.mark.parametrize("bias", ["absorb", "share"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_rule_is_what_it_says_neuron_by_neuron(
    norm: str, bias: str, folder: Path, make_model: Any, make_tokens: Any, monkeypatch: Any
) -> None:
    """`Magnitude` against the slow reference, whose fractions are replaced by the definition."""

    def by_size(amounts: list[float], options: LrpOptions) -> list[float]:
        total = sum(abs(amount) for amount in amounts)
        return [abs(amount) / (total + options.epsilon) if total else 0.0 for amount in amounts]

    monkeypatch.setattr(neurons, "fractions", by_size)
    magnitude = run_program("A rule of LRP")["Magnitude"]
    options = LrpOptions(magnitude.name, bias=bias, epsilon=1e-3)
    model = make_model(
        vocabulary=(11, 11), encoder_layers=1, decoder_layers=1, heads=2, width=4, ff_width=5,
        norm=norm, tie="none", output_bias=True,
    )  # fmt: skip
    source = make_tokens([n - 1 for n in SOURCES], 11, 1)
    prefix = make_tokens(STEPS, 11, 2)[:, : max(STEPS)]
    prefix[:, 0], prefix[1, STEPS[1] :] = 2, 0
    propagation = Propagation(model, options)
    found = propagation.propagate(propagation.record(source, prefix), STEPS)
    for row, (length, count) in enumerate(zip(SOURCES, STEPS, strict=True)):
        reference = neurons.ReferenceModel(model, options)
        logits = reference.run(source[row, :length].tolist(), prefix[row, :count].tolist())
        for step, start in enumerate(logits):
            reference.network.propagate(start)
            for place, relevance in found.heads.items():
                expected = reference.head_relevance(*place, False)
                assert relevance[row, step].tolist() == pytest.approx(expected, abs=1e-6)
