"""BPE: exact decoding, offsets in the original sentence, pieces that respect words."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Core
from tokenizers import models, trainers

from headcount.data.tokenizer import (
    EOS,
    PAD,
    SPECIAL_TOKENS,
    START,
    UNK,
    Tokenizer,
)
from headcount.data.words import MARK, WordIds, normalizer, sampled, splitter
from headcount.errors import UserError

LINES = [
    "The cat's well-known hat (a red one) costs 2019 dollars... or less!",
    'She said: "Où est l’hôtel?" -- "Là-bas, à côté de l\'école."',
    "Der große Bär läuft über die Straße; ça va, señor Ñandú?",
    "한국어 문장 입니다. 日本語の文。 Ещё одно предложение, пожалуйста.",
    "the cats and the hats and the dollars of the hotel",
] * 3
KNOWN = sorted(set("".join(LINES)))
# Text that is not in NFC: letters with their accents apart, and a Korean syllable in three parts.
DECOMPOSED = [
    "e\u0301",
    "a\u0300",
    "n\u0303",
    "u\u0308",
    "o\u0302",
    *unicodedata.normalize("NFD", "한국"),
]
SPACES = [" ", "  ", "\t", "\u00a0", "\u2003", "\u3000", "\u2028", "\r", "\x1f", MARK]

known_text = st.lists(st.sampled_from([*KNOWN, *DECOMPOSED[:5], *SPACES])).map("".join)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train(LINES, 300)


def spaced(text: str) -> str:
    """What decoding should give back: NFC, whitespace runs (and literal marks) one space."""
    return " ".join(unicodedata.normalize("NFC", text).replace(MARK, " ").split())


def is_space(character: str) -> bool:
    return character.isspace() or character == MARK


@given(known_text)
@example("  The\u00a0 cat's\thats...  ")
@example("(a)-(b) ''' -- ?!")
@example(MARK)
def test_decoding_inverts_encoding(bpe: Tokenizer, text: str) -> None:
    ids = bpe.encode(text)
    assert UNK not in ids
    assert bpe.decode(ids) == spaced(text)


any_text = st.text(max_size=60) | st.lists(
    st.sampled_from([*KNOWN, *DECOMPOSED, *SPACES, "👩‍👩‍👧", "🏳️‍🌈", "☃", "<s>", "q\u0307\u0323"])
).map("".join)


@given(any_text)
@example(" \u0301e\u0301 👨‍👩‍👧 \u00a0x")
def test_pieces_cover_every_character_once_and_in_order(bpe: Tokenizer, text: str) -> None:
    pieces = bpe.pieces(text)
    covered = [position for piece in pieces for position in range(piece.start, piece.end)]
    assert covered == sorted(set(covered))
    missed = set(range(len(text))) - set(covered)
    assert all(is_space(text[position]) for position in missed)
    for piece in pieces:
        inside = text[piece.start : piece.end]
        assert inside == inside.strip()


@given(any_text)
def test_looking_words_up_gives_what_the_library_gives(bpe: Tokenizer, text: str) -> None:
    assert bpe.encode(text) == [piece.id for piece in bpe.pieces(text)]


@given(st.lists(st.sampled_from([*KNOWN, *DECOMPOSED, *SPACES])).map("".join))
def test_a_piece_is_the_text_it_covers(bpe: Tokenizer, text: str) -> None:
    for piece in bpe.pieces(text):
        covered = unicodedata.normalize("NFC", text[piece.start : piece.end])
        if piece.id != UNK:
            assert covered == piece.text.removeprefix(MARK)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  cafe\u0301,  The ", ["cafe\u0301", ",", "The"]),
        ("\tThe\u00a0cats", ["The", "cats"]),
        ("日本語の文。", ["日本語の文", "。"]),
        ("l'école... (2019)--a", ["l", "'", "école", "...", "(", "2019", ")", "--", "a"]),
    ],
)
def test_pieces_never_cross_the_border_of_a_word(
    bpe: Tokenizer, text: str, words: list[str]
) -> None:
    spans = []
    for word in words:
        begin = text.index(word, spans[-1][1] if spans else 0)
        spans.append((begin, begin + len(word)))
    for piece in bpe.pieces(text):
        assert any(begin <= piece.start <= piece.end <= end for begin, end in spans)


def test_digits_stay_together_where_the_data_has_them_together() -> None:
    bpe = Tokenizer.train(["in 2019 and 2019 again, 2019."] * 20, 100)
    assert [piece.text for piece in bpe.pieces("in 2019.")] == ["▁in", "▁2019", "."]


def test_a_lone_mark_covers_nothing_and_stands_before_its_word(bpe: Tokenizer) -> None:
    mark, rest = bpe.pieces("  ☃")
    assert (mark.text, mark.start, mark.end) == (MARK, 2, 2)
    assert (rest.id, rest.start, rest.end) == (UNK, 2, 3)


def test_literal_special_tokens_are_plain_text(bpe: Tokenizer) -> None:
    bpe = Tokenizer.train([*LINES, "a <s> b </s> <pad> <unk>"] * 5, 400)
    for token in SPECIAL_TOKENS:
        ids = bpe.encode(f"a {token} b{token}")
        assert not {PAD, UNK, START, EOS} & set(ids)
        assert bpe.decode(ids) == f"a {token} b{token}"


def test_special_ids_are_fixed_and_skipped_by_decoding(bpe: Tokenizer) -> None:
    assert (bpe.pad, bpe.unk, bpe.start, bpe.eos) == (0, 1, 2, 3)
    ids = bpe.encode("the cats")
    assert bpe.decode([START, *ids, EOS, PAD, PAD]) == "the cats"
    assert bpe.decode(np.array(ids)) == "the cats"
    assert bpe.decode([]) == ""


def test_batches_agree_with_single_sentences(bpe: Tokenizer) -> None:
    texts = ["The cat", "", "  ", "hats, hats"]
    encoded = [bpe.encode(text) for text in texts]
    assert bpe.encode_batch(texts) == encoded
    assert encoded[1] == encoded[2] == []
    flat, lengths = bpe.encode_flat(texts)
    assert flat.tolist() == [id_ for ids in encoded for id_ in ids]
    assert lengths.tolist() == [len(ids) for ids in encoded]
    assert bpe.decode_batch(encoded) == ["The cat", "", "", "hats, hats"]
    assert bpe.pieces_batch(texts) == [bpe.pieces(text) for text in texts]


def test_a_full_word_cache_changes_nothing(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordIds, "LIMIT", 3)
    small = Tokenizer.from_dict(bpe.to_dict())
    for line in LINES:
        assert small.encode(line) == bpe.encode(line)
        assert len(small._words) <= 3 + 1 + len(line.split())


# Vocabulary sizes


def test_more_tokens_than_the_data_gives_is_a_smaller_vocabulary() -> None:
    bpe = Tokenizer.train(["a b a b"], 5000)
    assert 4 < bpe.size < 20
    assert bpe.decode(bpe.encode("b a")) == "b a"


def test_rare_characters_do_not_eat_a_small_vocabulary() -> None:
    rare = ["".join(map(chr, range(0x4E00 + 10 * i, 0x4E00 + 10 * i + 10))) for i in range(200)]
    bpe = Tokenizer.train(LINES * 20 + rare, 600)
    assert bpe.size == 600
    assert sum(len(token.lstrip(MARK)) > 1 for token in bpe._core.get_vocab()) > 200
    assert UNK in bpe.encode(rare[-1])
    assert UNK not in bpe.encode("".join(LINES))


def test_a_small_corpus_keeps_its_rare_capitals() -> None:
    bpe = Tokenizer.train(["the cat and the dog"] * 1000 + ["Zoë"], 1000)
    assert UNK not in bpe.encode("Zoë")


def test_a_large_script_keeps_its_characters_where_there_is_room() -> None:
    han = [chr(0x4E00 + i) for i in range(2000)]
    bpe = Tokenizer.train(["".join(han[i : i + 20]) for i in range(0, 2000, 5)], 6000)
    assert UNK not in bpe.encode("".join(han[100:200]))


def test_a_vocabulary_smaller_than_the_alphabet_keeps_frequent_characters() -> None:
    bpe = Tokenizer.train(LINES, 20)
    assert bpe.size <= 20
    assert UNK not in bpe.encode("e t o")
    with pytest.raises(UserError, match="too small"):
        Tokenizer.train(LINES, 5)


def test_no_lines_at_all() -> None:
    bpe = Tokenizer.train([], 100)
    assert bpe.size == len(SPECIAL_TOKENS)
    assert set(bpe.encode("anything")) == {UNK}


def test_lines_beyond_the_sample_are_not_learned_from() -> None:
    lines = [f"{chr(ord('a') + i % 26)}{i}" for i in range(200)]
    chosen = list(sampled(lines, 200, 40))
    assert len(chosen) == 40
    assert Tokenizer.train(lines, 90, sample=40).content == Tokenizer.train(chosen, 90).content


def test_an_iterator_teaches_what_a_list_does() -> None:
    sampled = [Tokenizer.train(lines, 90, sample=4).content for lines in (LINES, iter(LINES))]
    assert sampled[0] == sampled[1]


def test_counting_words_first_learns_what_the_lines_themselves_teach() -> None:
    lines = [*LINES, "the the\u00a0the e\u0301te\u0301", "a▁cat  (the) <s>", "the " * 2500] * 2
    counted = Tokenizer.train(lines, 150)
    core = Core(models.BPE(unk_token="<unk>", fuse_unk=True))
    core.normalizer, core.pre_tokenizer = normalizer(), splitter()
    characters = sorted(token for token in counted._core.get_vocab() if len(token) == 1)
    trainer = trainers.BpeTrainer(
        vocab_size=150,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    core.train_from_iterator(lines, trainer)
    assert core.get_vocab() == counted._core.get_vocab()
    assert counted.size == 150


def test_training_is_deterministic_over_processes(tmp_path: Path) -> None:
    # Many equally frequent characters and pairs: ties are where chance could come in.
    lines = ["".join(chr(0x4E00 + (i * j) % 700) for j in range(1, 9)) for i in range(300)]
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    script = (
        "import json, sys; from headcount.data.tokenizer import Tokenizer;"
        "print(Tokenizer.train(json.load(open(sys.argv[1])), 500).fingerprint())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lines.json")]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    here = {Tokenizer.train(iter(lines), 500).fingerprint() for _ in range(3)}
    assert here == {elsewhere}


# Files


def test_saving_and_loading(bpe: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    bpe.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.fingerprint() == bpe.fingerprint()
    assert loaded.encode_batch(LINES) == bpe.encode_batch(LINES)
    assert loaded.size == bpe.size
    assert list(tmp_path.iterdir()) == [path]


def test_other_special_ids_survive_a_file(bpe: Tokenizer, tmp_path: Path) -> None:
    other = Tokenizer(
        bpe.to_dict()["tokenizer"], pad=bpe.size - 1, unk=1, start=bpe.size - 1, eos=0
    )
    other.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.pad, loaded.start, loaded.eos) == (bpe.size - 1, bpe.size - 1, 0)
    assert other.fingerprint() != bpe.fingerprint()


def test_the_fingerprint_tells_vocabularies_apart(bpe: Tokenizer) -> None:
    assert Tokenizer.train(LINES, 150).fingerprint() != bpe.fingerprint()
    assert Tokenizer.train(LINES, 300).fingerprint() == bpe.fingerprint()


@pytest.mark.parametrize("damage", ["truncated", "swapped", "list", "newer", "ids", "empty"])
def test_a_damaged_file_is_named(bpe: Tokenizer, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tokenizer.json"
    bpe.save(path)
    text = path.read_text(encoding="utf-8")
    stored = json.loads(text)
    if damage == "truncated":
        text = text[: len(text) // 2]
    elif damage == "swapped":
        vocabulary = stored["tokenizer"]["model"]["vocab"]
        vocabulary["e"], vocabulary["t"] = vocabulary["t"], vocabulary["e"]
        text = json.dumps(stored)
    elif damage == "newer":
        text = json.dumps({**stored, "format": 99})
    elif damage == "ids":
        text = json.dumps({**stored, "special": {**stored["special"], "pad": 10_000}})
    else:
        text = "[]" if damage == "list" else ""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Tokenizer.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_huge_word_is_cut_and_comes_back() -> None:
    """Linear in its length: a million characters would take hours and gigabytes as one word."""
    tokenizer = Tokenizer.train(["abc abd bcd cab", "é" * 3000, "x" * 100_000], 60)
    word = "abcdabcab" * 100_000
    begin = time.perf_counter()
    ids = tokenizer.encode(f"cab {word} abd")
    assert time.perf_counter() - begin < 60
    assert tokenizer.decode(ids) == f"cab {word} abd"


@pytest.mark.parametrize("character", ["b", "é", "ж", "e\u0301"])
@pytest.mark.parametrize("length", [999, 1000, 1001, 2500])
def test_pieces_of_a_long_word_are_those_of_encode(character: str, length: int) -> None:
    tokenizer = Tokenizer.train(["abc abd bcd cab éé"], 60)
    text = f"cab, {character * length}! {character * 3} abd"
    pieces = tokenizer.pieces(text)
    assert [piece.id for piece in pieces] == tokenizer.encode(text)
    assert all(0 <= a.start <= a.end <= b.end <= len(text) for a, b in pairwise(pieces))
    if len(character) == 1:
        covered = "".join(text[piece.start : piece.end] for piece in pieces)
        assert covered == text.replace(" ", "")
