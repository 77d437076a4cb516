"""The whole ranking: columns, files, several processes, bad input."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.color import ColorSystem

from headcount import rank
from headcount.cli import main
from headcount.cli.console import results
from headcount.cli.rank_display import ENDS
from headcount.errors import UserError
from headcount.heads import Head, HeadTable
from headcount.model.decoding import GREEDY, beam_search
from headcount.model.gating import gated, remove_heads
from headcount.ranking import measuring
from headcount.ranking.lrp.propagate import Propagation
from headcount.ranking.lrp.relevance import layer_shares
from headcount.ranking.lrp.rules import LrpOptions
from headcount.ranking.rank import Provenance, Ranking, random_scores
from headcount.run import load_run, regroup
from two_processes import run_in_two_processes

SOURCE = ["The cat sees the dog .", "A big dog", "I see you , and you see me !", "it"] * 2
REFERENCE = ["Le chat voit le chien .", "grand chien", "voit le chat !", "le chien"] * 2


@pytest.fixture
def copy(run_folder, tmp_path) -> Path:
    """A run folder that may be changed."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    for name, lines in (("src", SOURCE), ("ref", REFERENCE)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path / "src", tmp_path / "ref"


def test_all_measures_of_all_heads(run_folder):
    ranking = rank(run_folder, SOURCE, REFERENCE, bleu=True)
    assert list(ranking.columns) == [
        "lrp", "confidence", "lrp_signed", "ablation", "gradient", "ablation_bleu", "random",
    ]  # fmt: skip
    assert len(ranking.heads) == 18
    for name, column in ranking.columns.items():
        assert set(column) == set(ranking.heads), name
    for site in ("enc", "dec", "cross"):
        for layer in (0, 1):
            shares = [ranking["lrp"][Head(site, layer, i)] for i in range(3)]
            assert sum(shares) == pytest.approx(1.0)
            assert min(shares) >= 0
    assert all(0 < value <= 1 for value in ranking["confidence"].values())
    assert all(value >= 0 for value in ranking["gradient"].values())
    assert "<table>" in ranking._repr_html_()


def test_relevance_is_the_mean_over_all_steps_of_own_translations(run_folder):
    """With single sentences as batches and greedy translations found apart."""
    run = load_run(run_folder)
    ids = run.target_tokenizer
    propagation = Propagation(run.model, LrpOptions())
    total, steps = torch.zeros(3).double(), 0
    for line in SOURCE:
        source = torch.tensor([[*run.source_tokenizer.encode(line), run.source_tokenizer.eos]])
        best = beam_search(run.model, source, GREEDY, start=ids.start, eos=ids.eos)[0][0].tokens
        limit = GREEDY.limit(source.shape[1], run.config.model.max_positions)
        prefix = torch.tensor([[ids.start, *best][:limit]])
        found = propagation.propagate(propagation.record(source, prefix), [prefix.shape[1]])
        shares, usable = layer_shares(found.heads["enc", 1][0].double(), "neurons")
        assert usable.all()
        total += shares.sum(0)
        steps += prefix.shape[1]
    ranking = rank(run, SOURCE, by=["lrp"])
    values = [ranking["lrp"][Head("enc", 1, i)] for i in range(3)]
    assert values == pytest.approx((total / steps).tolist(), rel=1e-4)
    assert ranking.about["steps"] == steps


def test_the_reference_as_prefix(run_folder):
    ranking = rank(run_folder, SOURCE, REFERENCE, by=["lrp"], prefix="reference")
    ids = load_run(run_folder).target_tokenizer
    assert ranking.about["steps"] == sum(len(ids.encode(line)) + 1 for line in REFERENCE)


def test_a_pruned_and_gated_run(run_folder):
    run = load_run(run_folder)
    gone = [Head("enc", 0, i) for i in range(3)] + [Head("cross", 1, 2)]
    run.model = remove_heads(run.model, gone)
    with gated(run.model, {("dec", 0): torch.tensor([1.0, 0.5, 0.0])}):
        ranking = rank(run, SOURCE, REFERENCE)
    assert not set(gone) & set(ranking.heads)
    closed = Head("dec", 0, 2)
    assert ranking["lrp"][closed] == 0.0
    assert ranking["ablation"][closed] == 0.0
    assert ranking["gradient"][closed] > 0.0
    assert ranking["random"] == {
        head: value
        for head, value in random_scores(load_run(run_folder).model.head_list(), 1).items()
        if head not in gone
    }


def test_saving_adds_columns_and_keeps_what_others_wrote(copy):
    run = load_run(copy)
    table = run.head_table()
    table.add("role", {Head("enc", 0, 0): "positional"})
    table.add("lrp", dict.fromkeys(run.model.head_list(), 7.0))
    table.save(run.analysis)
    rank(run, SOURCE, by=["lrp"], sites=["enc"], save=True)
    saved = HeadTable.load(run.analysis, run.model.head_list())
    assert saved["role"] == {Head("enc", 0, 0): "positional"}
    assert saved["lrp"][Head("dec", 0, 0)] == 7.0
    assert saved["lrp"][Head("enc", 0, 0)] < 1.0
    provenance = Provenance.load(run.analysis)
    about = provenance.columns["lrp"]["enc"]
    assert about["lrp"]["rule"] == LrpOptions().rule
    assert (about["measures"], about["sites"]) == (["lrp"], ["enc"])
    assert provenance.audit[0].station == "logit"
    names = [path.name for path in run.folder.rglob("*") if path.is_file()]
    assert len(names) == len(set(names))  # no two files of a run share a name


def test_both_readings_of_relevance_come_from_one_pass(run_folder, monkeypatch):
    calls = []
    whole = Propagation.propagate
    monkeypatch.setattr(Propagation, "propagate", lambda *a, **k: calls.append(1) or whole(*a, **k))
    both = rank(run_folder, SOURCE, by="lrp,lrp_signed")
    assert len(calls) == 1
    signed = rank(run_folder, SOURCE, by="lrp", normalise="signed")
    assert both["lrp_signed"] == signed["lrp"]
    assert both["lrp_signed"] != both["lrp"]
    alone = rank(run_folder, SOURCE, by="lrp_signed", normalise="neurons")
    assert alone["lrp_signed"] == pytest.approx(signed["lrp"])


def test_files_of_earlier_versions_are_read_and_replaced(copy):
    run = load_run(copy)
    rank(run, SOURCE, by="lrp", sites="enc", save=True)
    before = Provenance.load(run.analysis)
    origin = before.columns["lrp"]["enc"]
    old = {**origin, **before.to_json(), "columns": {"lrp": {"dec": origin}}}  # as it was written
    (run.analysis / "measures.json").unlink()
    (run.analysis / "ranking.json").write_text(json.dumps(old))
    (run.analysis / "head-table.json").rename(run.analysis / "heads.json")
    (run.analysis / "head-table.csv").rename(run.analysis / "heads.csv")
    assert set(run.head_table()["lrp"]) == set(run.model.heads.heads(["enc"]))
    assert Provenance.load(run.analysis).columns["lrp"] == {"dec": origin}
    rank(run, SOURCE, by="confidence", sites="enc", save=True)
    assert Provenance.load(run.analysis).columns["lrp"] == {"dec": origin}
    assert list(run.head_table().columns) == ["lrp", "random", "confidence"]
    assert {path.name for path in run.analysis.iterdir()} == {
        "measures.json", "head-table.json", "head-table.csv",
    }  # fmt: skip


def test_a_ranking_is_read_as_it_was_written(run_folder):
    ranking = rank(run_folder, SOURCE, by="lrp,confidence")
    written = json.loads(json.dumps(ranking.to_json()))
    again = Ranking.from_json(written)
    assert again.to_json() == written
    assert again["lrp"] == ranking["lrp"]
    assert again.audit == ranking.audit


def test_damaged_provenance_is_a_clear_error(copy):
    (copy / "analysis").mkdir()
    (copy / "analysis" / "measures.json").write_text('{"audit": [{"station": 1}]}')
    with pytest.raises(UserError, match=r"measures\.json cannot be read.*headcount rank again"):
        Provenance.load(copy / "analysis")


def test_every_column_says_how_its_numbers_came_about(copy):
    rank(copy, SOURCE, by="lrp", rule="zplus", save=True)
    rank(copy, SOURCE[:3], by=["lrp", "confidence"], sites=["dec"], save=True)
    rank(copy, SOURCE, by=["confidence"], sites=["enc"], save=True)
    about = json.loads((copy / "analysis" / "measures.json").read_text())
    lrp, confidence = about["columns"]["lrp"], about["columns"]["confidence"]
    assert {site: origin["lrp"]["rule"] for site, origin in lrp.items()} == {
        "enc": "zplus", "dec": "ratio", "cross": "zplus",
    }  # fmt: skip
    assert {site: origin["sentences"] for site, origin in confidence.items()} == {
        "dec": 3, "enc": len(SOURCE),
    }  # fmt: skip
    assert about["audit"][0]["station"] == "logit"  # of the last ranking that had one
    assert about["audit_of"]["sentences"] == 3


def test_two_processes_find_what_one_finds(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "BATCH_TOKENS", 12)  # several batches to share out
    alone = rank(run_folder, SOURCE, REFERENCE, bleu=True).to_json()
    script = tmp_path / "worker.py"
    script.write_text(RANK_AS_WORKER)
    data = json.dumps([str(run_folder), SOURCE, REFERENCE])
    run_in_two_processes(script, data, tmp_path)
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
    assert first == second
    close = partial(pytest.approx, rel=1e-9, abs=1e-9)
    for row, other in zip(
        first.pop("heads") + first.pop("audit"),
        alone.pop("heads") + alone.pop("audit"),
        strict=True,
    ):
        for name, value in other.items():
            assert row[name] == (value if isinstance(value, str) else close(value))
    assert first == alone


RANK_AS_WORKER = """
import json, os, sys
from pathlib import Path
from headcount import rank
from headcount.ranking import measuring

measuring.BATCH_TOKENS = 12
folder, source, reference = json.loads(sys.argv[1])
found = rank(folder, source, reference, bleu=True).to_json()
Path(sys.argv[2], os.environ["RANK"] + ".json").write_text(json.dumps(found))
"""


def test_measures_that_lack_what_they_need(run_folder):
    with pytest.raises(UserError, match="ablation needs reference"):
        rank(run_folder, SOURCE, by=["ablation"])
    with pytest.raises(UserError, match="no measure 'lpr'"):
        rank(run_folder, SOURCE, by=["lpr"])
    with pytest.raises(UserError, match="no prefix 'gold'"):
        rank(run_folder, SOURCE, prefix="gold")
    with pytest.raises(UserError, match="there is none"):
        rank(run_folder, SOURCE, prefix="reference")
    with pytest.raises(UserError, match="ablation_bleu needs"):
        rank(run_folder, SOURCE, by=["lrp"], bleu=True)
    with pytest.raises(UserError, match="ablation_bleu needs"):
        rank(run_folder, SOURCE, bleu=True)


def test_one_string_where_several_names_are_meant(run_folder):
    ranking = rank(run_folder, SOURCE, by="confidence, lrp", sites="cross,enc")
    assert list(ranking.columns) == ["lrp", "confidence", "random"]
    assert {head.site for head in ranking.heads} == {"enc", "cross"}
    with pytest.raises(UserError, match=r"Unknown site 'encoder'.*enc, dec, cross"):
        rank(run_folder, SOURCE, sites="encoder")
    with pytest.raises(UserError, match="no rule 'zpluss'"):
        rank(run_folder, SOURCE, rule="zpluss")


def test_units_and_blocks_are_measured_where_asked_for(command, copy, files):
    """They get rows of their own; who does not ask sees heads alone."""
    everything = "enc,enc_ff,dec_ff,enc_layers,dec_layers"
    names = "lrp,confidence,activation,ablation,gradient,ablation_bleu"
    regroup(load_run(copy), 5).save()
    rank(copy, SOURCE, save=True)
    ranking = rank(copy, SOURCE, REFERENCE, by=names, sites=everything, save=True)
    counts = {"enc": 6, "enc_ff": 8, "dec_ff": 8, "enc_layers": 4, "dec_layers": 6}
    for site, count in counts.items():
        for name in names.split(","):
            found = [head for head in ranking[name] if head.site == site]
            assert len(found) == (0 if name == "confidence" and site != "enc" else count)
    for group in ("enc_ff.1", "dec_ff.0", "enc_layers", "dec_layers"):  # what adds up to 1
        shares = [v for h, v in ranking["lrp"].items() if str(h).startswith(f"{group}.")]
        assert sum(shares) == pytest.approx(1.0)
    table = load_run(copy).head_table()
    assert len(table) == 18 + 8 + 8 + 4 + 6
    assert table["ablation"]["enc_layers.1.1"] == ranking["ablation"]["enc_layers.1.1"]
    assert "cross.0.0" in table["lrp"]  # of the first ranking
    rank(copy, SOURCE, by="confidence", save=True)
    assert load_run(copy).head_table()["ablation"]["dec_ff.0.3"] is not None
    assert len(regroup(load_run(copy), 4).head_table()) == 18 + 4 + 6  # other blocks of units
    code, out, _ = command(copy, "--src", files[0], "--sites", "enc_ff,dec_layers", "--by", "lrp")
    assert code == 0
    assert "Units of encoder feed-forward networks: relevance" in out
    assert "All shares of a stack add up to 1. Blocks: dec, cross, dec_ff." in out
    out = " ".join(out.split())
    ends = out[out.index("The blocks of units with the most and the least lrp") :]
    assert "dec_layers" not in ends[: ends.index("The blocks with the most and the least lrp")]
    assert "All blocks of units and blocks with all measures: --full." in out


@torch.no_grad()
def test_a_layer_ablated_is_a_layer_removed(run_folder):
    run = load_run(run_folder)
    whole = rank(run, SOURCE, REFERENCE, by="ablation", sites="dec_layers")["ablation"]
    losses = []
    for model in (run.model, remove_heads(run.model, [Head("dec_layers", 1, 2)])):
        total, tokens = 0.0, 0
        for source, reference in zip(SOURCE, REFERENCE, strict=True):
            ids = run.target_tokenizer
            words = [*ids.encode(reference), ids.eos]
            inputs = torch.tensor([[*run.source_tokenizer.encode(source), 3]])
            logits = model(inputs, torch.tensor([[ids.start, *words[:-1]]]))[0]
            total -= float(logits.log_softmax(-1)[range(len(words)), words].sum())
            tokens += len(words)
        losses.append(total / tokens)
    assert whole["dec_layers.1.2"] == pytest.approx(losses[1] - losses[0], abs=1e-5)


def test_a_site_that_has_lost_all_heads(run_folder):
    run = load_run(run_folder)
    run.model = remove_heads(run.model, run.model.heads.heads(["enc"]))
    with pytest.raises(UserError, match="no head left at enc"):
        rank(run, SOURCE, sites=["enc"])
    ranking = rank(run, SOURCE, REFERENCE)
    assert {head.site for head in ranking.heads} == {"dec", "cross"}


def test_an_encoder_that_nothing_looks_at(run_folder):
    """Without cross-attention its heads change nothing, and relevance never comes to them."""
    run = load_run(run_folder)
    run.model = remove_heads(run.model, run.model.heads.heads(["cross"]))
    ranking = rank(run, SOURCE, REFERENCE)
    encoder = run.model.heads.heads(["enc"])
    assert [ranking["ablation"][head] for head in encoder] == [0.0] * 6
    assert [ranking["gradient"][head] for head in encoder] == [0.0] * 6
    assert not set(encoder) & set(ranking["lrp"])
    rows = {(row.first, row.second, row.group): row for row in ranking.agreement(replicates=20)}
    assert rows["lrp", "random", "all"].heads == 6
    for name in ("heads", "spearman", "spearman_interval"):
        of_all = getattr(rows["lrp", "random", "all"], name)
        assert of_all == getattr(rows["lrp", "random", "dec"], name)
    assert rows["lrp", "random", "enc"].spearman is None


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `headcount rank` and give exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["headcount", "rank", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_the_command_prints_a_grid_audit_and_agreement(command, copy, files, monkeypatch):
    monkeypatch.setattr(results, "width", 80)
    code, out, _ = command(copy, "--src", files[0], "--ref", files[1], "--audit", "--agreement")
    assert code == 0
    for text in (
        "Encoder self-attention: relevance (LRP)", "layer 1", "most and the least lrp",
        "lrp: share of", "random: a random number", "dec_out", "lrp / ablation", "8 sentences",
        "No rank correlation within enc.0, enc.1, dec.0, dec.1",
    ):  # fmt: skip
        assert text in " ".join(out.split())
    assert max(map(len, out.split("\n"))) <= 80
    assert "enc.0 " not in out[out.index("Rank correlations") :]  # layers only with --full
    for name in ("head-table.csv", "head-table.json", "measures.json", "agreement.json"):
        assert (copy / "analysis" / name).is_file()


def test_the_legend_tells_of_shades_and_shares_where_there_is_something_to_tell(
    command, copy, files, monkeypatch
):
    rank_by = (copy, "--src", files[0], "--ref", files[1], "--sites", "enc", "--by")
    compare = "Compare heads of one layer: its shares add up to 1."
    _, out, _ = command(*rank_by, "lrp")
    assert compare in out
    assert "Darker" not in out  # a pipe has no shades
    assert "--normalise" not in out
    _, out, _ = command(*rank_by, "lrp", "--normalise", "signed")
    assert f"{compare} Shares with --normalise signed." in " ".join(out.split())  # lines wrap
    monkeypatch.setattr(results, "_color_system", ColorSystem.TRUECOLOR)
    _, out, _ = command(*rank_by, "confidence", "--normalise", "signed")
    assert "Darker is more." in out
    assert "--normalise" not in out
    monkeypatch.setattr(results, "no_color", True)
    assert "Darker" not in command(*rank_by, "confidence")[1]


def test_the_command_prints_all_heads_where_asked(command, copy, files):
    _, short, _ = command(copy, "--src", files[0], "--by", "lrp", "--quiet")
    _, full, _ = command(copy, "--src", files[0], "--by", "lrp", "--quiet", "--full")
    assert all(str(head) in full for head in load_run(copy).model.head_list())
    assert sum(str(head) in short for head in load_run(copy).model.head_list()) == 2 * ENDS


def test_the_command_prints_json(command, copy, files):
    code, out, err = command(copy, "--src", files[0], "--sites", "enc", "--json", "--quiet")
    assert code == 0
    assert err == ""
    found = json.loads(out)
    assert len(found["heads"]) == 6
    assert found["sentences"] == len(SOURCE)


def test_bad_input_is_one_line_and_exit_code_2(command, copy, files, tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("")
    cases = {
        (copy, "--src", empty): "is empty",
        (copy, "--src", tmp_path / "none"): "does not exist",
        (tmp_path, "--src", files[0]): "not a run folder",
        (copy, "--src", files[0], "--rule", "zpluss"): "Did you mean 'zplus'",
        (copy, "--src", files[0], "--sites", "encoder"): "Unknown site",
        (copy, "--src", files[0], "--by", "gradient"): "needs reference",
        (
            copy,
            "--src",
            files[0],
            "--by",
            "confidence",
            "--sites",
            "enc_ff",
        ): "not defined at enc_ff",
        (copy, "--src", files[0], "--by", "confidence", "--audit"): "has no lrp",
    }
    for arguments, expected in cases.items():
        code, _, err = command(*arguments)
        assert code == 2, arguments
        assert expected in err
        assert len(err.strip().splitlines()) == 1
    assert not (copy / "analysis").exists()
