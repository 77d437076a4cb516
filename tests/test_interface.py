"""The functions of the package: real ones, with the names of the verbs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import headcount
from headcount.cli import VERBS

PACKAGES = ("data", "study", "bench")


@pytest.mark.parametrize("verb", VERBS)
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


def test_prune_has_the_defaults_of_its_settings():
    from headcount.pruning.settings import PruneSettings

    parameters = inspect.signature(headcount.prune).parameters
    defaults = {name: field.default for name, field in PruneSettings.model_fields.items()}
    assert {name: parameters[name].default for name in defaults} == defaults


# What a verb calls otherwise on the command line, where a short word is wanted.
CALLED = {"src": "source", "ref": "reference", "run": "baseline"}


@pytest.mark.parametrize("verb", VERBS)
def test_functions_have_the_defaults_of_their_verbs(verb):
    """An argument that both have has one default; lists may be written with commas."""
    command = getattr(import_module(f"headcount.cli.{VERBS[verb]}"), verb)
    own = inspect.signature(getattr(headcount, verb)).parameters
    shared = 0
    for name, parameter in inspect.signature(command).parameters.items():
        name = name.strip("_")
        target = name if name in own else CALLED.get(name)
        option = parameter.default
        if target not in own or option.default is ... or callable(own[target].default):
            continue
        shared += 1
        function_default = own[target].default
        if function_default is inspect.Parameter.empty:
            continue
        assert _plain(option.default) == _plain(function_default), (verb, name)
    assert shared or verb in ("report", "export", "import_run", "translate", "bench")


def _plain(value):
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or None
    if value is None or value is False:
        return None
    return str(value) if isinstance(value, Path) else value


@pytest.mark.parametrize("verb", VERBS)
def test_help_and_docstring_are_one_text(verb):
    command = getattr(import_module(f"headcount.cli.{VERBS[verb]}"), verb)
    texts = [inspect.getdoc(each).split("\n\n")[0] for each in (command, getattr(headcount, verb))]
    assert " ".join(texts[0].split()) == " ".join(texts[1].split())
