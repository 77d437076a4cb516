"""`headcount.roles`: the whole analysis, from a run and sentences to the roles of its heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from headcount.bootstrap import Bootstrap, groups_for
from headcount.distribution import Workers, connect
from headcount.errors import UserError
from headcount.files import owned, read_lines
from headcount.heads import Head, parse_sites
from headcount.model.decoding import GREEDY
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from headcount.progress import Progress
from headcount.registry import name_list
from headcount.role.counting import SiteCounts, SiteHeads, name_heads, padded_targets
from headcount.role.examples import Looked, Sample, best_examples
from headcount.role.head_roles import BestHead, Criteria, Example, HeadRoles
from headcount.role.kind import Setting
from headcount.role.parses import Text
from headcount.role.rare_words import Frequencies, token_counts
from headcount.role.relations import PAPER_RELATIONS, canonical_relations, parse_relations
from headcount.role.result import Roles
from headcount.role.sentences import (
    Preparation,
    ReadySentence,
    SentenceBatch,
    batches_of,
    relations_of,
)
from headcount.run import Run, load_run
from headcount.translation import translate_tokens

BATCH_TOKENS = 4000
LEAST_OF_ALL = 30


def roles(
    run: Run | Path | str,
    source: Path | str | Sequence[str] | None = None,
    *,
    conllu: Path | str | None = None,
    reference: Path | str | Sequence[str] | None = None,
    sites: str | Sequence[str] = "enc",
    relations: str | Sequence[str] | None = PAPER_RELATIONS,
    frequencies: Path | str | None = None,
    criteria: Criteria | None = None,
    sentences: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    processes: int | None = None,
    seed: int = 1,
    examples: bool = True,
    save: bool = False,
    progress: Progress | None = None,
) -> Roles:
    """Name what each head does.

    source      a file with one sentence per line, or a list; without it, `conllu`'s own text
    conllu      parses of these sentences; without it, spaCy parses them
    reference   translations, for `dec` and `cross`; without them, the model's own
    sites       which attention, as a list or as text: "enc,dec"
    relations   which relations, likewise; None for all that occur, an empty list for none
    frequencies text in which tokens are counted for rare words; without it, the run's own counts
                of its training data, which a model of another toolkit does not have
    sentences   how many to use, spread evenly over the data; all by default
    processes   for parsing; by default it depends on the number of sentences
    seed        of the bootstrap
    examples    also find the sentence in which each role of a head is seen best
    save        write `analysis/roles.json` and the head table into the run

    Under torchrun every process gets the same result and the first one writes it.
    """
    with connect() as workers, TemporaryDirectory() as scratch:
        if not isinstance(run, Run):
            run = load_run(run, workers.device)
        if frequencies is not None:
            lines = read_lines(Path(frequencies))
            run = replace(run, source_frequencies=token_counts(run.source_tokenizer, lines))
        text = Text.read(source, conllu, reference, sentences)
        sites = parse_sites(",".join(name_list(sites)))
        relations = () if "enc" not in sites else parse_relations(relations)
        if relations != () and text.conllu is None:
            folder = run.analysis if save else Path(scratch)
            text = _parsed(text, run, folder, processes, progress, workers)
        criteria = criteria or Criteria()
        if relations is None and criteria.least is None:
            criteria = replace(criteria, least=LEAST_OF_ALL)
        analysis = _Analysis(run, text, sites, relations, criteria, workers)
        with evaluating(run.model):
            analysis.count(batch_tokens, progress)
            result = analysis.result(seed)
            if examples:
                result = result.with_examples(analysis.examples(result, batch_tokens))
        if save and workers.leader:
            with owned(run.analysis, patience=60):
                result.save(run.analysis, run.head_table())
        workers.wait()
        return result


@contextmanager
def evaluating(model: Transformer) -> Iterator[None]:
    """The model in evaluation mode, for the length of a `with` block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _parsed(
    text: Text,
    run: Run,
    folder: Path,
    processes: int | None,
    progress: Progress | None,
    workers: Workers,
) -> Text:
    """The text with spaCy's parses; where there are several processes, the first one parses."""
    language = run.config.data.source
    if workers.leader:
        text = text.parsed(folder, language, processes, progress)
    workers.wait()
    return text if workers.leader else text.parsed(folder, language, processes, None)


class _Analysis:
    """One analysis: the counts of every site, filled by one pass over the text."""

    def __init__(
        self,
        run: Run,
        text: Text,
        sites: Sequence[str],
        relations: Sequence[str] | None,
        criteria: Criteria,
        workers: Workers,
    ) -> None:
        self.run, self.text, self.criteria, self.workers = run, text, criteria, workers
        positions = run.config.model.max_positions
        if relations is None:
            relations = relations_of(text.parses())
        self.preparation = Preparation(
            run.source_tokenizer, canonical_relations(relations), positions
        )
        self.device = run.model.output_weight.device
        self.setting = Setting(
            longest=positions, relations=self.preparation.relations,
            offsets=self.preparation.offsets, frequencies=self._frequencies(),
            tokenizer=run.source_tokenizer, device=self.device,
        )  # fmt: skip
        self.counts = {
            site: SiteCounts(SiteHeads.of(run.model.heads, site), self.setting) for site in sites
        }
        self.sample = Sample()

    def _frequencies(self) -> Frequencies | None:
        counts, tokenizer = self.run.source_frequencies, self.run.source_tokenizer
        if counts is None:
            return None
        special = {tokenizer.pad, tokenizer.start, tokenizer.eos}
        return Frequencies.of(counts, special, self.criteria.frequent).to(self.device)

    def count(self, batch_tokens: int, progress: Progress | None) -> None:
        """Run the model over the text once and count; then sum over processes."""
        done, total = 0, self.text.count()
        for batches in batches_of(self._ready(), batch_tokens):
            for rows in self.workers.share(batches):
                self._count_batch(rows, self.counts)
                done += len(rows) * self.workers.world
                if progress is not None:
                    progress("Counting", min(done, total), total)
        for counts in self.counts.values():
            for tensor in counts.tensors:
                self.workers.sum(tensor)

    def _ready(self) -> Iterator[ReadySentence]:
        target = self.run.target_tokenizer
        for place, (line, parse, reference) in enumerate(self.text.rows(), start=1):
            tokens = None if reference is None else target.encode(reference)
            sentence = self.preparation.ready(line, parse, tokens, place)
            if sentence is not None:
                self.sample.add(sentence)
                yield sentence

    @torch.inference_mode()
    def _count_batch(
        self, rows: list[ReadySentence], sites: Mapping[str, SiteCounts]
    ) -> tuple[list[list[int]] | None, dict[str, dict[int, Tensor]]]:
        """Run the model over a batch and count; the target tokens and argmax keys come back."""
        model, tokenizer = self.run.model, self.run.source_tokenizer
        batch = SentenceBatch.of(rows, pad=tokenizer.pad, eos=tokenizer.eos, device=self.device)
        tokens = self._targets(rows) if sites.keys() & {"dec", "cross"} else None
        real = None
        with record(model, {"weights"}, set(sites)) as recording:
            memory, mask = model.encode(self._framed(rows, batch))
            if tokens is not None:
                ids = self.run.target_tokenizer
                target, real = padded_targets(
                    tokens, pad=ids.pad, start=ids.start, device=self.device
                )
                model.decode(target, memory, mask)
        looked = {}
        skipped = len(self.run.target_tokenizer.before)
        for site, counts in sites.items():
            weights = {
                layer: self._text(site, recording[site, layer, "weights"], batch)
                for layer in counts.heads.layers
            }
            looked[site] = counts.add(batch, weights, None if real is None else real[:, skipped:])
        return None if tokens is None else [row[skipped:] for row in tokens], looked

    def _framed(self, rows: list[ReadySentence], batch: SentenceBatch) -> Tensor:
        """What the model reads: sentences with the tokens that stand before and after them."""
        tokenizer = self.run.source_tokenizer
        if not (tokenizer.before or tokenizer.after):
            return batch.source
        framed = [[*tokenizer.framed(row.ids), tokenizer.eos] for row in rows]
        longest = max(map(len, framed))
        filled = [[*row, *[tokenizer.pad] * (longest - len(row))] for row in framed]
        return torch.tensor(filled, device=self.device)

    def _text(self, site: str, weights: Tensor, batch: SentenceBatch) -> Tensor:
        """Attention among tokens of the text: language codes and `[CLS]` are left out like EOS."""
        first, skipped = len(self.run.source_tokenizer.before), 0
        if site != "enc":
            skipped = len(self.run.target_tokenizer.before)
        source = slice(first, first + batch.real.shape[1])
        if site == "dec":
            return weights[:, :, skipped:, skipped:]
        return weights[:, :, source if site == "enc" else slice(skipped, None), source]

    def _targets(self, rows: list[ReadySentence]) -> list[list[int]]:
        """The tokens of the references, or of the model's own greedy translations."""
        framed = self.run.source_tokenizer.framed
        missing = [framed(row.ids) for row in rows if row.target is None]
        own = iter(translate_tokens(self.run, missing, GREEDY) if missing else ())
        tokens = [row.target if row.target is not None else next(own)[0].tokens for row in rows]
        # A translation that never ends takes all positions, and START takes one.
        return [row[: self.preparation.longest] for row in tokens]

    def examples(self, result: Roles, batch_tokens: int) -> dict[tuple[Head, str, str], Example]:
        """The sentence in which each role is seen best; every process computes it by itself."""
        sample = self.sample.sentences()
        sites = {head.site for head, head_roles in result.heads.items() if head_roles.roles}
        if not sample or not sites:
            return {}
        setting = replace(self.setting, groups=len(sample))
        counts = {
            site: SiteCounts(self.counts[site].heads, setting)
            for site in self.counts
            if site in sites
        }
        texts = self.run.target_tokenizer.tokens()
        looked: dict[tuple[str, int], Looked] = {}
        for batches in batches_of(iter(sample), batch_tokens):
            for rows in batches:
                targets, argmax = self._count_batch(rows, counts)
                for i, row in enumerate(rows):
                    target = None if targets is None else tuple(texts[t] for t in targets[i])
                    for site in counts:
                        keys = {layer: places[i] for layer, places in argmax[site].items()}
                        looked[site, row.number] = Looked(keys, None if site == "enc" else target)
        return best_examples(
            result.heads, sample, counts, looked, self.run.source_tokenizer.tokens()
        )

    def result(self, seed: int) -> Roles:
        """Name the roles that the counts show."""
        preparation, criteria = self.preparation, self.criteria
        mapping = preparation.mapping
        if not mapping.sentences:
            raise UserError(
                f"None of the sentences can be analysed ({mapping.too_long} too long,"
                f" {mapping.without_tokens} without tokens).",
                "Give sentences that the model can translate.",
            )
        if mapping.unmapped and not mapping.mapped:
            raise UserError(
                f"None of the {mapping.unmapped} parses of {self.text.parser} fits its sentence.",
                "Give parses of exactly these sentences, in the same order.",
            )
        bootstrap = Bootstrap.seeded(groups_for(mapping.sentences), seed)
        heads: list[HeadRoles] = []
        best: list[BestHead] = []
        for counts in self.counts.values():
            of_site, best_of_site = name_heads(counts, bootstrap, criteria)
            heads += of_site
            best += best_of_site
        return Roles(
            heads={head_roles.head: head_roles for head_roles in heads},
            best=best,
            criteria=criteria,
            data=self._data(seed),
            offsets={
                name: preparation.offsets.distribution(number)
                for number, name in enumerate(preparation.relations)
            },
            persons=preparation.person_shares(),
            facts={
                name: facts
                for counts in self.counts.values()
                for name, role_counts in counts.roles.items()
                if (facts := role_counts.facts())
            },
        )

    def _data(self, seed: int) -> dict[str, Any]:
        text = self.text
        return {
            "source": str(text),
            "parses": text.parser,
            "targets": self._targets_name(),
            "frequencies": self.run.source_frequencies is not None,
            "bootstrap_seed": seed,
            **self.preparation.mapping.to_json(),
        }

    def _targets_name(self) -> str | None:
        if set(self.counts) <= {"enc"}:
            return None
        return "own translations" if self.text.references is None else str(self.text.references)
