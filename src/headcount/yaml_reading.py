"""Reading YAML: no tags that run code, no duplicate keys, and clear messages on wrong settings."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from headcount.errors import UserError
from headcount.files import require_file, visible


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which would silently take the last of two equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue  # keys that `<<` brings may be written out as well
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in keys and name is not None:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' is there twice", problem_mark=key.start_mark
                )
            keys.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, required: bool = False) -> dict[str, Any]:
    """The settings of a YAML file: a mapping, empty where the file is, unless some are required."""
    return parse_yaml(require_file(path).read_bytes(), path, required)


def parse_yaml(content: str | bytes, path: Path, required: bool = False) -> dict[str, Any]:
    """The settings of YAML that is the content of `path`, or stands in it."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        settings = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError, ArithmeticError) as error:
        reason = visible(" ".join(_reason(error).split()))
        raise UserError(f"{path} is not valid YAML: {reason}.", "Fix the file.") from error
    if settings is None and not required:
        return {}
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds no settings.", "It should be a YAML mapping of sections.")
    return settings


def _reason(error: Exception) -> str:
    """Why a text is no YAML; the library itself would name "<unicode string>" as the place."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark and error.problem:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).partition(' in "<unicode string>"')[0]


def apply_override(settings: dict[str, Any], override: str) -> None:
    """Change a setting as `--set section.key=value` says."""
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override}: no value.", "Write it as section.key=value.")
    *sections, name = key.strip().split(".")
    place = settings
    for section in sections:
        if place.get(section) is None:
            place[section] = {}
        place = place[section]
        if not isinstance(place, dict):
            raise UserError(
                f"--set {override}: '{section}' is not a section.", "Write it as section.key=value."
            )
    try:
        place[name] = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"--set {override}: not a YAML value.", "Quote or fix it.") from error


def without_removed(
    settings: Mapping[str, Any], removed: Mapping[tuple[str, str], Any], where: str
) -> dict[str, Any]:
    """Settings without those that are gone, by section and key: their defaults change nothing."""
    kept = dict(settings)
    for (section, key), default in removed.items():
        values = kept.get(section)
        if not isinstance(values, Mapping) or key not in values:
            continue
        if values[key] != default:
            raise UserError(
                f"{where}: headcount has no setting {section}.{key} any more ({values[key]}).",
                "Leave it out, or use the version of headcount that wrote it.",
            )
        kept[section] = {name: value for name, value in values.items() if name != key}
    return kept


def readable_error(error: ValidationError, where: str, root: type[BaseModel]) -> UserError:
    """One line for the first problem of a configuration, with the nearest known key."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"] if part != "[key]"]  # a mapping's key is wrong
    key = ".".join(location)
    if first["type"] == "missing":
        return UserError(f"{where}: {key} is missing.", "Add it.")
    if first["type"] != "extra_forbidden":
        reason = plain_reason(first)
        # Shortened: with aliases of YAML, a value of a few bytes can be endless when printed.
        value = "" if isinstance(first["input"], dict) else f" = {reprlib.repr(first['input'])}"
        return UserError(f"{where}: {key or 'recipe'}{value}: {reason}.", "Change the value.")
    known = _known_keys(root, location[:-1])
    near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
    remedy = f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(known)}."
    return UserError(f"{where}: unknown key '{key}'.", remedy)


PLAIN = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be {le:g} or less",
    "finite_number": "must be a finite number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "path_type": "must be a path",
    "literal_error": "must be {expected}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be names with values",
    "model_type": "must be settings with values",
}
"""What is wrong with a value, by the type of pydantic's error."""


def plain_reason(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors in plain words; those of our own checks as they are."""
    if error["type"] in PLAIN:
        return PLAIN[error["type"]].format(**error.get("ctx", {}))
    reason = str(error["msg"]).removeprefix("Value error, ")
    return reason.replace("Input should be a valid", "must be a").replace("Input should", "must")


def _known_keys(root: type[BaseModel], location: list[str]) -> list[str]:
    """The keys of the section at a place of a configuration; list indices are skipped."""
    section = root
    for part in location:
        field = section.model_fields.get(part)
        if field is not None:
            section = next(iter(_sections(field.annotation)), section)
    return list(section.model_fields)


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that stand in a type such as `list[Section] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections(inner)]
