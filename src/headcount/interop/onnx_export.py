"""A run as ONNX graphs, and their comparison with the run by `onnxruntime`, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.errors import UserError
from headcount.interop.checking import LIMIT, Sample, largest_difference
from headcount.interop.onnx_graph import decoder_step_graph, encoder_graph
from headcount.interop.plain_tokenizers import write_plain_tokenizers, write_vocabularies
from headcount.run import Run

ENCODER, STEP = "encoder.onnx", "decoder_step.onnx"


def write_onnx(run: Run, folder: Path) -> None:
    """Write both graphs, the tokenisers and the vocabularies."""
    import onnx

    if not run.config.model.decoder_layers:
        raise UserError(
            f"{run.folder} is an encoder alone, which this export does not write.",
            "Export it to transformers.",
        )
    onnx.save(encoder_graph(run.model), folder / ENCODER)
    onnx.save(decoder_step_graph(run.model), folder / STEP)
    write_plain_tokenizers(run, folder)
    write_vocabularies(run, folder)


class OnnxModel:
    """Runs the two graphs of a folder, with as many threads as torch has."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        providers = ["CPUExecutionProvider"]
        self.encoder = onnxruntime.InferenceSession(folder / ENCODER, options, providers)
        self.decoder = onnxruntime.InferenceSession(folder / STEP, options, providers)

    def start(self, source: np.ndarray) -> dict[str, np.ndarray]:
        """Encode tokens `[batch, source]`: what the first step needs besides its tokens."""
        results = self._named(self.encoder, {"tokens": source})
        for wanted in self.decoder.get_inputs():
            if wanted.name.startswith(("keys.", "values.")):
                _, heads, _, width = wanted.shape
                results[wanted.name] = np.zeros((len(source), heads, 0, width), np.float32)
        return results | {"position": np.zeros(1, np.int64)}

    def step(
        self, tokens: np.ndarray, state: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Last tokens `[batch]` to logits `[batch, vocabulary]` and the state for the next step."""
        results = self._named(self.decoder, {**state, "tokens": tokens})
        logits = results.pop("logits")
        grown = {name.removeprefix("next_"): value for name, value in results.items()}
        return logits, state | grown | {"position": state["position"] + 1}

    def _named(self, session: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a graph: values by name in, values by name out."""
        wanted = {value.name for value in session.get_inputs()}
        inputs = {name: value for name, value in feeds.items() if name in wanted}
        names: Sequence[str] = [value.name for value in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs), strict=True))


@torch.inference_mode()
def check_onnx(run: Run, folder: Path, sample: Sample) -> float:
    """Load the written graphs and compare the logits of every step with the run's."""
    expected = run.model(sample.source, sample.target)[sample.real]
    logits = stepped_logits(OnnxModel(folder), sample)[sample.real]
    return largest_difference(logits, expected, LIMIT, "graph")


def stepped_logits(model: OnnxModel, sample: Sample) -> Tensor:
    """Logits `[batch, target, vocabulary]`, one step after the other."""
    state = model.start(sample.source.numpy())
    steps = []
    for column in sample.target.T.numpy():
        logits, state = model.step(np.ascontiguousarray(column), state)
        steps.append(torch.from_numpy(logits))
    return torch.stack(steps, dim=1)
