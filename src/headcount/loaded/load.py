"""`headcount.load`: a model from a run, from the package, or from another toolkit."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch

from headcount.data.fetch import cache_folder
from headcount.distribution import default_device
from headcount.files import one_at_a_time
from headcount.loaded.model import Model
from headcount.progress import Progress, silent
from headcount.run import CONFIG, Run, load_run, resolve_run

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def load(
    name: Run | Path | str = "demo",
    *,
    device: str | torch.device | None = None,
    progress: Progress = silent,
) -> Model:
    """Load a model to ask it questions about sentences.

    name    a run folder; "demo" or "demo-ru" for a model that comes with the package; or a folder
            or hub name of a model that `headcount import` knows: it is converted once and kept in
            the user's cache folder
    device  "cpu", "cuda"; without it, a GPU where there is one
    """
    if isinstance(name, Model) and device is None:
        return name
    chosen = torch.device(device) if device is not None else default_device()
    if isinstance(name, Run):
        if device is not None:
            name.model.to(chosen)
        return Model.of(name)
    folder = resolve_run(name)
    if not (folder / CONFIG).is_file() and _may_be_imported(folder, str(name)):
        folder = imported(name, progress)
    return Model.of(load_run(folder, chosen))


def _may_be_imported(folder: Path, name: str) -> bool:
    """Another toolkit's folder has a `config.json`; anything else may be a name on the hub."""
    if folder.exists():
        return (folder / "config.json").is_file()
    return HUB_NAME.fullmatch(name) is not None


def imported(name: Path | str, progress: Progress = silent) -> Path:
    """The run folder of another toolkit's model in the user's cache, converted on first use."""
    from headcount.interop.importing import import_run

    out = cache_folder() / "models" / _cache_name(name)
    with one_at_a_time(out.with_suffix(".lock")):
        if not (out / CONFIG).is_file():
            import_run(name, out, progress=progress)
    return out


def _cache_name(name: Path | str) -> str:
    """A name of one part, however the model is called: its last part, and a digest.

    The digest of a folder covers the names, sizes and times of its files, so that a changed model
    is converted again.
    """
    digest = hashlib.sha256(str(name).encode())
    folder = Path(name)
    if folder.is_dir():
        digest = hashlib.sha256(str(folder.resolve()).encode())
        for path in sorted(folder.iterdir()):
            about = path.stat()
            digest.update(f"{path.name} {about.st_size} {about.st_mtime_ns}\n".encode())
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name)[:60].strip("-")
    return f"{plain or 'model'}-{digest.hexdigest()[:16]}"
