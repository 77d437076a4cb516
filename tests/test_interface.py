"""The functions of the package: real ones, with the names of the verbs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import headcount
from headcount.cli import VERBS

PACKAGES = ("data", "study", "bench")


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "prune"])
def test_every_verb_is_a_function(verb):
    function = getattr(headcount, verb)
    assert inspect.isfunction(function)
    assert inspect.getdoc(function)
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    assert verb in dir(headcount)


def test_functions_stay_functions_after_their_stage_is_imported():
    import headcount.data.tokenizer
    import headcount.study.results

    for name in PACKAGES:
        assert inspect.isfunction(getattr(headcount, name))
    assert headcount.data.tokenizer is sys.modules["headcount.data.tokenizer"]


def test_importing_the_package_imports_nothing_heavy():
    code = "import headcount, sys; dir(headcount); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_editors_and_python_agree():
    """The names that editors see are those that there are at run time."""
    source = inspect.getsource(headcount)
    seen = {
        line.split(" as ")[1].split()[0]
        for line in source.splitlines()
        if line.startswith("    from headcount.") and " as " in line
    }
    assert seen == set(headcount._FUNCTIONS)
