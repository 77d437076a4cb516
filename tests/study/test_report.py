"""The page as text: self-contained, safe, small; and the verb that writes it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from planted import HOSTILE, PlantedModel, keep, plant, plant_explorer
from typer.testing import CliRunner

import headcount
from headcount.cli import app
from headcount.errors import UserError
from headcount.files import write_json
from headcount.heads import Head
from headcount.role.head_roles import Example
from headcount.role.result import Roles
from headcount.run import resolve_run
from headcount.study.explorer import read_explorer, write_explorer
from headcount.study.report import page, write_report
from headcount.study.report.page import embed
from headcount.study.report.story import seeds_line
from headcount.study.results import load_results

runner = CliRunner()
PREVIOUS = ("positional", "-1", 0.95)


class Elements(HTMLParser):
    """Elements with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] in ("script", "style") and self.cdata_elem:
            self.raw.append((*self.found[-1], data))

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def text(paper_like):
    return (paper_like / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def elements(text):
    return Elements(text)


def test_everything_is_written(paper_like, text):
    assert len(text.encode()) < 15_000_000
    names = {path.name for path in (paper_like / "tables").iterdir()}
    assert {"table1-dependencies.tex", "table2-all-sites.md", "claims.csv"} <= names
    claims = json.loads((paper_like / "claims.json").read_text())
    assert len(claims) == 16
    assert all(claim["verdict"] for claim in claims)
    for claim in claims:
        assert html.escape(claim["criterion"], quote=False).replace("'", "&#39;") in text


def test_loads_nothing(elements):
    """No address that leaves the page, and a policy that would forbid it."""
    for tag, attributes in elements.found:
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/svg+xml;base64,", "#")), tag
        assert not any(name.startswith("on") for name in attributes)
        assert "style" not in attributes  # the policy would forbid that too
    policy = next(m["content"] for m in elements.all("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        texts = [data for tag, attributes, data in elements.raw if tag == kind and not attributes]
        digest = hashlib.sha256("".join(texts).encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_every_picture_has_a_description(elements):
    images = elements.all("img")
    assert len(images) == 10
    assert len(elements.all("source")) == 10  # each is drawn again for a phone
    assert all(len(image["alt"] or "") > 20 for image in images)
    assert elements.all("html")[0]["lang"] == "en"


def test_the_page_opens_with_its_pictures(text):
    """One sentence and Figures 1 and 7; functions, pruning, the explorer, and claims at the end."""
    marks = [
        '<p class="headline">9 of the 48 encoder heads of the EN-RU, OpenSubtitles model have',
        '<p class="seen-here">', 'id="fig1-heads"', 'id="fig7-bleu"',
        'id="functions-section"', 'class="cards"',
        'id="pruning-section"', 'id="explorer"', 'id="claims-section"', 'id="about"',
    ]  # fmt: skip
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    assert text.count('<details class="claim"') == 16


def test_a_function_is_shown_in_a_sentence(tmp_path):
    """The sentence that `roles` stored, with an arc for each token; its text cannot do harm."""
    study = plant(tmp_path, [PlantedModel("full", functions={"enc.1.0": [PREVIOUS]})])
    path = study / "runs" / "full" / "analysis" / "roles.json"
    roles = Roles.load(path)
    example = Example(HOSTILE, ("▁<b>", "▁old", "▁dog"), (0, 0, 1), 2, 3, 0.9)
    roles = roles.with_examples({(Head("enc", 1, 0), "positional", "-1"): example})
    write_json(path, roles.to_json())
    text = write_report(study).page.read_text()
    card = text[text.index('<article class="card"') : text.index("</article>")]
    assert "enc.1.0: positional -1" in card
    assert card.count('class="arc hit"') == 3
    assert "old to &lt;b&gt;; dog to old" in card
    assert "2 of 3 times here" in card
    assert "<b>" not in card


def test_without_functions_the_nearest_heads_are_named(tmp_path):
    study = plant(tmp_path, [PlantedModel("full", functions={})])
    text = " ".join(write_report(study).page.read_text().split())
    assert "No encoder head is a syntactic head. The nearest: enc.0.0 looks from the verb" in text


def test_embedded_json_cannot_end_its_element():
    value = {"text": HOSTILE, "separator": "\u2028\u2029", "comment": "<!--<script>"}
    embedded = str(embed(value))
    assert not re.search(r"[<>&\u2028\u2029]", embedded)
    assert json.loads(embedded) == value
    with pytest.raises(ValueError, match="JSON"):
        embed(float("nan"))  # no browser could read it


def test_hostile_text_is_only_text(text, elements):
    assert HOSTILE not in text
    assert "<script>window.hacked" not in text
    data = [a for a in elements.all("script") if a.get("type") == "application/json"]
    assert len(elements.all("script")) == len(data) + 1  # one script, the rest is data
    stored = [json.loads(raw) for _, attributes, raw in elements.raw if attributes.get("id")]
    sentences = [sentence for value in stored if isinstance(value, list) for sentence in value]
    assert HOSTILE in {sentence["text"] for sentence in sentences}


def test_hostile_names(tmp_path):
    """Titles, corpora and ids come from files, too."""
    study = plant(
        tmp_path,
        [PlantedModel("full", domain=HOSTILE, pair="en-fr")],
        [{"name": "en-fr", "source": "en", "target": "fr", "domain": HOSTILE, "corpus": HOSTILE}],
    )
    stored = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps(stored | {"title": HOSTILE}))
    written = write_report(study)
    assert HOSTILE not in written.page.read_text()
    assert html.escape(HOSTILE, quote=False)[:30] in written.page.read_text()


def test_too_many_sentences_are_left_out(tmp_path, monkeypatch):
    """The page stays under its limit by having fewer sentences, never by breaking."""
    models = [PlantedModel("full")]
    study = plant(tmp_path, models)
    plant_explorer(study, models, [f"number {i} of the many sentences here" for i in range(30)])
    whole = write_report(study)
    assert "on 30 sentences" in whole.page.read_text()
    monkeypatch.setattr(page, "MARGIN", 1000)
    monkeypatch.setattr(page, "LIMIT", whole.bytes - 30_000)
    fewer = write_report(study)
    assert fewer.bytes <= whole.bytes - 30_000
    assert re.search(r"on 2\d sentences", fewer.page.read_text())
    monkeypatch.setattr(page, "LIMIT", 20_000)
    with pytest.raises(UserError, match="more than"):
        write_report(study)


def test_report_of_one_run(run_folder, tmp_path):
    """A plain run folder: figures, tables and the explorer go to its analysis folder."""
    run = tmp_path / "tiny"
    shutil.copytree(run_folder, run)
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("The cat sees the big dog .\nI see you and you see me !\n")
    result = runner.invoke(app, ["report", str(run), "--src", str(sentences), "--json", "-q"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["page"] == str(run / "analysis" / "report" / "report.html")
    assert found["sentences"] == 2
    assert found["figures"] == []
    assert set(found["claims"].values()) == {"not testable here"}
    text = (run / "analysis" / "report" / "report.html").read_text()
    assert "on 2 sentences" in text
    # Nothing of a study, nothing empty, and what could be asked next.
    shown = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)
    assert "study" not in shown.lower()
    assert "<figure" not in shown
    assert "claims-section" not in shown
    assert "pruning-section" not in shown
    for command in ("rank tiny --src TEST.en --ref TEST.fr", "roles tiny", "prune tiny"):
        assert f"headcount {command}" in shown
    assert load_results(run).models[0].id == "tiny"


def test_page_elsewhere_and_without_sentences(run_folder, tmp_path):
    run = tmp_path / "tiny"
    shutil.copytree(run_folder, run)
    result = runner.invoke(app, ["report", str(run), "--out", str(tmp_path / "here.html"), "-q"])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "here.html").read_text()
    assert "headcount report tiny --src TEST.en" in page
    assert '<section id="explorer">' not in page


def test_bad_input(tmp_path, run_folder):
    (tmp_path / "empty.txt").write_text("\n\n")
    for arguments, message in (
        ([str(tmp_path / "nowhere")], "does not exist"),
        ([str(run_folder), "--src", str(tmp_path / "none.txt")], "does not exist"),
        ([str(run_folder), "--src", str(tmp_path / "empty.txt")], "has no sentence"),
    ):
        result = runner.invoke(app, ["report", *arguments])
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)


def test_sentences_of_the_studys_own_test_set(tmp_path, run_folder):
    """Without --src the explorer reads the test set of the corpus that the study fetched."""
    study = plant(tmp_path, [PlantedModel("full")])
    shutil.rmtree(study / "runs" / "full")
    shutil.copytree(run_folder, study / "runs" / "full")
    corpus = study / "corpora" / "en-fr"
    corpus.mkdir(parents=True)
    (corpus / "test.en").write_text("The big cat sees the dog .\nA dog and a cat see it .\n")
    assert headcount.report(study, sentences=1).sentences == 1  # the verb as a function
    assert "The big cat sees the dog" in (study / "report.html").read_text()


def test_paper_gets_the_wide_figures(elements):
    """A page of A4 is as narrow as a small window, but has no use for figures of a phone."""
    sources = elements.all("source")
    assert sources
    assert all(source["media"].startswith("screen and") for source in sources)


def of_seed(name: str, seed: int, penalty: float) -> PlantedModel:
    layout = keep(["enc.0.0"])
    return PlantedModel(
        name, "pruned", layout, "gates", ("enc",), "full", penalty=penalty, seed=seed
    )


def test_seeds_are_counted_for_each_pruning(tmp_path):
    once = [PlantedModel("full"), of_seed("a", 1, 0.01), of_seed("b", 1, 0.02)]
    even = load_results(plant(tmp_path / "even", once))
    assert seeds_line(even) == "1 of each pruning"
    uneven = load_results(plant(tmp_path / "uneven", [*once, of_seed("a-seed2", 2, 0.01)]))
    assert seeds_line(uneven) == "2 of a; 1 of each other pruning"
    assert seeds_line(load_results(plant(tmp_path / "full", once[:1]))) == ""


def test_models_that_are_not_there_yet_are_named(tmp_path):
    study = plant(tmp_path, [PlantedModel("full"), of_seed("a", 1, 0.01)])
    shutil.rmtree(study / "runs" / "a")
    result = runner.invoke(app, ["report", str(study)])
    assert "Not made yet: a." in result.output
    assert result.exit_code == 0


def test_published_studies_have_no_weights_to_show_attention_with(tmp_path):
    study = plant(tmp_path / "study", [PlantedModel("full")])
    sentences = tmp_path / "sentences.en"
    sentences.write_text("A cat sleeps.\n")
    result = runner.invoke(app, ["report", str(study), "--src", str(sentences)])
    assert isinstance(result.exception, UserError)
    assert "no weights" in str(result.exception)


def test_attention_is_shown_of_the_models_that_have_weights(tmp_path):
    study = plant(tmp_path, [PlantedModel("full"), of_seed("a", 1, 0.01)])
    shutil.rmtree(study / "runs" / "full")
    shutil.copytree(resolve_run("demo"), study / "runs" / "full")
    results = load_results(study)
    paths = write_explorer(results, {results.pairs[0].source: ["A cat sleeps."]})
    assert [path.name for path in paths] == ["full.json"]
    assert [model.model for model in read_explorer(results)] == ["full"]
