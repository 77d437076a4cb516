"""The tables of docs/recipes.md: every key of a recipe, from the models that validate it.

`python tools/recipe_reference.py` prints them, `--write` puts them into the page. A test compares
the two, so that a key cannot change without its documentation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headcount.config import Config, DataConfig, ModelConfig, SearchConfig, TrainingConfig
from headcount.study.recipe import AnalysisConfig, PairConfig, PruningConfig, StudyConfig

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"

SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "training": (DataConfig, ModelConfig, TrainingConfig, SearchConfig),
    "study": (StudyConfig, PairConfig, AnalysisConfig, PruningConfig),
}
NAMES: dict[type[BaseModel], str] = {
    DataConfig: "data",
    ModelConfig: "model",
    TrainingConfig: "training",
    SearchConfig: "search",
    StudyConfig: "the study itself",
    PairConfig: "each of pairs",
    AnalysisConfig: "analysis",
    PruningConfig: "pruning, of the study or of a pair",
}
WORDS = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}
LIMITS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def reference(recipe: str) -> str:
    """The tables of one kind of recipe, as Markdown."""
    return "\n".join(_section(model) for model in SECTIONS[recipe])


def written(page: str) -> str:
    """A page with the tables between its markers replaced."""
    for recipe in SECTIONS:
        begin, end = f"<!-- reference: {recipe} -->\n", f"<!-- end of {recipe} -->"
        before, marker, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (marker and closed):
            raise ValueError(f"the page has no place for '{recipe}'")
        page = f"{before}{begin}\n{reference(recipe)}\n{end}{after}"
    return page


def _section(model: type[BaseModel]) -> str:
    rows = [f"### {NAMES[model]}", "", "| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if not field.description:
            raise ValueError(f"{model.__name__}.{name} has no meaning: write one below it")
        rows.append(f"| `{name}` | {_values(field)} | {_default(field)} | {field.description} |")
    return "\n".join(rows) + "\n"


def _is_section(annotation: Any) -> bool:
    """Whether a key holds a section or a list of them, which has a table of its own."""
    return any(
        isinstance(part, type) and issubclass(part, BaseModel)
        for part in (annotation, *get_args(annotation))
        if part is not NoneType
    )


def _values(field: FieldInfo) -> str:
    return _type(field.annotation, field.metadata)


def _type(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What may be written: `whole number > 0`, or the choices there are."""
    origin = get_origin(annotation)
    if _is_section(annotation):
        return "list of sections" if origin is list else "section"
    parts = [part for part in get_args(annotation) if part is not NoneType]
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in parts)
    if origin is list:
        return "list"
    if origin is dict:
        return f"mapping: {_type(parts[0])} to {_type(parts[1])}"
    if origin is tuple:
        return f"list: {_type(parts[0])}"
    if hasattr(annotation, "__metadata__"):
        inner, *more = get_args(annotation)
        return _type(inner, [limit for info in more for limit in getattr(info, "metadata", [])])
    if parts:
        return ", ".join(_type(part, metadata) for part in parts) + ", or `null`"
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return "path"
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in metadata
        for name, sign in LIMITS.items()
        if getattr(limit, name, None) is not None
    ]
    return " ".join([WORDS[annotation], ", ".join(limits)]).strip()


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None or isinstance(value, bool):
        return f"`{ {None: 'null', True: 'true', False: 'false'}[value] }`".replace(" ", "")
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if value != "" else "empty"


def check_all_documented() -> None:
    """Stop if a section of a training recipe has no table."""
    missing = [
        name
        for name, field in Config.model_fields.items()
        if _is_section(field.annotation) and field.annotation not in SECTIONS["training"]
    ]
    if missing:
        raise ValueError(f"no table for {missing}")


def main() -> None:
    """Print the tables, or write them into the page."""
    check_all_documented()
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for recipe in SECTIONS:
        print(reference(recipe))


if __name__ == "__main__":
    main()
