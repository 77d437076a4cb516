"""The verbs, and all other verbs on an imported run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headcount.cli import app
from headcount.data.builtin import generate
from headcount.data.conllu import format_sentence
from headcount.heads import SITES, Head, HeadTable
from headcount.model.gating import remove_heads
from headcount.run import Run, load_run


def call(*arguments: object) -> Any:
    """Run a verb; its standard output."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None, result.exception
    return result.stdout


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six sentences with their trees and translations."""
    folder = tmp_path_factory.mktemp("text")
    pairs = list(generate(6, seed=5))
    (folder / "en").write_text("".join(f"{s.text}\n" for s, _ in pairs))
    (folder / "fr").write_text("".join(f"{french}\n" for _, french in pairs))
    (folder / "conllu").write_text("".join(format_sentence(s) for s, _ in pairs))
    return folder


@pytest.fixture(scope="module")
def imported(marian_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "imported"
    found = json.loads(call("import", marian_folder, "--out", out, "--json", "--quiet"))
    assert found["heads"] == {"enc": 8, "dec": 8, "cross": 8}
    assert found["difference"] < 1e-4
    return out


def test_translate_and_score(imported: Path, text: Path, marian_run: Run) -> None:
    call("translate", imported, "--input", text / "en", "--output", text / "out", "--quiet")
    assert len((text / "out").read_text().splitlines()) == 6
    scores = json.loads(
        call("score", imported, "--src", text / "en", "--ref", text / "out", "--json", "--quiet")
    )
    assert scores["bleu"]["value"] > 99  # its own translations, found again


def test_rank_and_roles(imported: Path, text: Path) -> None:
    call(
        "rank", imported, "--src", text / "en", "--ref", text / "fr",
        "--by", "lrp,confidence,ablation", "--json", "--quiet",
    )  # fmt: skip
    call("roles", imported, "--src", text / "en", "--conllu", text / "conllu", "--json", "--quiet")
    run = load_run(imported)
    table: HeadTable = run.head_table()
    for name in ("lrp", "confidence", "ablation"):
        assert {head.site for head in table[name]} == set(SITES)
    for site in SITES:
        for layer in range(2):
            shares = [v for h, v in table["lrp"].items() if (h.site, h.layer) == (site, layer)]
            assert sum(shares) == pytest.approx(1.0, abs=1e-3)


def test_export(imported: Path, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs headcount[ctranslate2]")
    out = tmp_path / "out"
    options = ("--to", "ctranslate2", "--out", out, "--src", text / "en", "--json", "--quiet")
    found = json.loads(call("export", imported, *options))
    assert (found["padded_heads"], found["difference"] < 1e-4) == (0, True)
    assert (out / "model.bin").exists()


def exported_without(imported: Path, folder: Path, gone: str, to: str) -> str:
    """What `export` says to standard error of a run without these heads."""
    run = load_run(imported)
    run.model = remove_heads(run.model, [Head.parse(head) for head in gone.split()])
    run.save(folder / "pruned")
    result = CliRunner().invoke(
        app, ["export", f"{folder}/pruned", "--to", to, "--out", f"{folder}/out"]
    )
    assert result.exit_code == 0
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("gone", "zeros"),
    [
        ("enc.0.1", 1),
        ("dec.0.1 dec.1.1", 2),  # even, but not as many as at cross
        ("dec.0.1 dec.1.1 cross.0.1 cross.1.3", 0),
    ],
)
def test_padded_heads_are_reported(imported: Path, tmp_path: Path, gone: str, zeros: int) -> None:
    pytest.importorskip("ctranslate2", reason="needs headcount[ctranslate2]")
    said = exported_without(imported, tmp_path, gone, "ctranslate2")
    assert ("Heads of zeros added" in said) == bool(zeros)
    if zeros:
        assert f"Heads of zeros added, which cost time and space: {zeros}." in said
        assert "for both kinds of attention in all layers of the decoder" in said
        assert "`headcount prune --keep enc=K,dec=M,cross=M --even`" in said


def test_no_pruning_spares_transformers_heads_of_zeros(imported: Path, tmp_path: Path) -> None:
    said = exported_without(imported, tmp_path, "enc.0.1 enc.1.1", "transformers")
    assert "space: 2. These models have as many heads in each layer as" in said
    assert "--even" not in said
