"""Model files of Marian itself, written here by its format's rules and computed in NumPy."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from headcount import import_run, load_run, roles
from headcount.errors import UserError
from headcount.interop.marian_file import find_marian_file, read_marian_file

WIDTH, HEADS, UNITS, LAYERS = 16, 4, 24, 2
SETTINGS = {
    "type": "transformer",
    "dim-emb": WIDTH,
    "enc-depth": LAYERS,
    "dec-depth": LAYERS,
    "transformer-heads": HEADS,
    "transformer-dim-ffn": UNITS,
    "transformer-ffn-activation": "relu",
    "transformer-postprocess": "dan",
    "transformer-preprocess": "",
    "transformer-decoder-autoreg": "self-attention",
    "tied-embeddings-all": True,
}
Tensors = dict[str, np.ndarray]


def make_tensors(vocabulary: int, tie: str = "all", decoder: str = "self") -> Tensors:
    """Random parameters by Marian's names; of a recurrent decoder only some."""
    rng = np.random.default_rng(3)

    def draw(*shape: int, around: float = 0.0) -> np.ndarray:
        return (around + rng.normal(0, 0.3, shape)).astype(np.float32)

    names = ["Wemb"] if tie == "all" else ["encoder_Wemb", "decoder_Wemb"]
    tensors = {name: draw(vocabulary, WIDTH) for name in names}
    tensors["decoder_ff_logit_out_b"] = draw(1, vocabulary)
    blocks = {"encoder": ["self"], "decoder": [decoder, "context"]}
    for stack, attentions in blocks.items():
        for layer in range(1, LAYERS + 1):
            for block in attentions:
                prefix = f"{stack}_l{layer}_{block}"
                for part in "qkvo":
                    tensors[f"{prefix}_W{part}"] = draw(WIDTH, WIDTH)
                    tensors[f"{prefix}_b{part}"] = draw(1, WIDTH)
                tensors[f"{prefix}_Wo_ln_scale"] = draw(1, WIDTH, around=1)
                tensors[f"{prefix}_Wo_ln_bias"] = draw(1, WIDTH)
            prefix = f"{stack}_l{layer}_ffn"
            tensors[f"{prefix}_W1"], tensors[f"{prefix}_b1"] = draw(WIDTH, UNITS), draw(1, UNITS)
            tensors[f"{prefix}_W2"], tensors[f"{prefix}_b2"] = draw(UNITS, WIDTH), draw(1, WIDTH)
            tensors[f"{prefix}_ffn_ln_scale"] = draw(1, WIDTH, around=1)
            tensors[f"{prefix}_ffn_ln_bias"] = draw(1, WIDTH)
    return tensors


def packed(name: str, tensor: np.ndarray, eight_bits: bool) -> tuple[int, bytes]:
    """The type of an item and its data."""
    if not eight_bits or tensor.shape[0] == 1:
        return 0x404, tensor.tobytes()
    factor = np.float32(127 / np.abs(tensor).max())
    whole = tensor if name.endswith("Wemb") else tensor.T
    data = np.rint(whole * factor).astype(np.int8).tobytes() + factor.tobytes()
    return 0x4101, data + bytes(-len(data) % 256)


def binary(tensors: Tensors, settings: dict[str, Any], eight_bits: bool = False) -> bytes:
    """A binary model file, version 1."""
    items = [(n, list(t.shape), *packed(n, t, eight_bits)) for n, t in tensors.items()]
    text = yaml.safe_dump(settings).encode() + b"\0"
    items.append(("special:model.yml", [len(text)], 0x101, text))
    if eight_bits:
        items.append(("none_QuantMultA", [1, 1], 0x404, struct.pack("<f", 7) + bytes(252)))
        items.append(("Wemb_QuantMultA", [1, 1], 0x4101, bytes(256)))
    head = struct.pack("<QQ", 1, len(items))
    for name, shape, kind, data in items:
        head += struct.pack("<QQQQ", len(name) + 1, kind, len(shape), len(data))
    head += b"".join(name.encode() + b"\0" for name, *_ in items)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, shape, *_ in items)
    padding = -(len(head) + 8) % 256
    head += struct.pack("<Q", padding) + bytes(padding)
    return head + b"".join(data for *_, data in items)


Write = Callable[..., Path]


@pytest.fixture(scope="module")
def spm(train_sentencepiece: Callable[..., bytes], english: list[str]) -> bytes:
    """A vocabulary as Marian trains it: the end is 0, unknown is 1, no other special pieces."""
    return train_sentencepiece(english[:400], bos_id=-1, eos_id=0, unk_id=1)


@pytest.fixture
def write(tmp_path: Path, spm: bytes) -> Write:
    """A folder with a model, and its tensors."""
    import sentencepiece

    size = sentencepiece.SentencePieceProcessor(model_proto=spm).get_piece_size()

    def written(form: str = "bin", tie: str = "all", **changes: Any) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "vocab.spm").write_bytes(spm)
        settings = {**SETTINGS, "dim-vocabs": [size, size], **changes}
        if tie == "target":
            settings = {**settings, "tied-embeddings-all": False, "tied-embeddings": True}
        tensors = make_tensors(size, tie)
        if form == "npz":
            text = np.frombuffer(yaml.safe_dump(settings).encode() + b"\0", np.int8)
            np.savez(folder / "model.npz", **tensors, **{"special:model.yml": text})
        else:
            content = binary(tensors, settings, eight_bits=form == "int8")
            (folder / "model.bin").write_bytes(content)
        return folder

    return written


class Reference:
    """Marian's Transformer, one sentence and one query at a time, in float64."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.p = {name: tensor.double().numpy() for name, tensor in tensors.items()}

    def norm(self, x: np.ndarray, prefix: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return self.p[f"{prefix}_ln_scale"] * centred / spread + self.p[f"{prefix}_ln_bias"]

    def attention(self, x: np.ndarray, memory: np.ndarray, prefix: str, causal: bool) -> np.ndarray:
        q = x @ self.p[f"{prefix}_Wq"] + self.p[f"{prefix}_bq"]
        k = memory @ self.p[f"{prefix}_Wk"] + self.p[f"{prefix}_bk"]
        v = memory @ self.p[f"{prefix}_Wv"] + self.p[f"{prefix}_bv"]
        out, size = np.zeros_like(x), WIDTH // HEADS
        for h in range(HEADS):
            at = slice(h * size, (h + 1) * size)
            for i in range(len(x)):
                seen = i + 1 if causal else len(memory)
                scores = np.array([q[i, at] @ k[j, at] for j in range(seen)]) / math.sqrt(size)
                weights = np.exp(scores - scores.max())
                out[i, at] = (weights / weights.sum()) @ v[:seen, at]
        result = out @ self.p[f"{prefix}_Wo"] + self.p[f"{prefix}_bo"]
        return self.norm(x + result, f"{prefix}_Wo")

    def feed_forward(self, x: np.ndarray, prefix: str) -> np.ndarray:
        hidden = np.maximum(x @ self.p[f"{prefix}_W1"] + self.p[f"{prefix}_b1"], 0)
        return self.norm(
            x + hidden @ self.p[f"{prefix}_W2"] + self.p[f"{prefix}_b2"], f"{prefix}_ffn"
        )

    def embedded(self, rows: list[np.ndarray]) -> np.ndarray:
        """Scaled rows with positions: sines, then cosines, wavelengths from 2 pi to 20000 pi."""
        pairs = WIDTH // 2
        rates = [10000 ** (-i / (pairs - 1)) for i in range(pairs)]
        signal = [
            [math.sin(t * r) for r in rates] + [math.cos(t * r) for r in rates]
            for t in range(len(rows))
        ]
        return np.array(rows) * math.sqrt(WIDTH) + np.array(signal)

    def table(self, side: str) -> np.ndarray:
        return self.p.get("Wemb", self.p.get(f"{side}_Wemb"))

    def encode(self, source: list[int]) -> np.ndarray:
        x = self.embedded([self.table("encoder")[token] for token in source])
        for layer in range(1, LAYERS + 1):
            x = self.attention(x, x, f"encoder_l{layer}_self", causal=False)
            x = self.feed_forward(x, f"encoder_l{layer}_ffn")
        return x

    def logits(self, source: list[int], target: list[int]) -> np.ndarray:
        """Of every token of the target, which begins with zeros."""
        memory, table = self.encode(source), self.table("decoder")
        x = self.embedded([np.zeros(WIDTH), *(table[token] for token in target[:-1])])
        for layer in range(1, LAYERS + 1):
            x = self.attention(x, x, f"decoder_l{layer}_self", causal=True)
            x = self.attention(x, memory, f"decoder_l{layer}_context", causal=False)
            x = self.feed_forward(x, f"decoder_l{layer}_ffn")
        return x @ table.T + self.p["decoder_ff_logit_out_b"]


@pytest.mark.parametrize(("form", "tie"), [("bin", "all"), ("npz", "target"), ("int8", "all")])
def test_a_model_computes_what_marian_does(write: Write, form: str, tie: str) -> None:
    folder = write(form, tie)
    imported = import_run(folder, folder.parent / "run", languages=("en", "fr"))
    assert imported.difference is None
    assert imported.notes == []
    run = load_run(folder.parent / "run")
    path = find_marian_file(folder)
    assert path is not None
    stored = read_marian_file(path).tensors
    if form != "int8":  # which have a test of their own
        exact = make_tensors(len(next(iter(stored.values()))), tie)
        stored = {name: torch.from_numpy(tensor) for name, tensor in exact.items()}
    reference = Reference(stored)
    source, target = [5, 9, 30, 7, 0], [12, 4, 9, 0]
    expected = reference.logits(source, target)
    start = run.target_tokenizer.start
    with torch.no_grad():
        logits = run.model(torch.tensor([source]), torch.tensor([[start, *target[:-1]]]))[0]
    np.testing.assert_allclose(logits[:, :-1].numpy(), expected, atol=2e-5)
    assert (logits[:, -1] < -1e8).all()  # the padding is never written


def test_eight_bits_are_the_weights_to_half_a_step(write: Write) -> None:
    folder = write("int8")
    stored = read_marian_file(folder / "model.bin").tensors
    exact = make_tensors(len(stored["Wemb"]))
    assert stored.keys() - exact.keys() == {"none_QuantMultA"}
    for name, tensor in exact.items():
        step = np.abs(tensor).max() / 127 if tensor.shape[0] > 1 else 0
        np.testing.assert_allclose(stored[name].numpy(), tensor, atol=0.51 * step)


def test_pieces_are_those_of_sentencepiece(write: Write, spm: bytes, english: list[str]) -> None:
    import sentencepiece

    folder = write()
    run = import_run(folder, folder.parent / "run", languages=("en", "fr")).run
    theirs = sentencepiece.SentencePieceProcessor(model_proto=spm)
    for line in english[:50]:
        assert run.source_tokenizer.encode(line) == theirs.encode(line)


def test_under_a_recurrent_decoder_the_encoder_is_kept(write: Write, english: list[str]) -> None:
    folder = write(**{"transformer-decoder-autoreg": "rnn"})
    imported = import_run(folder, folder.parent / "run", languages=("en", "fr"))
    assert imported.notes == [
        "the decoder (rnn) is not kept: the run is an encoder without outputs"
    ]
    run = load_run(folder.parent / "run")
    assert run.model.heads.count("enc") == LAYERS * HEADS
    assert not run.model.heads.count("dec")
    source = [5, 9, 30, 7, 0]
    expected = Reference(read_marian_file(folder / "model.bin").tensors).encode(source)
    with torch.no_grad():
        np.testing.assert_allclose(
            run.model.encode(torch.tensor([source]))[0][0], expected, atol=2e-5
        )
    assert len(roles(run, english[:20], relations=[]).heads) == LAYERS * HEADS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"type": "s2s"}, "type: s2s"),
        ({"transformer-preprocess": "n"}, "transformer-preprocess: n"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers"),
        ({"tied-embeddings-all": False}, "an output layer of its own"),
        ({"transformer-ffn-activation": "gelu"}, "activation: gelu"),
        ({"transformer-postprocess-emb": "n"}, "transformer-postprocess-emb: n"),
        ({"enc-depth": LAYERS - 1}, "not known here, such as encoder_l2"),
        ({"enc-depth": 30000}, "does not hold what it should"),
        ({"dim-emb": 2**20}, "does not hold what it should"),
        ({"transformer-heads": 3}, "heads"),
        ({"transformer-dim-ffn": UNITS + 1}, "does not hold what it should"),
        ({"enc-depth": LAYERS + 1}, "does not hold what it should"),
    ],
)
def test_what_differs_is_refused(write: Write, changes: dict[str, Any], said: str) -> None:
    folder = write(**changes)
    with pytest.raises(UserError, match=said):
        import_run(folder, folder.parent / "run", languages=("en", "fr"))
    assert not (folder.parent / "run").exists()


def test_languages_vocabularies_and_one_model_are_needed(write: Write) -> None:
    folder = write()
    out = folder.parent / "run"
    with pytest.raises(UserError, match="Add --languages"):
        import_run(folder, out)
    (folder / "model.npz").write_bytes(b"")
    with pytest.raises(UserError, match="several models"):
        import_run(folder, out, languages=("en", "fr"))
    (folder / "model.npz").unlink()
    (folder / "other.spm").write_bytes((folder / "vocab.spm").read_bytes())
    with pytest.raises(UserError, match="2 SentencePiece models"):
        import_run(folder, out, languages=("en", "fr"))
    (folder.parent / "vocab.spm").write_bytes((folder / "vocab.spm").read_bytes())
    (folder / "config.yml").write_text("vocabs: [vocab.spm, ../vocab.spm]\n")
    with pytest.raises(UserError, match="inside"):
        import_run(folder, out, languages=("en", "fr"))
    (folder / "config.yml").write_text("vocabs: [vocab.spm, vocab.yml]\n")
    with pytest.raises(UserError, match=r"not a SentencePiece model, vocab\.yml"):
        import_run(folder, out, languages=("en", "fr"))
    (folder / "config.yml").write_text("vocabs: [vocab.spm, other.spm]\n")
    import_run(folder, out, languages=("en", "fr"))


def test_an_encoder_alone_has_the_table_of_its_inputs(write: Write) -> None:
    folder = write(tie="target", **{"transformer-decoder-autoreg": "rnn"})
    run = import_run(folder, folder.parent / "run", languages=("en", "fr")).run
    table = make_tensors(run.source_tokenizer.size - 1, "target")["encoder_Wemb"]
    np.testing.assert_array_equal(run.model.output_weight[:-1].detach().numpy(), table)


@pytest.mark.parametrize("form", ["bin", "npz"])
def test_a_damaged_file_is_one_clear_line(write: Write, form: str) -> None:
    folder = write(form)
    [path] = folder.glob("model.*")
    content = path.read_bytes()
    rng = np.random.default_rng(5)
    for _ in range(30):
        path.write_bytes(content[: int(rng.integers(9, len(content)))])
        with pytest.raises(UserError):
            read_marian_file(path)
        for part in (slice(8, 1500), slice(len(content) - 1500, len(content))):
            damaged = bytearray(content)  # in the tables and names, where every byte matters
            damaged[int(rng.integers(part.start, part.stop))] ^= 1 << int(rng.integers(8))
            path.write_bytes(bytes(damaged))
            with suppress(UserError):  # and nothing else
                read_marian_file(path)
