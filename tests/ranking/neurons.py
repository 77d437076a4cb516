"""LRP neuron by neuron: a slow reference written straight from App. A.

A model becomes a graph of single neurons in plain Python numbers. Every neuron knows the direct
contributions that it is the sum (or product) of; relevance is handed down one neuron at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headcount.model.transformer import Transformer
from headcount.ranking.lrp.rules import LrpOptions


@dataclass(eq=False)
class Neuron:
    """`value` is the sum of contributions and bias, or what `factors` give, or follows `source`."""

    value: float
    contributions: list[tuple[Neuron, float]] = field(default_factory=list)
    bias: float = 0.0
    factors: tuple[Neuron, Neuron] | None = None
    source: Neuron | None = None
    relevance: float = 0.0


Vector = list[Neuron]


def fractions(amounts: list[float], options: LrpOptions) -> list[float]:
    """Definition 3 (`ratio`), and its two relatives, for the contributions to one neuron."""
    epsilon = options.epsilon
    if options.rule == "ratio":
        total = sum(amounts)
        total += -epsilon if total < 0 else epsilon
        return [amount / total if total else 0.0 for amount in amounts]
    alpha, beta = {"alphabeta": (0.5, 0.5), "zplus": (1.0, 0.0)}[options.rule]
    above = sum(amount for amount in amounts if amount > 0)
    below = sum(amount for amount in amounts if amount < 0)
    if not below:
        alpha = 1.0
    if not above:
        beta = 1.0
    shares = []
    for amount in amounts:
        if amount > 0:
            shares.append(alpha * amount / (above + epsilon))
        elif amount < 0:
            shares.append(beta * amount / (below - epsilon))
        else:
            shares.append(0.0)
    return shares


class Network:
    """All neurons of one forward pass, in the order in which they were computed."""

    def __init__(self, options: LrpOptions) -> None:
        self.options = options
        self.neurons: list[Neuron] = []
        self.taken_by_bias = 0.0

    def add(self, neuron: Neuron) -> Neuron:
        self.neurons.append(neuron)
        return neuron

    def leaf(self, value: float) -> Neuron:
        return self.add(Neuron(value))

    def sum(self, parts: list[tuple[Neuron, float]], bias: float = 0.0) -> Neuron:
        contributions = [(neuron, weight * neuron.value) for neuron, weight in parts]
        value = sum(amount for _, amount in contributions) + bias
        return self.add(Neuron(value, contributions, bias))

    def product(self, a: Neuron, b: Neuron) -> Neuron:
        return self.add(Neuron(a.value * b.value, factors=(a, b)))

    def follow(self, source: Neuron, value: float) -> Neuron:
        """A neuron whose relevance all goes to one other: activations, gates, identity norms."""
        return self.add(Neuron(value, source=source))

    def linear(self, x: Vector, weight: list[list[float]], bias: list[float]) -> Vector:
        return [
            self.sum(list(zip(x, row, strict=True)), b) for row, b in zip(weight, bias, strict=True)
        ]

    def norm(
        self, x: Vector, gain: list[float], bias: list[float], epsilon: float, centred: bool = True
    ) -> Vector:
        width = len(x)
        mean = sum(neuron.value for neuron in x) / width if centred else 0.0
        variance = sum((neuron.value - mean) ** 2 for neuron in x) / width
        scale = math.sqrt(variance + epsilon)
        outputs = []
        for j in range(width):
            if self.options.layer_norm == "identity":
                value = gain[j] * (x[j].value - mean) / scale + bias[j]
                outputs.append(self.follow(x[j], value))
                continue
            weights = [gain[j] / scale * ((i == j) - centred / width) for i in range(width)]
            outputs.append(self.sum(list(zip(x, weights, strict=True)), bias[j]))
        return outputs

    def attend(
        self,
        queries: list[Vector],
        keys: list[Vector],
        values: list[Vector],
        causal: bool,
        scale: float,
        biases: list[list[float]] | None,
    ):
        """One head: its output at every query position; `biases` are those of positions."""
        outputs = []
        for place, query in enumerate(queries):
            seen = range(place + 1) if causal else range(len(keys))
            scores = []
            for k in seen:
                products = [self.product(a, b) for a, b in zip(query, keys[k], strict=True)]
                score = self.sum([(p, scale) for p in products])
                if biases is not None:
                    score = self.follow(score, score.value + biases[place][k])
                scores.append(score)
            exponentials = [math.exp(score.value) for score in scores]
            weights = [
                self.follow(score, e / sum(exponentials))
                for score, e in zip(scores, exponentials, strict=True)
            ]
            output = []
            for d in range(len(query)):
                if self.options.attention == "constant":
                    parts = [
                        (values[k][d], weight.value)
                        for k, weight in zip(seen, weights, strict=True)
                    ]
                else:
                    parts = [
                        (self.product(weight, values[k][d]), 1.0)
                        for k, weight in zip(seen, weights, strict=True)
                    ]
                output.append(self.sum(parts))
            outputs.append(output)
        return outputs

    def propagate(self, start: Neuron) -> None:
        """The redistribution rule, from the last neuron to the first."""
        self.taken_by_bias = 0.0
        for neuron in self.neurons:
            neuron.relevance = 0.0
        start.relevance = 1.0
        for neuron in reversed(self.neurons):
            if neuron.relevance == 0.0:
                continue
            if neuron.source is not None:
                neuron.source.relevance += neuron.relevance
            elif neuron.factors is not None:
                pair = neuron.factors
                shares = fractions([factor.value for factor in pair], self.options)
                for factor, share in zip(pair, shares, strict=True):
                    factor.relevance += share * neuron.relevance
            else:
                amounts = [amount for _, amount in neuron.contributions]
                absorbs = self.options.bias == "absorb"
                shares = fractions(amounts + [neuron.bias] * absorbs, self.options)
                for (below, _), share in zip(neuron.contributions, shares, strict=False):
                    below.relevance += share * neuron.relevance
                if absorbs:
                    self.taken_by_bias += shares[-1] * neuron.relevance

    def largest(self) -> float:
        """The largest |relevance| of any neuron."""
        return max(abs(neuron.relevance) for neuron in self.neurons)


class ReferenceModel:
    """A `Transformer` on one sentence as a `Network`, reading its parameters and nothing else."""

    def __init__(self, model: Transformer, options: LrpOptions) -> None:
        self.model, self.options = model, options
        self.network = Network(options)
        self.heads: dict[tuple[str, int], list[list[Vector]]] = {}
        self.blocks: dict[tuple[str, int], list[Vector]] = {}
        self.source: list[Vector] = []
        self.prefix: list[Vector] = []
        self.pre_norm = model.config.norm == "pre"

    def run(self, source: list[int], prefix: list[int]) -> list[Neuron]:
        """The top-1 logit of every step; of an encoder alone, of what it predicts."""
        model = self.model
        x = self.source = self._embed(model.source_embedding, source)
        for layer in model.encoder:
            x = self._attention(layer.self_attention, x, x, False)
            x = self._feed_forward(layer.feed_forward, x)
        memory = self._final_norm(model.encoder_norm, x)
        if not model.decoder:
            states = memory[:1] if model.config.classes else memory
            return self._tops([self._output(model.output_network, state) for state in states])
        x = self.prefix = self._embed(model.target_embedding, prefix)
        for layer in model.decoder:
            x = self._attention(layer.self_attention, x, x, True)
            x = self._attention(layer.cross_attention, x, memory, False)
            x = self._feed_forward(layer.feed_forward, x)
        return self._tops(self._final_norm(model.decoder_norm, x))

    def _tops(self, states: list[Vector]) -> list[Neuron]:
        model = self.model
        rows = model.output_weight.tolist()
        biases = [0.0] * len(rows) if model.output_bias is None else model.output_bias.tolist()
        return [self._top(state, rows, biases) for state in states]

    def _output(self, network, state: Vector) -> Vector:
        """Linear map, activation, and norm where there is one."""
        linear = network.linear
        hidden = self.network.linear(state, linear.weight.tolist(), linear.bias.tolist())
        hidden = [self.network.follow(n, activate(network, n.value)) for n in hidden]
        return self._norm(network.norm, hidden) if hasattr(network.norm, "weight") else hidden

    def head_relevance(self, site: str, layer: int, neurons: bool) -> list[float]:
        """Sums over the neurons and positions of each head, block of units or block."""
        size = abs if neurons else float
        parts = {"enc_layers": ("enc", "enc_ff"), "dec_layers": ("dec", "cross", "dec_ff")}
        if site in parts:
            wanted = [self.blocks[part, layer] for part in parts[site]
                      if (part, layer) in self.blocks]  # fmt: skip
        else:
            wanted = self.heads.get((site, layer), [])
        return [
            sum(size(neuron.relevance) for vector in positions for neuron in vector)
            for positions in wanted
        ]

    def token_relevance(self) -> tuple[list[float], list[float]]:
        """Sums over the neurons of every embedded source token and prefix token."""
        source, prefix = (
            [sum(neuron.relevance for neuron in vector) for vector in tokens]
            for tokens in (self.source, self.prefix)
        )
        return source, prefix

    def _top(self, state: Vector, rows: list[list[float]], biases: list[float]) -> Neuron:
        values = [neuron.value for neuron in state]
        logits = [
            sum(w * v for w, v in zip(row, values, strict=True)) + bias
            for row, bias in zip(rows, biases, strict=True)
        ]
        top = max(range(len(logits)), key=logits.__getitem__)
        return self.network.sum(list(zip(state, rows[top], strict=True)), biases[top])

    def _embed(self, embedding, tokens: list[int]) -> list[Vector]:
        table, positions = embedding.table.weight.tolist(), embedding.positions.tolist()
        vectors = []
        for place, token in enumerate(tokens):
            here = positions[place] if positions else [0.0] * len(table[token])
            values = [v * embedding.scale + p for v, p in zip(table[token], here, strict=True)]
            if embedding.norm is not None:  # relevance ends at what the first layer reads
                leaves = [Neuron(value) for value in values]
                values = [n.value for n in self._norm(embedding.norm, leaves)]
            vectors.append([self.network.leaf(value) for value in values])
        return vectors

    def _final_norm(self, norm, x: list[Vector]) -> list[Vector]:
        return [self._norm(norm, vector) for vector in x] if self.pre_norm else x

    def _norm(self, norm, vector: Vector) -> Vector:
        centred = hasattr(norm, "bias")
        bias = norm.bias.tolist() if centred else [0.0] * len(vector)
        return self.network.norm(vector, norm.weight.tolist(), bias, norm.eps, centred)

    def _around(self, block, x: list[Vector], function) -> list[Vector]:
        if block.removed:
            return x if self.pre_norm else [self._norm(block.norm, v) for v in x]
        inside = [self._norm(block.norm, v) for v in x] if self.pre_norm else x
        outputs = function(inside)
        if block.block_gate is not None:
            gate = float(block.block_gate)
            outputs = [[self.network.follow(n, gate * n.value) for n in v] for v in outputs]
        self.blocks[block.part, block.layer] = outputs
        totals = [
            [self.network.sum([(a, 1.0), (b, 1.0)]) for a, b in zip(v, f, strict=True)]
            for v, f in zip(x, outputs, strict=True)
        ]
        return totals if self.pre_norm else [self._norm(block.norm, v) for v in totals]

    def _feed_forward(self, block, x: list[Vector]) -> list[Vector]:
        def function(inside: list[Vector]) -> list[Vector]:
            outputs, positions = [], []
            for vector in inside:
                expand, contract = block.expand, block.contract
                hidden = self.network.linear(vector, expand.weight.tolist(), expand.bias.tolist())
                hidden = [self.network.follow(n, activate(block, n.value)) for n in hidden]
                if block.multiply is not None:
                    weight, bias = block.multiply.weight.tolist(), block.multiply.bias.tolist()
                    factors = self.network.linear(vector, weight, bias)
                    pairs = zip(hidden, factors, strict=True)
                    hidden = [self.network.product(a, b) for a, b in pairs]
                positions.append(hidden)
                if block.gate is not None:
                    gates = [float(block.gate[number]) for number in block.unit_block]
                    hidden = [
                        self.network.follow(n, g * n.value)
                        for n, g in zip(hidden, gates, strict=True)
                    ]
                outputs.append(
                    self.network.linear(hidden, contract.weight.tolist(), contract.bias.tolist())
                )
            numbers = block.unit_block.tolist()
            self.heads[block.part, block.layer] = [
                [[n for n, b in zip(v, numbers, strict=True) if b == place] for v in positions]
                for place in range(len(block.blocks))
            ]
            return outputs

        return self._around(block, x, function)

    def _attention(self, block, x: list[Vector], other: list[Vector], causal: bool):
        attention, network = block.attention, self.network
        width = attention.head_width
        gate = [1.0] * len(attention.heads) if attention.gate is None else attention.gate.tolist()

        def function(inside: list[Vector]) -> list[Vector]:
            keys_from = inside if other is x else other
            weight, bias = attention.in_weight.tolist(), attention.in_bias.tolist()
            heads = []
            for number in range(len(attention.heads)):
                projected = []
                for part, vectors in enumerate((inside, keys_from, keys_from)):
                    first = part * attention.inner + number * width
                    rows = slice(first, first + width)
                    projected.append([network.linear(v, weight[rows], bias[rows]) for v in vectors])
                biases = attention.position_bias(len(inside))
                biases = None if biases is None else biases[number].tolist()
                heads.append(network.attend(*projected, causal, attention.scale, biases))
            self.heads[attention.site, attention.layer] = heads
            merged = [
                [network.follow(n, g * n.value) for head, g in zip(heads, gate, strict=True)
                 for n in head[place]]
                for place in range(len(inside))
            ]  # fmt: skip
            out, out_bias = attention.out_weight.tolist(), attention.out_bias.tolist()
            return [network.linear(v, out, out_bias) for v in merged]

        return self._around(block, x, function)


def activate(block, value: float) -> float:
    """The activation function of a feed-forward block, on one number."""
    import torch

    return float(block.activation(torch.tensor(value, dtype=torch.float64)))
