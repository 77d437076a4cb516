"""Every map of a recorded forward pass, made ready for relevance to go down through it.

What a rule needs of the activations is computed at the first use and kept for all later starts of
the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from headcount.model.layers import Block
from headcount.model.recording import Recording
from headcount.model.transformer import Transformer
from headcount.ranking.options import LrpOptions
from headcount.ranking.rule import Flow, HeadFlow, LinearMap, Rule, SumFlow, identity

T = TypeVar("T")

# Map -> where a recording has its input and its output.
ENDS = {
    "queries": ("input", "queries"),
    "keys": ("input", "keys"),
    "values": ("input", "values"),
    "out": ("gated", "output"),
    "expand": ("input", "hidden_in"),
    "contract": ("hidden", "output"),
}


class Flows:
    """The maps of one model on one recorded batch, by `(part, layer)`."""

    def __init__(
        self,
        model: Transformer,
        rule: Rule,
        options: LrpOptions,
        maps: Mapping[tuple[str, int, str], LinearMap],
        recording: Recording,
    ) -> None:
        self.model, self.rule, self.maps, self.recording = model, rule, maps, recording
        self.identity_norm = options.layer_norm == "identity"
        self.pre_norm = model.config.norm == "pre"
        self.attentions = model.attentions()
        self.norms = _norms(model)
        self._made: dict[tuple[str, int, str], Any] = {}

    def norm(self, part: str, layer: int) -> Flow:
        """The layer norm of a block, or the one at the end of a pre-norm stack."""
        norm = self.norms[part, layer]
        if self.identity_norm or not isinstance(norm, nn.LayerNorm):
            return identity
        if part in ("enc_out", "dec_out"):
            ends = "residual", "result"
        else:
            ends = ("residual", "input") if self.pre_norm else ("sum", "result")
        x, y = (self.recording[part, layer, kind] for kind in ends)
        return self._once((part, layer, "norm"), lambda: self.rule.norm(x, y, norm))

    def add(self, part: str, layer: int) -> SumFlow:
        """The residual sum of a block."""
        x, f = (self.recording[part, layer, kind] for kind in ("residual", "output"))
        return self._once((part, layer, "add"), lambda: self.rule.add(x, f))

    def linear(self, part: str, layer: int, name: str) -> Flow:
        """One matrix product of a block; see `ENDS`."""
        above, below = ENDS[name][1], ENDS[name][0]
        if part == "cross" and name in ("keys", "values"):
            below = "memory"

        def make() -> Flow:
            x, y = (self._end(part, layer, kind) for kind in (below, above))
            return self.rule.linear(x, y, self.maps[part, layer, name])

        return self._once((part, layer, name), make)

    def activation(self, part: str, layer: int) -> Flow:
        """The activation function of a feed-forward block."""
        before, after = (self.recording[part, layer, kind] for kind in ("hidden_in", "hidden"))
        return self._once((part, layer, "activation"), lambda: self.rule.activation(before, after))

    def heads(self, site: str, layer: int) -> HeadFlow:
        """Head outputs from the values, attention weights held constant."""
        weights, values, outputs = (
            self.recording[site, layer, kind] for kind in ("weights", "values", "outputs")
        )
        return self._once(
            (site, layer, "attend"), lambda: self.rule.values(weights, values, outputs)
        )

    def gated(self, site: str, layer: int) -> Tensor:
        """Outputs of heads after their gates, side by side: `[batch, length, heads * head]`."""
        return self._once((site, layer, "gated"), lambda: self._gated(site, layer))

    def _gated(self, site: str, layer: int) -> Tensor:
        if not self.attentions[site, layer].heads:
            return self.recording[site, layer, "output"][..., :0]
        outputs, gate = self.recording[site, layer, "outputs"], self.gate(site, layer)
        return _side_by_side(outputs if gate is None else outputs * gate[..., None, None])

    def gate(self, site: str, layer: int) -> Tensor | None:
        """The gates on an attention, `[heads]` or `[batch, heads]`, where there are any."""
        gate = self.attentions[site, layer].gate
        return None if gate is None else gate.detach().to(self.maps[site, layer, "out"].weight)

    def _end(self, part: str, layer: int, kind: str) -> Tensor:
        """What is at one end of a map, `[batch, length, width]`."""
        if kind == "gated":
            return self.gated(part, layer)
        tensor = self.recording[part, layer, kind]
        return _side_by_side(tensor) if tensor.dim() == 4 else tensor

    def _once(self, key: tuple[str, int, str], make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])


def _side_by_side(heads: Tensor) -> Tensor:
    """`[batch, heads, length, head]` to `[batch, length, heads * head]`."""
    return heads.transpose(1, 2).flatten(2)


def _norms(model: Transformer) -> dict[tuple[str, int], nn.Module]:
    """Every layer norm by the part that it is recorded at."""
    norms: dict[tuple[str, int], nn.Module] = {
        (module.part, module.layer): module.norm
        for module in model.modules()
        if isinstance(module, Block)
    }
    norms["enc_out", 0], norms["dec_out", 0] = model.encoder_norm, model.decoder_norm
    return norms
