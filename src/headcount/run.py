"""A run: a folder that holds one trained model and everything needed to use it again.

Nothing in a run folder is executable code: weights are safetensors, the rest is YAML and JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headcount.config import Config, ModelConfig, parse_config
from headcount.data.tokenizer import Tokenizer
from headcount.errors import SHIPPED, UserError
from headcount.files import atomic_path, parsing, read_json, require_file, write_json, write_text
from headcount.heads import BLOCKS, SITES, UNIT_SITES, Head, HeadLayout, HeadTable
from headcount.model.transformer import LARGE, Transformer, blank_model, full_layout
from headcount.yaml_reading import read_yaml

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
HEADS = "heads.json"
PRUNING = "pruning.json"
SOURCE_TOKENIZER = "tokenizer.src.json"
TARGET_TOKENIZER = "tokenizer.tgt.json"
FREQUENCIES = "frequencies.json"


@dataclass
class Run:
    """A model with its configuration, its tokenisers and its training data's token frequencies."""

    folder: Path
    config: Config
    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    source_frequencies: np.ndarray | None = field(default=None, repr=False)
    regrouped: bool = False
    """Whether its blocks of units are others than those of the folder and its head table."""

    @property
    def analysis(self) -> Path:
        """The folder that analyses write to."""
        return self.folder / "analysis"

    def head_table(self, more: Iterable[Head] = ()) -> HeadTable:
        """The head table as far as analyses have filled it.

        It has rows for all heads, for units and blocks that were measured, and for `more`.
        """
        others = self.model.head_list(BLOCKS if self.regrouped else (*UNIT_SITES, *BLOCKS))
        return HeadTable.load(self.analysis, [*self.model.head_list(), *more], others)

    def save(self, folder: Path | str | None = None) -> None:
        """Write all files of the run; `model.safetensors` comes last."""
        folder = Path(folder or self.folder)
        write_text(folder / CONFIG, self.config.to_yaml())
        self.source_tokenizer.save(folder / SOURCE_TOKENIZER)
        self.target_tokenizer.save(folder / TARGET_TOKENIZER)
        write_json(folder / HEADS, self.model.heads.to_json())
        if self.source_frequencies is not None:
            write_json(folder / FREQUENCIES, {"source": self.source_frequencies.tolist()})
        save_weights(self.model, folder / WEIGHTS)


def resolve_run(name: Path | str) -> Path:
    """The folder of a run; `demo` and `demo-ru` are those that come with the package."""
    folder = Path(name)
    return folder if (folder / CONFIG).is_file() else SHIPPED.get(str(name), folder)


def load_run(folder: Path | str, device: str | torch.device = "cpu") -> Run:
    """Load a run for use: its model in evaluation mode, float32."""
    folder = resolve_run(folder)
    config = load_config(folder)
    source = Tokenizer.load(require_file(folder / SOURCE_TOKENIZER))
    target = Tokenizer.load(require_file(folder / TARGET_TOKENIZER))
    layout = load_heads(folder, config.model)
    model = blank_model(config.model, source.size, target.size, source.pad, layout, target.pad)
    load_weights(model, folder / WEIGHTS)
    frequencies = _load_frequencies(folder / FREQUENCIES, source.size)
    return Run(folder, config, model.to(device).eval(), source, target, frequencies)


def regroup(run: Run, size: int | None) -> Run:
    """The run with its feed-forward units in blocks of another size; None leaves them as they are.

    Where units were pruned, each new block must be wholly there or wholly gone.
    """
    old = run.config.model
    if size is None or size == old.ff_block:
        return run
    config = run.config.model_copy(update={"model": old.model_copy(update={"ff_block": size})})
    full, model = full_layout(config.model), run.model
    layers = dict(full.layers) | {s: model.heads.layers[s] for s in (*SITES, *BLOCKS)}
    for site in UNIT_SITES:
        kept = [
            {unit for block in blocks for unit in old.units_of(site, block)}
            for blocks in model.heads.layers[site]
        ]
        layers[site] = tuple(
            tuple(b for b in blocks if units.issuperset(config.model.units_of(site, b)))
            for blocks, units in zip(full.layers[site], kept, strict=True)
        )
        found = [sum(len(config.model.units_of(site, b)) for b in each) for each in layers[site]]
        if found != [len(units) for units in kept]:
            raise UserError(
                f"{run.folder} was pruned in blocks of {old.ff_block} units, which cannot be taken"
                f" as blocks of {size}.",
                f"Choose a size that divides {old.ff_block}.",
            )
    other = blank_model(
        config.model, run.source_tokenizer.size, run.target_tokenizer.size, model.pad,
        HeadLayout(layers), model.target_pad,
    )  # fmt: skip
    other.load_state_dict(model.state_dict())
    other = other.to(model.output_weight.device).train(model.training)
    return replace(run, config=config, model=other, regrouped=True)


def open_run(run: Run | Path | str) -> Run:
    """The run itself, or the one in the folder of that name."""
    return run if isinstance(run, Run) else load_run(run)


def _load_frequencies(path: Path, size: int) -> np.ndarray | None:
    """How often each source token occurs in the training data, `[vocabulary]`, where known."""
    if not path.exists():
        return None
    with parsing(path, "Restore it from a copy."):
        frequencies = np.asarray(read_json(path)["source"])
        if frequencies.dtype.kind != "i" or frequencies.ndim != 1 or (frequencies < 0).any():
            raise ValueError("frequencies are whole numbers from 0 on")
        frequencies = frequencies.astype(np.int64)
    if frequencies.shape != (size,):
        raise UserError(
            f"{path} counts {frequencies.size} tokens, the vocabulary has {size}.",
            "The files of this run folder do not belong together; restore them.",
        )
    return frequencies


def load_config(folder: Path) -> Config:
    """The resolved configuration of a run folder."""
    folder = resolve_run(folder)
    if not (folder / CONFIG).is_file() and (folder / PRUNING).is_file():
        raise UserError(
            f"{folder} is a pruning that is not finished.",
            "Call `headcount prune` as before, with --resume.",
        )
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} is not a run folder: it has no {CONFIG}.",
            "Give a folder that `headcount train`, `prune` or `import` made.",
        )
    return parse_config(read_yaml(folder / CONFIG, required=True), where=str(folder / CONFIG))


def load_heads(folder: Path, config: ModelConfig) -> HeadLayout:
    """The heads, units and blocks of a (pruned) run, for a model of the given size."""
    full = full_layout(config)
    layout = HeadLayout.from_json(read_json(folder / HEADS), str(folder / HEADS)).filled(full)
    if not layout.fits(full):
        raise UserError(
            f"The heads of {folder} do not fit the layers or heads of the configuration.",
            "Use the recipe that its full model was trained with.",
        )
    return layout


def save_weights(model: Transformer, path: Path, half: bool = False) -> None:
    """Write the weights as safetensors, each tied matrix once."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():  # leaves out duplicates of tied ones
        tensor = parameter.detach().cpu()
        tensors[name] = (tensor.half() if half else tensor).contiguous()
    with atomic_path(path) as partial:
        save_tensors(tensors, partial)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write safetensors as any other file is written: safetensors itself makes them private."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path)
    path.chmod(mode)


def load_weights(model: Transformer, path: Path) -> None:
    """Read safetensors into a model; every tensor must belong to the model and be valid."""
    tensors = load_tensors(path)
    own = dict(model.named_parameters())
    for name in sorted(set(own) | set(tensors)):
        if name not in tensors or name not in own:
            what = "is missing" if name in own else "belongs to no part of the model"
            raise _does_not_fit(path, f"{name} {what}")
        check_tensor(path, name, tensors[name], own[name].shape)
    large = sum(parameter.numel() for parameter in own.values()) >= LARGE
    with torch.no_grad():
        for name, tensor in tensors.items():
            if large and tensor.dtype == own[name].dtype:
                own[name].data = tensor  # mapped from the file, not copied
            else:
                own[name].copy_(tensor)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, as they are."""
    require_file(path)
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged or cut short ({error}).", "Restore it, or train again."
        ) from error


def check_tensor(path: Path, name: str, tensor: Tensor, shape: torch.Size) -> None:
    """A weight is a floating point tensor of the expected shape, all of its numbers finite."""
    if tensor.shape != shape:
        raise _does_not_fit(path, f"{name} is {list(tensor.shape)}, not {list(shape)}")
    if not tensor.dtype.is_floating_point:
        raise _does_not_fit(path, f"{name} is of type {tensor.dtype}, not floating point")
    if not all_finite(tensor):
        raise UserError(
            f"{path}: {name} has numbers that are infinite or not numbers.",
            "Restore the file, or train again.",
        )


def all_finite(tensor: Tensor) -> bool:
    """Whether no number is infinite or not a number.

    `isfinite` would write out the absolute values: a second copy of what may be the largest matrix
    of a model. The smallest and the largest number take no memory, and are NaN if any number is.
    """
    if not tensor.numel():
        return True
    return bool(torch.stack(tensor.detach().aminmax()).isfinite().all())


def _does_not_fit(path: Path, difference: str) -> UserError:
    return UserError(
        f"{path} does not fit its configuration: {difference}.",
        "The files of this run folder do not belong together; restore them.",
    )
