"""What LRP may cost, counted in work instead of seconds: passes, calls of kernels, sizes."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headcount.ranking.lrp.propagate import Propagation
from headcount.ranking.lrp.rules import RULES, LrpOptions

VOCABULARY = 997  # a size that nothing else has
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear")
MEMORY = 10**9


class Work(TorchDispatchMode):
    """Every call of a kernel, and every tensor that one gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.shapes: set[tuple[int, ...]] = set()
        self.multiplications = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        tensors = result if isinstance(result, tuple | list) else (result,)
        self.shapes |= {tuple(t.shape) for t in tensors if isinstance(t, torch.Tensor)}
        if name in PRODUCTS:
            inner = args[1 if name == "addmm" else 0].shape[-1]
            self.multiplications += result.numel() * inner
        return result


@pytest.fixture(scope="module")
def model(make_model):
    return make_model(
        vocabulary=(VOCABULARY, VOCABULARY), heads=2, width=8, ff_width=16,
        encoder_layers=2, decoder_layers=2,
    )  # fmt: skip


def work_of(model, make_batch, rule: str, steps: list[int], memory: int = MEMORY) -> Work:
    """What `propagate` does for sentences of so many steps; the forward pass is not counted."""
    propagation = Propagation(model, LrpOptions(rule), memory)
    recording = propagation.record(*make_batch([5] * len(steps), steps))
    propagation.propagate(recording, steps)  # what is made once for a model is made here
    with Work() as work:
        propagation.propagate(recording, steps)
    return work


@pytest.mark.parametrize("rule", RULES)
def test_calls_of_kernels_do_not_grow_with_steps_nor_with_sentences(rule, model, make_batch):
    few = work_of(model, make_batch, rule, [3, 3])
    many = work_of(model, make_batch, rule, [12] * 7)
    if rule == "ratio":
        assert many.calls == few.calls
    # The others have shorter ways where all sums have both signs: that depends on the numbers.
    assert many.calls.total() < 1.1 * few.calls.total()


@pytest.mark.parametrize("rule", RULES)
def test_only_the_search_for_the_top_token_knows_the_vocabulary(rule, model, make_batch):
    steps = [9, 8, 4]
    work = work_of(model, make_batch, rule, steps)
    large = {shape for shape in work.shapes if VOCABULARY in shape}
    # The output matrix itself, and one logit for each token and step: nothing with width or starts.
    logits = {(sum(steps), VOCABULARY), (VOCABULARY,)}
    assert large <= logits | {(VOCABULARY, 8), (8, VOCABULARY)}
    assert (sum(steps), VOCABULARY) in large


@pytest.mark.parametrize("rule", RULES)
def test_starts_do_not_pay_for_later_positions(rule, model, make_batch):
    """In small chunks the decoder's part of the work is that of a triangle, not of a square."""
    steps = [24] * 2
    square = work_of(model, make_batch, rule, steps).multiplications
    triangle = work_of(model, make_batch, rule, steps, memory=1).multiplications
    assert triangle < 0.75 * square


def test_messages_stay_within_the_budget(model, make_batch):
    steps, memory = [20] * 3, 20_000
    work = work_of(model, make_batch, "zplus", steps, memory)
    messages = [s for s in work.shapes if len(s) == 4 and VOCABULARY not in s]
    assert max(torch.Size(s).numel() * 8 for s in messages) <= memory
    whole = work_of(model, make_batch, "zplus", steps)
    assert max(torch.Size(s).numel() * 8 for s in whole.shapes if len(s) == 4) > 3 * memory


def test_a_step_costs_about_as_many_products_as_a_backward_pass(model, make_batch):
    """`ratio` of n steps: no more multiplications than n backward passes to all heads."""
    steps = [10] * 4
    batch = make_batch([5] * 4, steps)
    found = work_of(model, make_batch, "ratio", steps, memory=1).multiplications
    memory, mask = model.encode(batch[0])
    states = model.decode(batch[1], memory, mask)
    with Work() as backward:
        for step in range(10):
            states[:, step].sum().backward(retain_graph=True)
    model.zero_grad()
    assert found < backward.multiplications
