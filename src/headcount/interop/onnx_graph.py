"""A run's encoder and one step of its decoder as ONNX graphs, with its heads as they are.

The graphs are written node by node from the model's parameters. Batch and lengths are dynamic.

    encoder.onnx       tokens [batch, source]
                       -> visible [batch, source], and for each decoder layer l that attends to
                          the source: source_keys.l, source_values.l [batch, heads, source, head]
    decoder_step.onnx  tokens [batch], position [1], visible, source_keys.l, source_values.l, and
                       for each layer with self-attention: keys.l, values.l
                       [batch, heads, past, head]
                       -> logits [batch, vocabulary], next_keys.l, next_values.l with one more
                          position

`visible` is 0 for real tokens of the source and very low for padding. A layer without heads has no
keys and values. Position biases are looked up by offset in a table of all offsets that differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from headcount.model.attention import Attention
from headcount.model.embedding import Embedding
from headcount.model.layers import AttentionBlock, Block, FeedForwardBlock
from headcount.model.transformer import Transformer

OPSET = 17
IR_VERSION = 8
_UNSEEN = -1e9


class Graph:
    """Nodes and weights of a graph under construction; values are known by their names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def add(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """One more node; gives the name of its output."""
        from onnx import helper

        output = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values: Any, kind: type = np.float32) -> str:
        """A small constant, stored once."""
        array: np.ndarray = np.asarray(values, dtype=kind)
        return self._store(f"constant_{array.dtype}_{array.tolist()}".replace(" ", ""), array)

    def weight(self, name: str, tensor: Tensor) -> str:
        """A parameter of the model, stored once however often it is used."""
        return self._store(name, tensor.detach().cpu().float().numpy())

    def input(self, name: str, kind: type, shape: Sequence[int | str]) -> str:
        """An input of the graph."""
        self.inputs.append(self._value(name, kind, shape))
        return name

    def output(self, name: str, shape: Sequence[int | str]) -> None:
        """An output of the graph."""
        self.outputs.append(self._value(name, np.float32, shape))

    def model(self, name: str) -> Any:
        """The finished graph."""
        from onnx import checker, helper

        weights = list(self.weights.values())
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, weights)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, producer_name="headcount")
        model.ir_version = IR_VERSION
        checker.check_model(model, full_check=True)
        return model

    def _store(self, name: str, array: np.ndarray) -> str:
        from onnx import numpy_helper

        if name not in self.weights:
            self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def _value(self, name: str, kind: type, shape: Sequence[int | str]) -> Any:
        from onnx import helper

        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), list(shape)
        )


class Writer:
    """Writes the parts of one model into a graph."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.graph = Graph()
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}

    def parameter(self, tensor: Tensor) -> str:
        """A parameter under its own name."""
        return self.graph.weight(self.names[id(tensor)], tensor)

    def linear(self, x: str, name: str, weight: Tensor, bias: Tensor) -> str:
        """`[..., in]` to `[..., out]`."""
        product = self.graph.add("MatMul", x, self.graph.weight(f"{name}.weight.T", weight.T))
        if not self.model.config.biases:
            return product
        return self.graph.add("Add", product, self.graph.weight(f"{name}.bias", bias))

    def norm(self, x: str, norm: Any) -> str:
        """Layer norm or RMS norm; nothing where the model has none."""
        if not hasattr(norm, "weight"):
            return x
        add, weight = self.graph.add, self.parameter(norm.weight)
        if isinstance(norm, nn.RMSNorm):
            mean = add("ReduceMean", add("Mul", x, x), axes=[-1])
            scale = add("Sqrt", add("Add", mean, self.graph.constant(norm.eps)))
            return add("Mul", add("Div", x, scale), weight)
        bias = self.parameter(norm.bias)
        return add("LayerNormalization", x, weight, bias, axis=-1, epsilon=norm.eps)

    def inside(self, x: str, block: Block) -> str:
        """What the function of a residual block sees."""
        return self.norm(x, block.norm) if block.pre_norm else x

    def around(self, x: str, output: str, block: Block) -> str:
        """What leaves a residual block."""
        total = self.graph.add("Add", x, output)
        return total if block.pre_norm else self.norm(total, block.norm)

    def feed_forward(self, x: str, block: FeedForwardBlock) -> str:
        """The two-layer network of each position, gated or not."""
        if not block.blocks:
            return self.constant(x, block, block.contract.bias)
        inside = self.inside(x, block)

        def mapped(x: str, name: str, linear: Any) -> str:
            return self.linear(x, f"{block.part}.{block.layer}.{name}", linear.weight, linear.bias)

        hidden = self.activation(mapped(inside, "expand", block.expand))
        if block.multiply is not None:
            factor = mapped(inside, "multiply", block.multiply)
            hidden = self.graph.add("Mul", hidden, factor)
        return self.around(x, mapped(hidden, "contract", block.contract), block)

    def activation(self, x: str) -> str:
        """The activation of the feed-forward networks."""
        add, constant = self.graph.add, self.graph.constant
        if self.model.config.activation == "relu":
            return add("Relu", x)
        if self.model.config.activation == "swish":
            return add("Mul", x, add("Sigmoid", x))
        if self.model.config.activation == "gelu_tanh":
            cube = add("Mul", add("Mul", x, add("Mul", x, x)), constant(0.044715))
            curve = add("Mul", add("Add", x, cube), constant(math.sqrt(2 / math.pi)))
            half = add("Mul", x, constant(0.5))
            return add("Mul", half, add("Add", add("Tanh", curve), constant(1.0)))
        phi = add("Erf", add("Mul", x, constant(1 / math.sqrt(2))))
        return add("Mul", add("Mul", x, constant(0.5)), add("Add", phi, constant(1.0)))

    def projected(self, x: str, attention: Attention, part: int) -> str:
        """Queries (0), keys (1) or values (2), `[batch, heads, length, head]`."""
        first, last = part * attention.inner, (part + 1) * attention.inner
        name = f"{attention.site}.{attention.layer}.{'qkv'[part]}"
        stacked = self.linear(
            x, name, attention.in_weight[first:last], attention.in_bias[first:last]
        )
        shape = [0, 0, len(attention.heads), attention.head_width]
        apart = self.graph.add("Reshape", stacked, self.graph.constant(shape, np.int64))
        return self.graph.add("Transpose", apart, perm=[0, 2, 1, 3])

    def attend(
        self,
        queries: str,
        keys: str,
        values: str,
        attention: Attention,
        visible: str | None,
        offsets: str | None = None,
    ) -> str:
        """Dot-product attention of every head, and `W^O`; `visible` is added to scores.

        `offsets` `[queries, keys]` are rows of the table of position biases.
        """
        add, constant = self.graph.add, self.graph.constant
        scores = add("MatMul", queries, add("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = add("Mul", scores, constant(attention.scale))
        if attention.relative is not None and offsets is not None:
            biases = add("Gather", self.bias_table(attention), offsets)  # [queries, keys, heads]
            scores = add("Add", scores, add("Transpose", biases, perm=[2, 0, 1]))
        if visible is not None:
            rows = add("Unsqueeze", visible, constant([1, 2], np.int64))
            scores = add("Add", scores, rows)  # [batch, 1, 1, keys]
        outputs = add("MatMul", add("Softmax", scores, axis=-1), values)
        merged = add("Transpose", outputs, perm=[0, 2, 1, 3])
        merged = add("Reshape", merged, constant([0, 0, attention.inner], np.int64))
        name = f"{attention.site}.{attention.layer}.out"
        return self.linear(merged, name, attention.out_weight, attention.out_bias)

    def bias_table(self, attention: Attention) -> str:
        """Position biases by offset, `[offsets, heads]`."""
        assert attention.relative is not None
        biases = attention.relative.by_offset(attention.heads)
        return self.graph.weight(f"{attention.site}.{attention.layer}.positions", biases)

    def rows_of(self, offsets: str) -> str:
        """Offsets, key position minus query position, as rows of the table of biases."""
        far = self.model.config.position_distance
        add, constant = self.graph.add, self.graph.constant
        near = add("Clip", offsets, constant(-far, np.int64), constant(far, np.int64))
        return add("Add", near, constant(far, np.int64))

    def constant(self, x: str, block: Block, bias: Tensor) -> str:
        """A block that has lost all heads or units adds its constant bias, if it has one."""
        if self.model.config.biases and not block.removed:
            return self.around(x, self.parameter(bias), block)
        return x if block.pre_norm else self.norm(x, block.norm)

    def embedded(self, tokens: str, embedding: Embedding, positions: str | None) -> str:
        """Tokens `[batch, length]` and the rows of their positions to `[batch, length, width]`."""
        add = self.graph.add
        x = add("Gather", self.parameter(embedding.table.weight), tokens)
        if embedding.scale != 1:
            x = add("Mul", x, self.graph.constant(embedding.scale))
        return self.norm(x if positions is None else add("Add", x, positions), embedding.norm)

    def positions(self, embedding: Embedding, pick: Callable[[str], str]) -> str | None:
        """Rows of the table `[positions, width]` that is added to embeddings, where one is."""
        if not embedding.adds_positions:
            return None
        most = self.model.config.max_positions
        return pick(self.graph.weight("positions", embedding.positions_at(0, most)))


def encoder_graph(model: Transformer) -> Any:
    """The encoder, and what the decoder's layers need of its output."""
    writer = Writer(model)
    graph, add, constant = writer.graph, writer.graph.add, writer.graph.constant
    tokens = graph.input("tokens", np.int64, ["batch", "source"])
    padding = add("Equal", tokens, constant(model.pad, np.int64))
    visible = add("Where", padding, constant(_UNSEEN), constant(0.0), name="visible")
    graph.output(visible, ["batch", "source"])
    length = add("Shape", tokens, start=1, end=2)
    first = constant([0], np.int64)
    positions = writer.positions(
        model.source_embedding, lambda table: add("Slice", table, first, length, first)
    )
    x = writer.embedded(tokens, model.source_embedding, positions)
    offsets = None
    if model.config.relative_positions != "none":
        zero, one = constant(0, np.int64), constant(1, np.int64)
        at = add("Range", zero, add("Squeeze", length, first), one)
        offsets = writer.rows_of(add("Sub", at, add("Unsqueeze", at, constant([1], np.int64))))
    for layer in model.encoder_layers():
        x = _self_attention(writer, x, layer.self_attention, visible, offsets)
        x = writer.feed_forward(x, layer.feed_forward)
    memory = writer.norm(x, model.encoder_norm)
    for number, decoder_layer in enumerate(model.decoder_layers()):
        cross = decoder_layer.cross_attention.attention
        if cross.heads:
            for part, kind in ((1, "keys"), (2, "values")):
                projected = writer.projected(memory, cross, part)
                add("Identity", projected, name=f"source_{kind}.{number}")
                graph.output(f"source_{kind}.{number}", _past(cross, "source"))
    return graph.model("encoder")


def decoder_step_graph(model: Transformer) -> Any:
    """One step of the decoder: it takes the past and returns it with one more position."""
    writer = Writer(model)
    graph, add, constant = writer.graph, writer.graph.add, writer.graph.constant
    tokens = graph.input("tokens", np.int64, ["batch"])
    position = graph.input("position", np.int64, [1])
    visible = graph.input("visible", np.float32, ["batch", "source"])
    column = add("Unsqueeze", tokens, constant([1], np.int64))  # [batch, 1]
    here = writer.positions(
        model.target_embedding, lambda table: add("Gather", table, position)
    )  # [1, width]
    x = writer.embedded(column, model.target_embedding, here)
    offsets = None
    if model.config.relative_positions != "none":
        zero, one = constant(0, np.int64), constant(1, np.int64)
        last = add("Add", add("Squeeze", position, constant([0], np.int64)), one)
        at = add("Range", zero, last, one)  # [keys]
        ago = add("Unsqueeze", add("Sub", at, position), constant([0], np.int64))  # [1, keys]
        offsets = writer.rows_of(ago)
    for number, layer in enumerate(model.decoder_layers()):
        x = _step_attention(writer, x, layer.self_attention, number, offsets)
        cross = layer.cross_attention
        if cross.attention.heads:
            keys, values = (
                graph.input(f"source_{kind}.{number}", np.float32, _past(cross.attention, "source"))
                for kind in ("keys", "values")
            )
            queries = writer.projected(writer.inside(x, cross), cross.attention, 0)
            output = writer.attend(queries, keys, values, cross.attention, visible)
            x = writer.around(x, output, cross)
        else:
            x = writer.constant(x, cross, cross.attention.out_bias)
        x = writer.feed_forward(x, layer.feed_forward)
    states = writer.norm(x, model.decoder_norm)
    states = add("Squeeze", states, constant([1], np.int64))  # [batch, width]
    bias = [] if model.output_bias is None else [writer.parameter(model.output_bias)]
    add("Gemm", states, writer.parameter(model.output_weight), *bias, transB=1, name="logits")
    graph.output("logits", ["batch", len(model.output_weight)])
    return graph.model("decoder_step")


def _self_attention(
    writer: Writer, x: str, block: AttentionBlock, visible: str, offsets: str | None
) -> str:
    attention = block.attention
    if not attention.heads:
        return writer.constant(x, block, attention.out_bias)
    inside = writer.inside(x, block)
    queries, keys, values = (writer.projected(inside, attention, part) for part in range(3))
    output = writer.attend(queries, keys, values, attention, visible, offsets)
    return writer.around(x, output, block)


def _step_attention(
    writer: Writer, x: str, block: AttentionBlock, number: int, offsets: str | None
) -> str:
    """Self-attention of one new position to itself and to those before it."""
    attention, graph = block.attention, writer.graph
    if not attention.heads:
        return writer.constant(x, block, attention.out_bias)
    inside = writer.inside(x, block)
    grown = []
    for part, kind in ((1, "keys"), (2, "values")):
        past = graph.input(f"{kind}.{number}", np.float32, _past(attention, "past"))
        new = writer.projected(inside, attention, part)
        grown.append(graph.add("Concat", past, new, axis=2, name=f"next_{kind}.{number}"))
        graph.output(f"next_{kind}.{number}", _past(attention, "past_and_new"))
    queries = writer.projected(inside, attention, 0)
    output = writer.attend(queries, grown[0], grown[1], attention, None, offsets)
    return writer.around(x, output, block)


def _past(attention: Attention, length: str) -> list[int | str]:
    return ["batch", len(attention.heads), length, attention.head_width]
