"""Models of another toolkit are converted once; the package's own is called `demo`."""

from __future__ import annotations

import pytest

import headcount
from headcount.errors import SHIPPED, UserError
from headcount.loaded import load as loading
from headcount.run import load_run, resolve_run


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_have_names(tmp_path, monkeypatch, name):
    folder = resolve_run(name)
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"this installation has no {name} model")
    assert headcount.load(name).folder == folder
    assert load_run(name).folder == folder
    assert (
        str(UserError(f"{folder / 'heads.json'} is damaged."))
        == f"heads.json of {name} is damaged."
    )
    assert str(UserError(f"{folder} is only read.")) == f"{name} is only read."
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()  # as `headcount demo` makes it: a study, not a run
    assert resolve_run(name) == folder


def test_an_imported_model_is_converted_once(tmp_path, monkeypatch, run_folder):
    """A folder with a config.json goes through `import`; the second time it is there."""
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    theirs = tmp_path / ".. odd name"
    theirs.mkdir()
    (theirs / "config.json").write_text("{}")
    converted = []

    def convert(name, out, progress):
        converted.append(out)
        load_run(run_folder).save(out)

    monkeypatch.setattr("headcount.interop.importing.import_run", convert)
    first, second = headcount.load(theirs), headcount.load(str(theirs))
    assert first.folder == second.folder
    assert converted == [first.folder]
    assert first.folder.parent == tmp_path / "cache" / "models"
    (theirs / "config.json").write_text("{ }")
    assert headcount.load(theirs).folder != first.folder  # the model has changed


@pytest.mark.parametrize("name", ["Helsinki-NLP/opus-mt-en-fr", "../../etc/x", "a/..", "..", "/"])
def test_names_never_become_paths(name):
    part = loading._cache_name(name)
    assert "/" not in part
    assert not part.startswith(".")
