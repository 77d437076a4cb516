"""Reading YAML: no tags that run code, no duplicate keys, and clear messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

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
    require_file(path)
    try:
        settings = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, ValueError, RecursionError, ArithmeticError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        raise UserError(f"{path} is not valid YAML: {visible(reason)}.", "Fix the file.") from error
    if settings is None and not required:
        return {}
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds no settings.", "It should be a YAML mapping of sections.")
    return settings
