"""Which embeddings learn at a rate of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headcount.model.transformer import Transformer
from headcount.training.train import parameter_groups


@pytest.mark.parametrize(
    ("tie", "slower"),
    [
        ("target", {"source_embedding.table.weight"}),
        ("none", {"source_embedding.table.weight", "target_embedding.table.weight"}),
        ("inputs", {"source_embedding.table.weight"}),  # the same table as the target's
        ("all", set()),
    ],
)
def test_all_tables_but_the_output_layer(
    make_model: Callable[..., Transformer], tie: str, slower: set[str]
) -> None:
    model = make_model(tie=tie, vocabulary=(20, 20))
    names = {parameter: name for name, parameter in model.named_parameters()}
    others, tables = parameter_groups(model, lambda update: 2.0 * update, 0.25)
    assert {names[parameter] for parameter in tables.parameters} == slower
    everything = [*others.parameters, *tables.parameters]
    assert {names[parameter] for parameter in everything} == set(names.values())
    assert len(everything) == len(names)
    assert (others.learning_rate(3), tables.learning_rate(3)) == (6.0, 1.5)


def test_one_group_where_nothing_differs(make_model: Callable[..., Transformer]) -> None:
    (group,) = parameter_groups(make_model(), lambda update: 1.0, 1.0)
    assert len(group.parameters) == len(list(make_model().parameters()))
