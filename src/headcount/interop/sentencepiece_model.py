"""SentencePiece models (Kudo and Richardson 2018) as `tokenizers` content, and back.

`tokenizers` has the same algorithms and also says where each piece stood in the sentence, which
the analyses of roles need. Pieces keep SentencePiece's own order. A piece that never occurs in text
(control symbols, unknown, unused) gets a space in front of its name: normalised text has no such
piece, so it cannot be matched.

One difference is known: a compatibility character with a combining mark after it, such as a
ligature with an accent, loses the mark.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headcount.data.words import MARK
from headcount.errors import UserError
from headcount.files import require_file

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_UNIGRAM, _BPE = 1, 2
_SPECIAL = ("<unk>", "<s>", "</s>")
_SPACES_AT_ENDS = "^ +| +$"
_SPACES_IN_A_ROW = " {2,}"


def read_sentencepiece(path: Path) -> Any:
    """A SentencePiece model file as its protocol buffer."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(require_file(path).read_bytes())
    except DecodeError as error:
        raise UserError(f"{path} is not a SentencePiece model ({error}).", "Fetch it again.") from (
            error
        )
    if not proto.pieces:
        raise UserError(f"{path} is a SentencePiece model without pieces.", "Fetch it again.")
    return proto


def to_tokenizers(proto: Any, prefixes: Sequence[str] = ()) -> dict[str, Any]:
    """The content of a `tokenizers` tokenizer that cuts text as a SentencePiece model does.

    `prefixes` are codes such as `>>fra<<` that are pieces of their own wherever they stand.
    """
    _refuse_what_differs(proto)
    unigram = proto.trainer_spec.model_type == _UNIGRAM
    first = len(proto.pieces)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_prefix_token(first + i, code) for i, code in enumerate(prefixes)],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(proto.normalizer_spec)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": _decoder(proto.trainer_spec.byte_fallback),
        "model": _unigram(proto) if unigram else _bpe(proto),
    }


def pieces_by_rank(content: dict[str, Any], names: Sequence[str], unknown: str) -> dict[str, Any]:
    """A tokenizer that normalises as `content` does, with other pieces, the most frequent first.

    Their probabilities, which are not known, are those of Zipf's law: one over the rank.
    """
    normaliser = math.log(sum(1 / rank for rank in range(1, len(names) + 1)))
    vocab = [
        [f" {name}" if name in _SPECIAL else name, -math.log(rank) - normaliser]
        for rank, name in enumerate(names, 1)
    ]
    unigram = {"type": "Unigram", "unk_id": names.index(unknown), "vocab": vocab}
    return {**content, "model": {**unigram, "byte_fallback": False}}


def to_sentencepiece(content: dict[str, Any]) -> bytes:
    """The SentencePiece model file of content that `to_tokenizers` made."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    model = content["model"]
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.byte_fallback = bool(model["byte_fallback"])
    if model["type"] == "Unigram":
        trainer.model_type, unknown = _UNIGRAM, model["unk_id"]
        scored = [(name, score) for name, score in model["vocab"]]
    else:
        trainer.model_type, unknown = _BPE, model["vocab"][model["unk_token"]]
        scored = _bpe_scores(model)
    for number, (name, score) in enumerate(scored):
        piece = proto.pieces.add()
        piece.piece, piece.score = name.removeprefix(" "), score
        piece.type = _UNKNOWN if number == unknown else _type(name, trainer.byte_fallback)
    trainer.unk_id, trainer.unk_piece = unknown, proto.pieces[unknown].piece
    trainer.vocab_size = len(proto.pieces)
    names = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    trainer.bos_id, trainer.eos_id = names.get("<s>", -1), names.get("</s>", -1)
    trainer.pad_id = names.get("<pad>", -1)
    steps = content["normalizer"]["normalizers"]
    kinds = {step["type"]: step for step in steps}
    if "Precompiled" in kinds:
        charsmap = kinds["Precompiled"]["precompiled_charsmap"]
        normalizer.precompiled_charsmap = base64.b64decode(charsmap)
    normalizer.add_dummy_prefix = "Prepend" in kinds
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Replace"]
    normalizer.remove_extra_whitespaces = _SPACES_AT_ENDS in patterns
    return bytes(proto.SerializeToString())


def _refuse_what_differs(proto: Any) -> None:
    """Settings of SentencePiece that no MarianMT model is known to use."""
    trainer, types = proto.trainer_spec, {piece.type for piece in proto.pieces}
    unsupported = {
        "words or characters as pieces": trainer.model_type not in (_UNIGRAM, _BPE),
        "a mark of the word's end": trainer.treat_whitespace_as_suffix,
        "spaces that are not marked": not proto.normalizer_spec.escape_whitespaces,
        "rules for its output": bool(proto.denormalizer_spec.precompiled_charsmap),
        "BPE with symbols of the user's": trainer.model_type == _BPE and _USER_DEFINED in types,
        "no unknown piece": _UNKNOWN not in types,
    }
    for what, present in unsupported.items():
        if present:
            raise UserError(
                f"This SentencePiece model has {what}.",
                "Supported are unigram and BPE models with SentencePiece's usual settings.",
            )


def _check_charsmap(content: bytes) -> None:
    """The size of a trie in bytes, the trie, and text: `tokenizers` panics at anything else."""
    size = int.from_bytes(content[:4], "little")
    try:
        if not 4 + size <= len(content):
            raise ValueError("its trie is cut off")
        content[4 + size - size % 4 :].decode("utf-8")
    except ValueError as error:
        raise UserError(
            f"The SentencePiece model's table of characters is damaged ({error}).",
            "Fetch the files of the model again.",
        ) from error


def _normalizers(spec: Any) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        _check_charsmap(spec.precompiled_charsmap)
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        for pattern, content in ((_SPACES_AT_ENDS, ""), (_SPACES_IN_A_ROW, " ")):
            steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    if spec.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": " "})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": MARK})
    return steps


def _decoder(byte_fallback: bool) -> dict[str, Any]:
    spaces = {
        "type": "Metaspace",
        "replacement": MARK,
        "prepend_scheme": "always",
        "split": False,
    }
    if not byte_fallback:
        return spaces
    return {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spaces]}


def _prefix_token(number: int, code: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": code, **flags}


def _names(proto: Any) -> list[str]:
    """What each piece is called, unmatchable ones with a space in front."""
    matched = (_NORMAL, _USER_DEFINED, _BYTE)
    return [p.piece if p.type in matched else f" {p.piece}" for p in proto.pieces]


def _type(name: str, byte_fallback: bool) -> int:
    if name.startswith(" "):
        return _CONTROL
    return _BYTE if byte_fallback and len(name) == 6 and name.startswith("<0x") else _NORMAL


def _unknown(proto: Any) -> int:
    return next(i for i, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN)


def _unigram(proto: Any) -> dict[str, Any]:
    best = max((p.score for p in proto.pieces if p.type == _NORMAL), default=0.0)

    def score(piece: Any) -> float:
        if piece.type == _USER_DEFINED:  # better than any way to cut it, as in SentencePiece
            return len(piece.piece.encode("utf-8")) * float(best) - 0.1
        return float(piece.score) if piece.type == _NORMAL else 0.0

    return {
        "type": "Unigram",
        "unk_id": _unknown(proto),
        "vocab": [
            [name, score(piece)] for name, piece in zip(_names(proto), proto.pieces, strict=True)
        ],
        "byte_fallback": proto.trainer_spec.byte_fallback,
    }


def _bpe(proto: Any) -> dict[str, Any]:
    """SentencePiece merges any two pieces whose join is a piece, the best-scored join first."""
    names = _names(proto)
    known = set(names)
    merges = [
        (-piece.score, name[:cut], name[cut:])
        for name, piece in zip(names, proto.pieces, strict=True)
        if piece.type == _NORMAL
        for cut in range(1, len(name))
        if name[:cut] in known and name[cut:] in known
    ]
    merges.sort(key=lambda merge: merge[0])
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": names[_unknown(proto)],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": proto.trainer_spec.byte_fallback,
        "ignore_merges": False,
        "vocab": {name: number for number, name in enumerate(names)},
        "merges": [[left, right] for _, left, right in merges],
    }


def _bpe_scores(model: dict[str, Any]) -> list[tuple[str, float]]:
    """Pieces in their order, each scored by its first merge; single characters come last."""
    first: dict[str, int] = {}
    for left, right in model["merges"]:
        first.setdefault(left + right, len(first))
    ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
    scores = []
    for number, name in enumerate(ordered):
        merged = name in first
        score = -float(first[name]) if merged else -float(len(first) + number)
        matched = _type(name, model["byte_fallback"]) == _NORMAL
        scores.append((name, score if matched else 0.0))
    return scores
