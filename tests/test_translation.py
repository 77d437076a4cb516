"""Text to text: order, empty lines, lines of any length, bounded reading ahead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headcount
from headcount import translation
from headcount.config import Config, parse_config
from headcount.errors import UserError
from headcount.model.decoding import GREEDY, Search, beam_search
from headcount.model.transformer import Transformer
from headcount.run import Run, load_run
from headcount.translation import (
    split_tokens,
    translate,
    translate_lines,
    translate_stream,
    translate_tokens,
)

WORDS = ["the", "cat", "sees", "A", "big", "dog", "chat", ",", "me", "Ж"]
line = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
lines = st.lists(line | st.sampled_from(["", "  ", "\t "]), max_size=9)


@pytest.fixture(scope="module")
def run(run_folder: Path) -> Run:
    """In float64, where the shapes of a batch do not decide between hypotheses."""
    run = load_run(run_folder)
    run.model.double()
    return run


@settings(max_examples=25)
@given(
    lines=lines,
    batch_tokens=st.integers(1, 60),
    read_ahead=st.integers(1, 5),
    beam=st.integers(1, 3),
)
def test_lines_come_back_in_order_whatever_the_batches(
    run: Run, lines: list[str], batch_tokens: int, read_ahead: int, beam: int
) -> None:
    search = Search(beam=beam, nbest=beam, max_extra=2)
    stream = translate_stream(run, lines, search, batch_tokens=batch_tokens, read_ahead=read_ahead)
    found = list(stream)
    assert len(found) == len(lines)
    for text, translations in zip(lines, found, strict=True):
        assert len(translations) == beam
        if not text.strip():
            assert all(t.text == "" for t in translations)
            continue
        source = torch.tensor([[*run.source_tokenizer.encode(text), run.source_tokenizer.eos]])
        (alone,) = beam_search(run.model, source, search, start=2, eos=3)
        expected = [run.target_tokenizer.decode(hypothesis.tokens) for hypothesis in alone]
        assert [t.text for t in translations] == expected
        assert [t.score for t in translations] == pytest.approx([h.score for h in alone])


def test_reads_no_further_ahead_than_asked(run: Run) -> None:
    taken = []

    def source() -> Iterator[str]:
        for number in range(50):
            taken.append(number)
            yield "the cat"

    stream = translate_stream(run, source(), GREEDY, read_ahead=4)
    next(stream)
    assert len(taken) == 4


def test_reports_every_line_once(run: Run) -> None:
    told: list[tuple[str, int, int | None]] = []
    text = ["the cat", "", "a dog", "me", "  "] * 3
    translate_lines(run, text, GREEDY, batch_tokens=8, progress=lambda *t: told.append(t))
    done = [count for _, count, _ in told]
    assert done == sorted(done)
    assert done[-1] == len(text)
    assert len(set(done)) > 3
    assert {(stage, total) for stage, _, total in told} == {("Translating", len(text))}


def test_progress_counts_lines_not_the_parts_of_long_ones(run: Run) -> None:
    told: list[int] = []
    text = ["the cat " * 40, "", "a dog"]
    stream = translate_stream(
        run,
        text,
        GREEDY,
        batch_tokens=8,
        read_ahead=2,
        progress=lambda s, done, t: told.append(done),
    )
    assert len(list(stream)) == 3
    assert told == sorted(told)
    assert told[-1] == 3


@pytest.mark.parametrize("wrong", [None, 3, ["the cat", None], [["the"]]])
def test_what_is_no_text_is_refused_in_one_line(run: Run, wrong: Any) -> None:
    with pytest.raises(UserError, match="is not text") as error:
        translate(run, wrong)
    assert "\n" not in str(error.value)


def test_batches_keep_to_their_budgets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int]] = []

    def spy(model: object, source: torch.Tensor, *rest: object, **more: object) -> object:
        shapes.append((source.shape[0], source.shape[1]))
        return beam_search(model, source, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(translation, "beam_search", spy)
    monkeypatch.setattr(translation, "BATCH_SENTENCES", 5)
    sources = [[5] * (1 + number % 7) for number in range(60)]
    translate_tokens(run, sources, GREEDY, batch_tokens=24)
    assert all(rows * length <= 24 and rows <= 5 for rows, length in shapes)
    assert sum(rows for rows, _ in shapes) == 60


@settings(max_examples=50)
@given(
    words=st.lists(st.sampled_from([*WORDS, "catcatcat", "bigbigbigbigdog"]), max_size=30),
    most=st.integers(1, 20),
)
def test_long_lines_are_cut_between_words(run: Run, words: list[str], most: int) -> None:
    tokenizer = run.source_tokenizer
    text = " ".join(words)
    parts = split_tokens(tokenizer, text, most)
    assert [token for part in parts for token in part] == tokenizer.encode(text)
    assert all(0 < len(part) <= most for part in parts)
    # A border inside a word only where the word alone is too long.
    ends, borders = set(), set()
    for word in words:
        size = len(tokenizer.encode(word))
        borders.add(max(borders, default=0) + size)
        if size > most:
            return
    total = 0
    for part in parts:
        total += len(part)
        ends.add(total)
    assert ends <= borders
    # As few parts as that allows: no word of a part would have fitted into the one before.
    assert all(len(a) + len(b) > most for a, b in itertools.pairwise(parts))


def test_a_line_longer_than_the_model_is_translated_in_parts(run: Run) -> None:
    positions = run.config.model.max_positions
    text = "the big dog " * positions
    assert len(run.source_tokenizer.encode(text)) > positions
    parts = split_tokens(run.source_tokenizer, text, positions - 1)
    whole = translate_lines(run, ["me", text], GREEDY)
    found = translate_tokens(run, parts, GREEDY)
    texts = [run.target_tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]
    assert whole[1] == " ".join(filter(None, texts))
    assert whole[0] == translate_lines(run, ["me"], GREEDY)[0]


def test_training_mode_is_given_back(run: Run) -> None:
    run.model.train()
    try:
        first = translate_lines(run, ["the cat sees"], GREEDY)
        assert run.model.training
        assert first == translate_lines(run, ["the cat sees"], GREEDY)  # no dropout inside
    finally:
        run.model.eval()


def test_nothing_in_nothing_out(run: Run) -> None:
    assert translate_lines(run, []) == []


def test_a_verb_of_the_package(run_folder: Path, run: Run) -> None:
    text = ["the cat", "", "a big dog"]
    assert headcount.translate(run, text, beam=2) == translate_lines(run, text, Search(beam=2))
    assert headcount.translate(str(run_folder), text) == headcount.translate(run_folder, text)
    assert "translate" in dir(headcount)
    with pytest.raises(AttributeError, match="juggle"):
        headcount.juggle  # noqa: B018


def test_a_model_with_hardly_any_positions(tmp_path: Path, run_folder: Path) -> None:
    """Room for one token besides EOS: longer lines are cut into parts, and it ends."""
    stored = load_run(run_folder)
    config = stored.config.model.model_copy(update={"max_positions": 2})
    sizes = stored.source_tokenizer.size, stored.target_tokenizer.size
    model = Transformer(config, *sizes, stored.source_tokenizer.pad)
    tokenizers = stored.source_tokenizer, stored.target_tokenizer
    small = Run(tmp_path, Config(model=config), model.eval(), *tokenizers)
    assert len(translate_lines(small, ["The cat sees the dog .", "A dog"])) == 2
    with pytest.raises(UserError, match="max_positions"):
        parse_config({"model": {"max_positions": 1}}, "recipe.yaml")
