"""Byte-pair encoding (App. B.1) that keeps the position of every piece in the original sentence.

Text is brought to Unicode NFC and cut at whitespace; every word gets SentencePiece's mark of a word
start (`▁`), and punctuation and symbols are cut off as pieces of their own. So no piece crosses the
border between a word and its punctuation, which the syntactic analysis (Sec. 5.2) relies on, and
decoding is exact: punctuation that was attached has no mark in front of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Core

from headcount.data.words import (
    LONGEST_PART,
    MARK,
    WordIds,
    count_parts,
    normalizer,
    splitter,
    word_parts,
)
from headcount.errors import UserError
from headcount.files import read_json, write_text

PAD, UNK, START, EOS = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
MASKS = ("[MASK]", "<mask>")
"""What encoders with a masked-language head call a hidden token."""

FORMAT = 1
SMALLEST_VOCABULARY = 16

# The rarest characters that together make up this share of the text may become <unk>, but only
# beyond the most frequent 256: a small corpus must not lose its rare capitals.
_RARE_CHARACTERS = 0.0002
_ALPHABET_FLOOR = 256


class Piece(NamedTuple):
    """One token and the characters `[start, end)` of the original sentence that it covers.

    Surrounding whitespace is left out; a piece that is only the mark of a word start covers
    nothing and stands where its word begins.
    """

    id: int
    text: str
    start: int
    end: int


class Tokenizer:
    """A vocabulary of subwords with its special ids.

    Where pieces are cut by one model and numbered by another list, as in MarianMT (SentencePiece
    and `vocab.json`), `vocabulary` is that list: the text of each id, empty where an id has none.
    A piece that it does not have is unknown, and no text gives one of its special tokens.

    Models of other toolkits have tokens at the ends of every sentence, besides EOS, such as the
    code of a language: `before` and `after`. `encode` and `pieces` include them.
    """

    def __init__(
        self,
        content: dict[str, Any],
        *,
        pad: int = PAD,
        unk: int = UNK,
        start: int = START,
        eos: int = EOS,
        vocabulary: Sequence[str] | None = None,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
        size: int | None = None,
    ) -> None:
        """From the JSON content of a `tokenizers` tokenizer and the ids of its special tokens.

        `size` is that of the model's vocabulary, where it has more ids than text can give.
        """
        self.content = content
        self._core = Core.from_str(json.dumps(content, ensure_ascii=False))
        self.pad, self.unk, self.start, self.eos = pad, unk, start, eos
        self.vocabulary = None if vocabulary is None else list(vocabulary)
        self.size = self._core.get_vocab_size() if vocabulary is None else len(vocabulary)
        self.size = size or self.size
        self.before, self.after = tuple(before), tuple(after)
        self._special = frozenset((pad, unk, start, eos))
        if not all(0 <= id_ < self.size for id_ in (*self._special, *before, *after)):
            raise ValueError(f"special ids {sorted(self._special)} outside 0..{self.size - 1}")
        if pad == eos:
            raise ValueError(f"padding and the end of a sentence are the same token, {pad}")
        self._ids = {
            token: id_
            for id_, token in enumerate(vocabulary or ())
            if token and id_ not in self._special
        }
        added = [token["content"] for token in content["added_tokens"] if token["special"]]
        self._hidden = self._special | {self._ids[token] for token in added if token in self._ids}
        # Words can be looked up one by one where text is cut as ours is, in today's spelling of it.
        cutting = _cutting(self._core.normalizer, self._core.pre_tokenizer)
        framed = bool(self.before or self.after)
        self._by_word = vocabulary is None and not framed and cutting == _own_cutting()
        self._cut_part = self._core.model.tokenize
        self._words = WordIds(self._encode_part)
        self._fingerprint = ""

    @classmethod
    def train(cls, lines: Iterable[str], size: int, *, sample: int = 1_000_000) -> Tokenizer:
        """Learn at most `size` tokens from the lines, or from a random `sample` of more lines.

        The sample bounds time and memory; it is the same on every call. Lines that can be looped
        over again (a list, a `TextFile`) are not kept in memory, those of an iterator are. If the
        data yields fewer tokens than asked for, the vocabulary is smaller.
        """
        if size < SMALLEST_VOCABULARY:
            raise UserError(
                f"A vocabulary of {size} tokens is too small.",
                f"Ask for at least {SMALLEST_VOCABULARY}, better a few thousand.",
            )
        words = count_parts(list(lines) if isinstance(lines, Iterator) else lines, sample)
        alphabet = _alphabet(words, size)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL_TOKENS),
            # Passed in explicitly: the library breaks ties between equally rare characters at
            # random.
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        core = Core(models.BPE(unk_token=SPECIAL_TOKENS[UNK], fuse_unk=True))
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        core.train_from_iterator(_repeated(words), trainer)
        core.normalizer, core.pre_tokenizer, core.decoder = normalizer(), splitter(), _decoder()
        content = json.loads(core.to_str())
        # Special tokens stay in the vocabulary but are not looked for in text: a user's literal
        # "</s>" is four characters.
        content["added_tokens"] = []
        return cls(content)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a tokenizer that `save` wrote."""
        stored = read_json(path)
        remedy = "Restore it or create it again."
        try:
            tokenizer = cls.from_dict(stored)
        except Exception as error:  # the library raises bare Exceptions on bad content
            raise UserError(f"{path} is not a tokenizer ({error}).", remedy) from error
        if stored.get("fingerprint") != tokenizer.fingerprint():
            raise UserError(f"{path} is damaged (its content does not match its hash).", remedy)
        return tokenizer

    def save(self, path: Path) -> None:
        """Write the tokenizer as one JSON file, atomically."""
        stored = {**self.to_dict(), "fingerprint": self.fingerprint()}
        write_text(path, json.dumps(stored, ensure_ascii=False) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """The whole tokenizer as JSON values."""
        special = {"pad": self.pad, "unk": self.unk, "start": self.start, "eos": self.eos}
        stored: dict[str, Any] = {"format": FORMAT, "special": special, "tokenizer": self.content}
        if self.vocabulary is not None:
            stored["vocabulary"] = self.vocabulary
        if self.before or self.after:
            stored["frame"] = {"before": list(self.before), "after": list(self.after)}
        if self.vocabulary is None and self.size != self._core.get_vocab_size():
            stored["size"] = self.size
        return stored

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Tokenizer:
        """The inverse of `to_dict`."""
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']}, this version reads {FORMAT}")
        return cls(
            stored["tokenizer"],
            **stored["special"],
            **stored.get("frame", {}),
            vocabulary=stored.get("vocabulary"),
            size=stored.get("size"),
        )

    @cached_property
    def mask(self) -> int | None:
        """The token that stands for a hidden one, where the vocabulary has one."""
        names = [token["content"] for token in self.content["added_tokens"]]
        found = [self._core.token_to_id(name) for name in MASKS if name in names]
        return found[0] if found and self.vocabulary is None else None

    def fingerprint(self) -> str:
        """A hash of the content: equal where encoding and ids are equal."""
        if not self._fingerprint:
            canonical = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
            digest = hashlib.blake2b(canonical.encode("utf-8"), digest_size=16)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def encode(self, text: str) -> list[int]:
        """Token ids of one sentence, neither START nor EOS added."""
        return self.encode_batch([text])[0]

    def inside(self, text: str) -> list[int]:
        """Token ids of a text alone, without what every sentence begins and ends with."""
        return self._numbers(self._core.encode(text, add_special_tokens=False))

    def framed(self, ids: Sequence[int]) -> list[int]:
        """Token ids with what every sentence begins and ends with; an empty text stays empty."""
        return [*self.before, *ids, *self.after] if ids else []

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many sentences."""
        if not self._by_word:
            return [self.framed(self.inside(text)) for text in texts]
        flat, lengths = self._words.look_up(texts)
        ids = flat.tolist()
        return [ids[begin:end] for begin, end in pairwise([0, *np.cumsum(lengths).tolist()])]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all sentences end to end, [tokens] int32, and the length of each, [sentences]."""
        if self._by_word:
            return self._words.look_up(texts)
        encoded = self.encode_batch(texts)
        lengths = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded))
        flat = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()))
        return flat, lengths

    def pieces(self, text: str) -> list[Piece]:
        """The tokens of one sentence with the characters of the original that each covers.

        What stands before and after every sentence covers nothing.
        """
        inside = self.text_pieces(text)
        if not inside or not (self.before or self.after):
            return inside
        names = self.tokens()
        first = [Piece(id_, names[id_], 0, 0) for id_ in self.before]
        return [*first, *inside, *(Piece(i, names[i], len(text), len(text)) for i in self.after)]

    def text_pieces(self, text: str) -> list[Piece]:
        """`pieces` of the text alone."""
        if self._by_word and any(len(word) >= LONGEST_PART for word in text.split()):
            return [piece for word in re.finditer(r"\S+", text) for piece in self._word(word)]
        encoding = self._core.encode(text, add_special_tokens=False)
        starts = [start for start, _ in encoding.offsets]
        # A piece reaches to where the next one begins: the library's own ends leave out the
        # combining marks that NFC has merged, and give a lone mark the letter after it.
        ends = [*starts[1:], len(text)]
        return [
            Piece(id_, token, *_trim(text, start, end))
            for id_, token, start, end in zip(
                self._numbers(encoding), encoding.tokens, starts, ends, strict=False
            )
        ]

    def _word(self, match: re.Match[str]) -> Iterator[Piece]:
        """`pieces` of one word of a text; parts of a very long one are cut as for `encode`."""
        word, begin = match.group(), match.start()
        if len(word) < LONGEST_PART:
            for piece in self.pieces(word):
                yield piece._replace(start=begin + piece.start, end=begin + piece.end)
            return
        at = -1  # the mark of a word start is not in the text
        for part in word_parts(word):
            raw = part.encode("utf-8")
            for token in self._cut_part(part):
                # The library counts bytes.
                span = (at + len(raw[:offset].decode("utf-8")) for offset in token.offsets)
                start, end = (begin + min(max(place, 0), len(word)) for place in span)
                yield Piece(token.id, token.value, start, end)
            at += len(part)

    def pieces_batch(self, texts: Sequence[str]) -> list[list[Piece]]:
        """`pieces` of many sentences."""
        return [self.pieces(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; special tokens are skipped."""
        kept = [int(id_) for id_ in ids if int(id_) not in self._hidden]
        if self.vocabulary is None:
            return str(self._core.decode(kept, skip_special_tokens=True)).strip()
        return str(self._core.decoder.decode([self.vocabulary[id_] for id_ in kept])).strip()

    def tokens(self) -> list[str]:
        """The text of every id."""
        if self.vocabulary is not None:
            return list(self.vocabulary)
        return [str(self._core.id_to_token(id_) or "") for id_ in range(self.size)]

    def _encode_part(self, part: str) -> list[int]:
        """The ids of a part of a word (`word_parts`)."""
        return [token.id for token in self._cut_part(part)]

    def _numbers(self, encoding: Encoding) -> list[int]:
        """The ids of an encoded sentence in this vocabulary."""
        if self.vocabulary is None:
            return list(encoding.ids)
        return [self._ids.get(token, self.unk) for token in encoding.tokens]

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """`decode` of many sentences."""
        return [self.decode(ids) for ids in batch]


def _cutting(normalise: Any, split: Any) -> dict[str, Any]:
    """A normaliser and a splitter, or None, as they stand in a tokenizer's content."""
    core = Core(models.BPE())
    core.normalizer, core.pre_tokenizer = normalise, split
    content = json.loads(core.to_str())
    return {name: content[name] for name in ("normalizer", "pre_tokenizer")}


@cache
def _own_cutting() -> dict[str, Any]:
    return _cutting(normalizer(), splitter())


def _decoder() -> decoders.Decoder:
    return decoders.Metaspace(replacement=MARK, prepend_scheme="always", split=False)


def _repeated(words: Counter[str], most: int = 1000) -> Iterator[str]:
    """Text in which each word occurs as often as its count says: the library accepts only text.

    Single characters are left out: they have nothing to merge, and the alphabet is passed
    separately.
    """
    rare: list[str] = []  # several words per text, as every text has its cost
    waiting = 0
    for word, count in words.items():
        if len(word) == 1:
            continue
        full, rest = divmod(count, most)
        yield from repeat(f"{word} " * most, full)
        rare.append(f"{word} " * rest)
        waiting += rest
        if waiting >= most:
            yield "".join(rare)
            rare.clear()
            waiting = 0
    yield "".join(rare)


def _alphabet(words: Counter[str], size: int) -> list[str]:
    """The characters that get a token, so that rare ones do not use up a small vocabulary."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    covered = np.cumsum([counts[character] for character in ranked])
    total = covered[-1] if len(covered) else 0
    enough = int(np.searchsorted(covered, total * (1 - _RARE_CHARACTERS))) + 1
    return ranked[: min(max(enough, _ALPHABET_FLOOR), size // 2)]


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the whitespace at its ends."""
    while start < end and (text[start].isspace() or text[start] == MARK):
        start += 1
    while start < end and (text[end - 1].isspace() or text[end - 1] == MARK):
        end -= 1
    return start, end
