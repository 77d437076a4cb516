from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headcount.errors import UserError
from headcount.interop.families.marian import Marian
from headcount.interop.search_settings import generation_settings, search_config
from headcount.run import Run


def generation(**given: Any) -> Any:
    return SimpleNamespace(**given)


def test_what_is_not_given_is_as_in_transformers() -> None:
    search, notes = search_config(generation(num_beams=None, max_length=None), 128)
    assert (search.beam, search.length_penalty, search.normalisation) == (1, 1.0, "length")
    assert search.max_extra == 128
    assert len(notes) == 1


def test_lengths() -> None:
    """`max_length` counts the start token, we do not."""
    assert search_config(generation(max_length=20), 128)[0].max_extra == 19
    assert search_config(generation(max_new_tokens=30, max_length=20), 128)[0].max_extra == 30
    assert search_config(generation(max_length=512), 128)[0].max_extra == 128
    assert search_config(generation(max_length=20, min_length=5), 128)[0].min_length == 4


def test_what_is_left_out_is_said() -> None:
    given = generation(
        max_length=20,
        bad_words_ids=[[7], [3, 4]],
        early_stopping="never",
        no_repeat_ngram_size=3,
        length_penalty=-0.5,
    )
    search, notes = search_config(given, 128)
    assert search.forbidden == (7,)
    assert search.length_penalty == 0
    assert len(notes) == 4
    assert any("early_stopping = never" in note for note in notes)


def test_search_there_and_back(marian_run: Run) -> None:
    settings, notes = generation_settings(marian_run)
    assert search_config(generation(**settings), 128)[0] == marian_run.config.search
    assert notes == []


def test_what_marian_cannot_be(make_run: Any) -> None:
    for changes, reason in (
        ({"norm": "pre"}, "post-norm"),
        ({"norm": "post", "head_width": 5}, "width of their own"),
        ({"norm": "post", "decoder_head_width": 5}, "width of their own"),
        ({"norm": "post", "position_base": 100.0}, "position_base"),
    ):
        with pytest.raises(UserError, match=reason):
            Marian().settings(make_run(**changes))
    assert any("Wu et al." in note for note in generation_settings(make_run(norm="post"))[1])
