"""Settings of a pruning: their defaults, and what they say of a model."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest

from headcount.cli.prune import prune as prune_verb
from headcount.config import Config, parse_config
from headcount.errors import Notice, UserError
from headcount.heads import ALL_SITES, Head, HeadLayout
from headcount.model.transformer import full_layout
from headcount.pruning.prune import prune
from headcount.pruning.record import remarks_on
from headcount.pruning.settings import PruneSettings, check_heads, even_remarks, make_settings


def config_of(decoder_layers: int = 2) -> Config:
    """A model of two encoder layers with four heads."""
    model: dict[str, Any] = {
        "encoder_layers": 2,
        "decoder_layers": decoder_layers,
        "heads": 4,
        "width": 8,
    }
    model |= {} if decoder_layers else {"tie": "all"}  # an encoder alone has one matrix
    return parse_config({"data": {"corpus": "builtin"}, "model": model}, where="test")


@pytest.fixture
def layout() -> HeadLayout:
    return full_layout(config_of().model)


@pytest.mark.parametrize(
    ("given", "sites"),
    [
        ({"penalty": 0.1}, ("enc",)),
        ({"keep": 3}, ("enc",)),
        ({"keep": "dec=2,enc_ff=3"}, ("dec", "enc_ff")),
        ({"speedup": 1.5}, ALL_SITES),
        ({"speedup": 1.5, "by": "shape"}, ALL_SITES),
        ({"speedup": 1.5, "sites": "enc,enc_ff"}, ("enc", "enc_ff")),
    ],
)
def test_default_sites(given: dict[str, Any], sites: tuple[str, ...]) -> None:
    assert make_settings(**given).resolved(config_of()).sites == sites
    assert make_settings(**{"sites": None} | given).resolved(config_of()).sites == sites


def test_pruning_trains_positions_that_a_training_held() -> None:
    baseline = config_of().training.model_copy(update={"hold_positions": True})
    settings = make_settings(keep=3).resolved(config_of())
    assert not settings.training(baseline, Path("run")).hold_positions


def test_a_speedup_is_looked_for_wherever_the_run_has_something(layout: HeadLayout) -> None:
    settings = make_settings(speedup=1.5)
    alone = settings.resolved(config_of(decoder_layers=0))
    assert alone.sites == ("enc", "enc_ff", "enc_layers")
    assert alone.train_only == ("encoder",)
    assert settings.resolved(config_of()).train_only == ("encoder", "decoder")

    pruned = layout.keeping([], ["dec"])
    again = settings.resolved(config_of(), pruned)
    assert again.sites == tuple(site for site in ALL_SITES if site != "dec")
    assert again.resolved(config_of(), pruned) == again
    check_heads(again, pruned, "the run")


def test_sites_that_were_named_are_not_left_out(layout: HeadLayout) -> None:
    pruned = layout.keeping([], ["dec"])
    settings = make_settings(speedup=1.5, sites="enc,dec").resolved(config_of(), pruned)
    with pytest.raises(
        UserError, match=r"no head at site dec .* There is something to prune at enc"
    ):
        check_heads(settings, pruned, "the run")
    nothing = layout.keeping([], ALL_SITES)
    with pytest.raises(UserError, match="no head at site enc"):
        check_heads(make_settings(speedup=1.5).resolved(config_of(), nothing), nothing, "the run")


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("dec=4,cross=4", None),
        ("dec=2,cross=6", "1 at dec and 3 at cross"),
        ("dec=4", "2 at dec and 4 at cross"),
        ("dec=8", None),
        ("enc=4", None),
    ],
)
def test_even_layers_of_unlike_sites(layout: HeadLayout, keep: str, said: str | None) -> None:
    remarks = even_remarks(make_settings(keep=keep, even=True), layout)
    assert (said is None) == (not remarks)
    assert all(str(said) in remark for remark in remarks)
    assert even_remarks(make_settings(keep=keep), layout) == []


def test_even_layers_of_sites_that_are_counted_together(layout: HeadLayout) -> None:
    settings = make_settings(keep=8, sites="dec,cross", even=True)
    assert even_remarks(settings, layout) == []
    ragged = layout.keeping(set(layout.heads()) - {Head("cross", 1, 0)})
    (remark,) = even_remarks(make_settings(keep="dec=6", even=True), ragged)
    assert "3 at dec and 3 or 4 at cross" in remark


def test_a_pruning_says_that_even_layers_will_be_filled_up(
    baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    given = {"by": "random", "updates": 0, "even": True, "bleu_sentences": 1}
    with pytest.warns(Notice, match="1 at dec and 2 at cross"):
        prune(baseline, corpus, tmp_path / "unlike", keep="dec=2,cross=4", **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prune(baseline, corpus, tmp_path / "alike", keep="dec=2,cross=2", **given)


def test_options_of_the_verb_are_settings() -> None:
    """Those that are neither input nor output nor a way of printing; with the same defaults."""
    others = ("context", "run", "train", "out", "plan", "no_finetune", "resume", "json", "quiet")
    for name, option in inspect.signature(prune_verb).parameters.items():
        if name not in others:
            assert option.default.default == PruneSettings.model_fields[name].default, name


@pytest.mark.parametrize(("speedup", "advice"), [(None, "Raise --penalty"), (1.5, "still open.")])
def test_advice_where_nothing_was_removed(speedup: float | None, advice: str) -> None:
    """A penalty is not what steers a pruning for speed."""
    settings = {"sites": ["enc"], "keep": None, "speedup": speedup}
    record = {"decided": {"undecided": []}, "closed": [], "kept": ["enc.0.0"], "settings": settings}
    [remark] = remarks_on(record)
    assert advice in remark
    assert ("Raise" in remark) == (speedup is None)
