"""Run the code cells of a notebook in order and keep what they show.

    python tools/run_notebook.py docs/tutorial.ipynb

Each cell's printed text and the value of its last line become its outputs, as Jupyter would have
them, without Jupyter: text, HTML (`_repr_html_`) and PNG (`_repr_png_`).
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INDENT = 1


def run_cells(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Run every code cell in one namespace; each with its outputs."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield cell, run_cell("".join(cell["source"]), namespace)


def run_cell(source: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of one cell."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed)})
    if value is not None:
        outputs.append({"output_type": "display_data", "data": _shown(value), "metadata": {}})
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    if hasattr(value, "_repr_png_"):
        return {"image/png": base64.b64encode(value._repr_png_()).decode("ascii")}
    if hasattr(value, "_repr_html_"):
        return {"text/html": value._repr_html_()}
    return {"text/plain": repr(value)}


def _lines(text: io.StringIO) -> list[str]:
    return text.getvalue().splitlines(keepends=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    path = parser.parse_args().notebook.resolve()
    notebook = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, (cell, outputs) in enumerate(run_cells(notebook), start=1):
            cell["execution_count"] = number
            cell["outputs"] = outputs
            print(f"cell {number}: {[next(iter(o.get('data', {'text': 0}))) for o in outputs]}")
        os.chdir("/")
    path.write_text(
        json.dumps(notebook, indent=INDENT, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
