"""A new thing needs one entry in its registry: a dummy of each kind is found everywhere.

Nothing is trained here. What only one kind has to show is tested beside it: a new role in
tests/role/test_new_role.py, a new measure and rule in tests/ranking/test_measures.py, a pruning
with a new method in tests/pruning/test_methods.py, the programs of docs/extending.md in tests/docs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import headcount
from headcount.cli import app
from headcount.config import load_recipe
from headcount.data.corpora import CORPORA
from headcount.data.pairs import KnownCorpus, Pair, Source
from headcount.errors import UserError
from headcount.interop.export import EXPORTS, Export
from headcount.interop.families import FAMILIES, Family, family_of
from headcount.progress import silent
from headcount.pruning.methods import METHODS, Method, method_named
from headcount.pruning.selection import Selection
from headcount.pruning.settings import make_settings
from headcount.ranking.lrp.rules import RULES, Rule
from headcount.ranking.measures import MEASURES, Measure
from headcount.registry import Registry
from headcount.role import ROLES
from headcount.role.kind import PointingRole, Wanted
from headcount.run import load_run
from headcount.study.figures.head_grid import heads_figure
from headcount.study.figures.retained import quality_figure
from headcount.study.plan import make_plan
from headcount.study.recipe import load_study
from headcount.study.results import load_results
from headcount.study.study_tables import all_tables
from headcount.training.preparation import find_corpus

sys.path.insert(0, str(Path(__file__).parent / "study"))
from planted import PlantedModel, keep, plant

LINES = ["The cat sees the dog .", "A big dog and a small cat", "I see it ."]


class Even(Rule):
    """Relevance goes to all contributions alike."""

    name, help = "even", "the same for all (dummy)"

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        present = (contributions != 0).to(contributions)
        return present / present.sum(dim, keepdim=True).clamp(min=1)


def index_sums(batch: Any) -> tuple[Tensor, Tensor]:
    """A measure: the head's number."""
    rows = len(batch.source)
    each = [torch.arange(batch.recording[(*p, "weights")].shape[1]) for p in batch.attentions]
    return torch.cat(each).expand(rows, -1).float(), torch.ones(rows, 1)


def first_token(batch: Any, setting: Any) -> Wanted:
    wanted = torch.zeros_like(batch.keys)
    wanted[:, 0] = True
    return Wanted(batch.queries, {"first token": wanted})


class LastHeads(Selection):
    """A pruning that keeps the last heads."""


def counted(request: Any) -> Source:
    """A corpus of sentences that count."""

    def read(progress: Any) -> Iterator[Pair]:
        yield from (Pair(f"Sentence number {n}.", f"Phrase numéro {n}.") for n in range(100))

    return Source("counted", "A test", "CC0-1.0", "nobody", ("en", "fr"), {"counted": "1"}, read)


def write_names(run: Any, folder: Path, result: Any) -> Callable[[Any], float]:
    (folder / "heads.txt").write_text("\n".join(map(str, run.model.heads.heads())))
    return lambda lines: 0.0


RULE = Even
MEASURE = Measure("ordinal", "its number (dummy)", "head number", index_sums)
ROLE = PointingRole(
    "first token", "points at the first token (dummy)", first_token, threshold=0.0, ratio=0.0,
    colour="#123456", letter="F",
)  # fmt: skip
METHOD = Method(
    "last", "the last heads stay (dummy)", "the last ones", "#654321", "keep", LastHeads
)
CORPUS = KnownCorpus("counted", "sentences that count (dummy)", "CC0-1.0", counted, ("en-fr",))
FAMILY = replace(FAMILIES["marian"], name="mine", help="models of mine (dummy)", types=("mine",))
EXPORT = Export("names", "the names of its heads (dummy)", "marian", write_names)

KINDS: list[tuple[Registry, Any, list[str]]] = [
    (RULES, RULE, ["rank"]),
    (MEASURES, MEASURE, ["rank", "prune", "prune-sweep"]),
    (ROLES, ROLE, ["roles"]),
    (METHODS, METHOD, ["prune", "prune-sweep"]),
    (CORPORA, CORPUS, ["data"]),
    (FAMILIES, FAMILY, ["import"]),
    (EXPORTS, EXPORT, ["export"]),
]


@pytest.fixture(scope="module", autouse=True)
def dummies() -> Iterator[None]:
    """One entry more in each registry, as long as these tests run."""
    with ExitStack() as stack:
        for registry, entry, _ in KINDS:
            stack.enter_context(registry.adding(entry))
        yield
    assert not any(entry.name in registry for registry, entry, _ in KINDS)


@pytest.fixture(scope="module")
def run(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was ranked with the dummy rule and measure and whose roles were named."""
    folder = tmp_path_factory.mktemp("registries") / "run"
    shutil.copytree(run_folder, folder)
    headcount.rank(folder, LINES, by="lrp,ordinal", sites="enc", rule="even", save=True)
    headcount.roles(folder, LINES, relations="none", save=True)
    return folder


@pytest.mark.parametrize(
    ("verb", "entry"), [(verb, entry) for _, entry, verbs in KINDS for verb in verbs]
)
def test_the_help_of_its_verb_lists_it(verb: str, entry: Any) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "300"}).output
    assert f"{entry.name}: {entry.help}" in " ".join(shown.replace("│", " ").split())


@pytest.mark.parametrize(("registry", "entry"), [kind[:2] for kind in KINDS])
def test_a_mistyped_name_lists_it(registry: Registry, entry: Any) -> None:
    with pytest.raises(UserError, match=f"Did you mean '{entry.name}'"):
        registry.find(f"{entry.name}x")


def test_the_head_table_has_measure_rule_and_role(run: Path) -> None:
    table = load_run(run).head_table()
    assert table["ordinal"]["enc.1.2"] == 2.0
    assert list(table["lrp"].values()) == pytest.approx([1 / 3] * 6)  # evenly, by the dummy rule
    assert "first token" in table["roles"]["enc.0.0"]


@pytest.mark.parametrize("entry", [MEASURE, METHOD])
def test_prune_takes_it(entry: Any) -> None:
    assert make_settings(keep=2, by=entry.name).method == method_named(entry.name)
    assert method_named(entry.name).help == entry.help


def test_a_study_prunes_by_it_and_fetches_it(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("data: {corpus: counted}\nmodel: {layers: 1}\n")
    (tmp_path / "study.yaml").write_text(
        "pairs: [{name: en-fr, recipe: train.yaml}]\n"
        "pruning: {encoder_keep: [2], keep_by: [last, ordinal]}\n"
    )
    stages = {s.name: s for s in make_plan(load_study(tmp_path / "study.yaml"), tmp_path / "out")}
    assert stages["en-fr/data"].command[1:3] == ("data", "counted")
    for name, needs in (("last", ()), ("ordinal", ("en-fr/full/rank",))):
        stage = stages[f"en-fr/enc-keep-2-{name}"]
        assert stage.command[stage.command.index("--by") + 1] == name
        assert stage.needs == ("en-fr/full", *needs)
    (tmp_path / "study.yaml").write_text(
        "pairs: [{name: en-fr, recipe: train.yaml}]\npruning: {keep_by: [lost]}\n"
    )
    with pytest.raises(UserError, match=r"choose among .*last.*ordinal"):
        load_study(tmp_path / "study.yaml")


def test_figures_and_tables_of_prunings_have_label_and_colour(tmp_path: Path) -> None:
    few = keep(["enc.5.6", "enc.5.7"])
    numbers = {f"enc.0.{index}": float(index) for index in range(8)}
    measured = {"lrp": numbers, "ordinal": numbers}
    results = load_results(
        plant(
            tmp_path,
            [
                PlantedModel("full", bleu=30.0, columns=measured),
                PlantedModel("a", "pruned", few, "last", ("enc",), "full", keep=2, bleu=28.0),
                PlantedModel("b", "pruned", few, "ordinal", ("enc",), "full", keep=2, bleu=27.0),
            ],
        )
    )
    drawing = quality_figure(results)
    assert drawing is not None
    handles, labels = drawing.figure.axes[0].get_legend_handles_labels()
    pairs = list(zip(labels, handles, strict=True))[1:]  # the full model comes first
    colours = {label: h.lines[0].get_color() for label, h in pairs}
    assert colours == {"by head number": METHODS["ordinal"].colour, "the last ones": "#654321"}
    text = str([table.rows for table in all_tables(results)])
    assert "pruned: the last ones, keep 2 (enc)" in text
    assert "pruned: by head number, keep 2 (enc)" in text
    assert "'first': 'lrp', 'second': 'ordinal', 'enc': 1.0" in text  # how far measures agree


def test_figure_of_heads_and_report_have_the_role(run: Path) -> None:
    drawing = heads_figure(load_results(run))
    assert drawing is not None
    (legend,) = drawing.figure.legends
    patches = zip(legend.texts, legend.get_patches(), strict=True)
    colours = {text.get_text(): patch.get_facecolor() for text, patch in patches}
    assert colours["first token"] == pytest.approx((0x12 / 255, 0x34 / 255, 0x56 / 255, 1.0))
    page = headcount.report(run).page.read_text(encoding="utf-8")
    for mark in ("first token", "#123456"):
        assert mark in page


def test_a_recipe_fetches_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "train.yaml").write_text("data: {corpus: counted}\n")
    corpus = find_corpus(load_recipe(tmp_path / "train.yaml").data, silent)
    assert corpus.description["name"] == "counted"
    assert sum(corpus.counts.values()) == 100


def test_a_model_of_the_family_is_known_by_its_type() -> None:
    family: Family = family_of("some/model", "mine")
    assert family is FAMILY
    with pytest.raises(UserError, match=r"models of mine \(dummy\)"):
        family_of("some/model", "yours")


def test_a_run_is_exported(run: Path, tmp_path: Path) -> None:
    exported = headcount.export(run, "names", tmp_path / "out")
    assert (tmp_path / "out" / "heads.txt").read_text().startswith("enc.0.0\nenc.0.1\n")
    assert (exported.format, exported.difference) == ("names", 0.0)
