"""The families of models that can be imported: a registry, and one file per family."""

from __future__ import annotations

from dataclasses import dataclass

from headcount.errors import UserError
from headcount.interop.families.adapter import Adapter
from headcount.interop.families.bart import Bart, MBart
from headcount.interop.families.bert import Bert, DistilBert, Roberta, XlmRoberta
from headcount.interop.families.m2m100 import M2M100
from headcount.interop.families.marian import Marian
from headcount.interop.families.t5 import MT5, T5
from headcount.registry import Registry


@dataclass(frozen=True)
class Family:
    """A family: the model types of `config.json` that belong to it, and its adapter."""

    name: str
    help: str
    types: tuple[str, ...]
    adapter: Adapter


FAMILIES: Registry[Family] = Registry(
    "family of models",
    [
        Family("marian", "MarianMT, such as OPUS-MT", ("marian",), Marian()),
        Family("bart", "BART", ("bart",), Bart()),
        Family("mbart", "mBART and mBART-50", ("mbart",), MBart()),
        Family("m2m100", "M2M100 and NLLB-200 (dense)", ("m2m_100",), M2M100()),
        Family("t5", "T5 1.0 and 1.1, Flan-T5, MADLAD-400", ("t5",), T5()),
        Family("mt5", "mT5", ("mt5",), MT5()),
        Family("bert", "BERT and MiniLM encoders", ("bert",), Bert()),
        Family("roberta", "RoBERTa encoders", ("roberta",), Roberta()),
        Family("xlm-roberta", "XLM-R encoders", ("xlm-roberta",), XlmRoberta()),
        Family("distilbert", "DistilBERT encoders", ("distilbert",), DistilBert()),
    ],
)

_REFUSED = {
    "nllb-moe": "a mixture of experts",
    "switch_transformers": "a mixture of experts",
    "led": "sparse attention",
    "longt5": "sparse attention",
    "bigbird_pegasus": "sparse attention",
    "big_bird": "sparse attention",
    "longformer": "sparse attention",
}


def supported() -> str:
    """What can be imported, as a remedy."""
    return f"Supported: {'; '.join(family.help for family in FAMILIES.values())}."


def family_of(name: str, model_type: str) -> Family:
    """The family of a model type of `config.json`."""
    for family in FAMILIES.values():
        if model_type in family.types:
            return family
    if model_type in _REFUSED:
        raise UserError(f"{name} has {_REFUSED[model_type]} ('{model_type}').", supported())
    raise UserError(f"{name} is a model of the type '{model_type}'.", supported())
