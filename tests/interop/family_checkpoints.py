"""Tiny random checkpoints of every family and variant, made by `transformers` itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LINES = Callable[[], list[str]]


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a model and its tokeniser, and what `import_run` needs to know."""

    folder: Path
    model: Any
    tokenizer: Any
    options: dict[str, str]
    generation: dict[str, Any]


class Maker:
    """Makes checkpoints whose settings are drawn from a seed."""

    def __init__(self, transformers: Any, lines: list[str], sentencepiece: bytes) -> None:
        self.transformers, self.lines, self.sentencepiece = transformers, lines, sentencepiece
        self._tokenizers: dict[str, Any] = {}

    def make(self, family: str, folder: Path, seed: int, **changes: Any) -> Checkpoint:
        """A checkpoint of the family, of any of its variants."""
        torch.manual_seed(seed)
        rng = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        made: Checkpoint = getattr(self, family.replace("-", "_"))(folder, rng, changes)
        with torch.no_grad():
            for parameter in made.model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        if made.generation:
            made.model.generation_config = self.transformers.GenerationConfig(**made.generation)
        made.model.save_pretrained(folder)
        made.tokenizer.save_pretrained(folder)
        return made

    # M2M100 and NLLB

    def m2m100(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        old = rng.random() < 0.4
        tokenizer = self._m2m100_tokenizer(folder) if old else self._nllb_tokenizer(rng)
        codes = tokenizer.lang_code_to_id if old else tokenizer.get_added_vocab()
        source, target = ("en", "fr") if old else ("eng_Latn", "fra_Latn")
        tokenizer.src_lang, tokenizer.tgt_lang = source, target
        special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
        size = (max(codes.values()) if old else max(tokenizer.get_vocab().values())) + 1
        config = self.transformers.M2M100Config(
            **(bart_sizes(rng) | special | {"vocab_size": size + rng.choice([0, 3])} | changes)
        )
        model = self.transformers.M2M100ForConditionalGeneration(config).eval()
        favour_the_end(model.lm_head.weight, model.model.shared.weight)
        generation = search(rng) | special | {"forced_bos_token_id": codes[target]}
        options = {"source_language": source, "target_language": target}
        return Checkpoint(folder, model, tokenizer, options, generation)

    def _m2m100_tokenizer(self, folder: Path) -> Any:
        import json

        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=self.sentencepiece)
        pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        names = ["<s>", "<pad>", "</s>", "<unk>"]
        names += [piece for piece in pieces if piece not in names]
        (folder / "sentencepiece.bpe.model").write_bytes(self.sentencepiece)
        numbers = {name: i for i, name in enumerate(names)}
        (folder / "vocab.json").write_text(json.dumps(numbers), encoding="utf-8")
        files = str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model")
        return self.transformers.M2M100Tokenizer(*files)

    def _nllb_tokenizer(self, rng: random.Random) -> Any:
        vocabulary, merges = self._bpe()
        legacy = rng.random() < 0.4
        return self.transformers.NllbTokenizer(
            vocab=dict(vocabulary), merges=list(merges), legacy_behaviour=legacy
        )

    # BART, mBART and mBART-50

    def bart(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        tokenizer = self._byte_level()
        special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
        sizes = {"vocab_size": max(tokenizer.get_vocab().values()) + 1 + rng.choice([0, 2])}
        config = self.transformers.BartConfig(**(bart_sizes(rng) | special | sizes | changes))
        model = self.transformers.BartForConditionalGeneration(config).eval()
        favour_the_end(model.lm_head.weight, model.model.shared.weight)
        if rng.random() < 0.5:
            model.final_logits_bias.normal_()
        forced = {"forced_bos_token_id": 0} if rng.random() < 0.6 else {}
        forced |= {"forced_eos_token_id": 2} if rng.random() < 0.6 else {}
        return Checkpoint(folder, model, tokenizer, {}, search(rng) | special | forced)

    def mbart(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        fifty = rng.random() < 0.5
        name = "MBart50Tokenizer" if fifty else "MBartTokenizer"
        tokenizer = getattr(self.transformers, name)(vocab=self._unigram(name))
        tokenizer.src_lang, tokenizer.tgt_lang = "en_XX", "fr_XX"
        target = tokenizer.convert_tokens_to_ids("fr_XX")
        special = {"pad_token_id": 1, "eos_token_id": 2}
        sizes = {"vocab_size": max(tokenizer.get_vocab().values()) + 1}
        start = {"decoder_start_token_id": 2 if fifty else rng.choice([None, 2])}
        config = self.transformers.MBartConfig(
            **(bart_sizes(rng) | special | sizes | start | changes)
        )
        model = self.transformers.MBartForConditionalGeneration(config).eval()
        favour_the_end(model.lm_head.weight, model.model.shared.weight)
        first = {"forced_bos_token_id": target} if fifty else {}
        first["decoder_start_token_id"] = 2 if fifty else target
        generation = search(rng) | special | first
        generation["bad_words_ids"] = [[1]] if fifty else [[1], [target]]
        options = {"source_language": "en_XX", "target_language": "fr_XX"}
        return Checkpoint(folder, model, tokenizer, options, generation)

    # T5 and mT5

    def t5(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        return self._t5("T5", folder, rng, changes)

    def mt5(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        return self._t5("MT5", folder, rng, changes)

    def _t5(
        self, kind: str, folder: Path, rng: random.Random, changes: dict[str, Any]
    ) -> Checkpoint:
        special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
        pieces = [(piece, score) for piece, score in self._unigram("T5")[4:] if piece[:3] != "<ma"]
        names = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        names += [(p, s) for p, s in pieces if not p.endswith(("_XX",)) and len(p) != 5]
        tokenizer = self.transformers.T5Tokenizer(vocab=names, extra_ids=10)
        heads = rng.choice([1, 2, 3, 4])
        activation = rng.choice(["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"])
        sizes = {
            "vocab_size": max(tokenizer.get_vocab().values()) + 1 + rng.choice([0, 8]),
            "d_model": rng.choice([12, 16, 21]),
            "d_kv": rng.choice([4, 5, 8]),
            "d_ff": rng.choice([10, 24]),
            "num_layers": rng.randint(1, 3),
            "num_decoder_layers": rng.randint(1, 3),
            "num_heads": heads,
            "relative_attention_num_buckets": rng.choice([8, 16, 32]),
            "relative_attention_max_distance": rng.choice([20, 40, 128]),
            "feed_forward_proj": activation,
            "tie_word_embeddings": rng.random() < 0.6,
        }
        config = getattr(self.transformers, f"{kind}Config")(**(sizes | special | changes))
        model = getattr(self.transformers, f"{kind}ForConditionalGeneration")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(1.1)
        if rng.random() < 0.5:  # T5 1.1 and mT5: the output layer has weights of its own
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
        favour_the_end(model.lm_head.weight, end=1)
        generation = search(rng) | special | {"bad_words_ids": [[0]]}
        prefix = rng.choice(["", "translate English to French: "])
        return Checkpoint(folder, model, tokenizer, {"prefix": prefix}, generation)

    def madlad(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        """T5 1.1 with a start that is not padding, and languages as tokens of the source."""
        special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
        pieces = self._unigram("T5")[4:]
        names = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
        names += [(p, s) for p, s in pieces if not p.endswith(("_XX", "mask>")) and len(p) != 5]
        tokenizer = self.transformers.T5Tokenizer(
            vocab=names, extra_ids=0, pad_token="<s>", extra_special_tokens=["<2fr>", "<2de>"]
        )
        sizes = {
            "vocab_size": max(tokenizer.get_vocab().values()) + 1,
            "d_model": 16,
            "d_kv": rng.choice([6, 8]),
            "d_ff": 24,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": rng.choice([2, 4]),
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        }
        config = self.transformers.T5Config(**(sizes | special | changes))
        model = self.transformers.T5ForConditionalGeneration(config).eval()
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
        favour_the_end(model.lm_head.weight)
        generation = search(rng) | special | {"bad_words_ids": [[0], [1]]}
        return Checkpoint(folder, model, tokenizer, {"target_language": "fr"}, generation)

    # Encoders

    def bert(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        return self._encoder("Bert", self._word_piece(), folder, rng, changes)

    def distilbert(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        names = {"n_layers": rng.randint(1, 3), "n_heads": 2, "dim": 16, "hidden_dim": 20}
        names |= {"activation": rng.choice(["relu", "gelu"])}
        return self._encoder("DistilBert", self._word_piece(), folder, rng, names | changes)

    def roberta(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        tokenizer = self._byte_level("RobertaTokenizer")
        changes = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} | changes
        return self._encoder("Roberta", tokenizer, folder, rng, changes)

    def xlm_roberta(self, folder: Path, rng: random.Random, changes: dict[str, Any]) -> Checkpoint:
        pieces = [(p, s) for p, s in self._unigram("XLM-R") if len(p) != 5 or "_" not in p]
        tokenizer = self.transformers.XLMRobertaTokenizer(vocab=pieces)
        changes = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} | changes
        return self._encoder("XLMRoberta", tokenizer, folder, rng, changes)

    def _encoder(
        self,
        kind: str,
        tokenizer: Any,
        folder: Path,
        rng: random.Random,
        changes: dict[str, Any],
    ) -> Checkpoint:
        heads = rng.choice([1, 2, 3, 4])
        sizes = {
            "vocab_size": max(tokenizer.get_vocab().values()) + 1 + rng.choice([0, 3]),
            "hidden_size": heads * rng.choice([4, 8]),
            "num_hidden_layers": rng.randint(1, 3),
            "num_attention_heads": heads,
            "intermediate_size": rng.choice([10, 24]),
            "hidden_act": rng.choice(["gelu", "relu", "gelu_new"]),
            "max_position_embeddings": 66,
            "layer_norm_eps": rng.choice([1e-12, 1e-5]),
            "initializer_range": 0.4,
            "pad_token_id": 0,
        }
        if kind.endswith("Roberta"):  # its head always has gelu
            sizes["hidden_act"] = "gelu"
        heads_there = ["ForMaskedLM", "ForSequenceClassification", "Model"]
        head = changes.pop("head", None) or rng.choice(heads_there)
        config = getattr(self.transformers, f"{kind}Config")(**(sizes | changes))
        config.id2label = {i: f"class {i}" for i in range(rng.randint(2, 5))}
        model = getattr(self.transformers, f"{kind}{head}")(config).eval()
        return Checkpoint(folder, model, tokenizer, {}, {})

    def _word_piece(self) -> Any:
        from tokenizers import BertWordPieceTokenizer

        core = BertWordPieceTokenizer()
        core.train_from_iterator(self.lines, vocab_size=400, show_progress=False)
        return self.transformers.BertTokenizer(vocab=core.get_vocab())

    def _byte_level(self, name: str = "BartTokenizer") -> Any:
        import json

        from tokenizers import ByteLevelBPETokenizer

        core = ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        core.train_from_iterator(
            self.lines, vocab_size=400, special_tokens=special, show_progress=False
        )
        model = json.loads(core.to_str())["model"]
        merges = [tuple(merge) for merge in model["merges"]]
        return getattr(self.transformers, name)(vocab=model["vocab"], merges=merges)

    def _unigram(self, name: str) -> list[tuple[str, float]]:
        """Pieces with their scores, and the special tokens of fairseq's models around them."""
        from sentencepiece import sentencepiece_model_pb2
        from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES as old
        from transformers.models.mbart50.tokenization_mbart50 import (
            FAIRSEQ_LANGUAGE_CODES as fifty,
        )

        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(self.sentencepiece)
        special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        names = {piece for piece, _ in special}
        pieces = [(p.piece, p.score) for p in proto.pieces if p.piece not in names]
        codes = fifty if "50" in name else old
        return [*special, *pieces, *((code, 0.0) for code in codes), ("<mask>", 0.0)]

    def _bpe(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """BPE of the lines with marks of word starts."""
        import json

        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        if "bpe" not in self._tokenizers:
            core = Tokenizer(models.BPE(unk_token="<unk>"))
            core.pre_tokenizer = pre_tokenizers.Metaspace()
            special = ["<s>", "<pad>", "</s>", "<unk>"]
            trainer = trainers.BpeTrainer(
                vocab_size=300, special_tokens=special, show_progress=False
            )
            core.train_from_iterator(self.lines, trainer)
            model = json.loads(core.to_str())["model"]
            merges = [tuple(merge) for merge in model["merges"]]
            self._tokenizers["bpe"] = model["vocab"], merges
        found: tuple[dict[str, int], list[tuple[str, str]]] = self._tokenizers["bpe"]
        return found


def bart_sizes(rng: random.Random) -> dict[str, Any]:
    """Sizes and switches that all of BART's lineage have."""
    heads, decoder_heads = rng.choice([(2, 2), (4, 4), (2, 4), (3, 1)])
    return {
        "d_model": rng.choice([12, 24, 36]),
        "encoder_layers": rng.randint(1, 3),
        "decoder_layers": rng.randint(1, 3),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": decoder_heads,
        "encoder_ffn_dim": rng.choice([8, 20]),
        "decoder_ffn_dim": rng.choice([8, 20]),
        "max_position_embeddings": 64,
        "activation_function": rng.choice(["relu", "gelu", "gelu_new", "silu"]),
        "scale_embedding": rng.random() < 0.5,
        "tie_word_embeddings": rng.random() < 0.7,
        "init_std": 0.3,
    }


def search(rng: random.Random) -> dict[str, Any]:
    """How to search; padding is never written here, so it must not be there."""
    beam = rng.choice([2, 3, 4])
    return {
        "num_beams": beam,
        "max_length": rng.choice([14, 20]),
        "bad_words_ids": [[1]],
        "length_penalty": rng.choice([0.6, 1.0, 2.0]),
        "early_stopping": rng.random() < 0.3,
        "min_length": rng.choice([0, 0, 5]),
    }


@torch.no_grad()
def favour_the_end(*tables: torch.Tensor, end: int = 2) -> None:
    """Make the end of a sentence a token that random states choose more often."""
    for table in {table.data_ptr(): table for table in tables}.values():
        table[end] *= 2.5
