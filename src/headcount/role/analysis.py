"""`headcount.roles`: the whole analysis, from a run and sentences to the roles of its heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.bootstrap import Bootstrap, groups_for
from headcount.errors import UserError
from headcount.files import owned
from headcount.heads import parse_sites
from headcount.model.decoding import GREEDY
from headcount.model.recording import record
from headcount.progress import Progress
from headcount.registry import name_list
from headcount.role.counting import SiteCounts, SiteHeads, padded_targets
from headcount.role.criteria import Criteria
from headcount.role.kind import Setting
from headcount.role.naming import name_heads
from headcount.role.rare_words import Frequencies
from headcount.role.relations import PAPER_RELATIONS, canonical_relations, parse_relations
from headcount.role.result import BestHead, HeadRoles, Roles
from headcount.role.sentences import (
    Preparation,
    ReadySentence,
    SentenceBatch,
    batches_of,
    relations_of,
)
from headcount.role.text import Text
from headcount.run import Run, load_run
from headcount.training.distribution import Workers, connect
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
    criteria: Criteria | None = None,
    sentences: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    processes: int | None = None,
    seed: int = 1,
    save: bool = False,
    progress: Progress | None = None,
) -> Roles:
    """Name the roles of a run's heads on the given sentences (Sec. 5).

    source      a file with one sentence a line, or the sentences; without it, `conllu`'s own text
    conllu      parses of these sentences; without it, spaCy parses them
    reference   translations, for `dec` and `cross`; without them, the model's own
    sites       which attention, as a list or as the verb has it: "enc,dec"
    relations   which relations, likewise; None for all that occur, an empty list for none
    sentences   use so many only, evenly spread over the data
    processes   for parsing; chosen by the number of sentences where it is not given
    seed        of the bootstrap

    Writes `analysis/roles.json` and the head table of the run unless `save` is false. Under
    torchrun every process comes to the same result and the first one writes it.
    """
    with connect() as workers:
        if not isinstance(run, Run):
            run = load_run(run, workers.device)
        text = Text.given(source, conllu, reference, sentences)
        sites = parse_sites(",".join(name_list(sites)))
        relations = () if "enc" not in sites else parse_relations(relations)
        if relations != () and text.conllu is None:
            text = _parsed(text, run, processes, progress, workers)
        criteria = criteria or Criteria()
        if relations is None and criteria.least is None:
            criteria = replace(criteria, least=LEAST_OF_ALL)
        analysis = _Analysis(run, text, sites, relations, criteria, workers)
        analysis.count(batch_tokens, progress)
        result = analysis.result(seed)
        if save and workers.leader:
            with owned(run.analysis, patience=60):
                result.save(run.analysis, run.head_table())
        workers.wait()
        return result


def _parsed(
    text: Text, run: Run, processes: int | None, progress: Progress | None, workers: Workers
) -> Text:
    """The text with spaCy's parses; where there are several processes, the first one parses."""
    language = run.config.data.source
    if workers.leader:
        text = text.parsed(run.analysis, language, processes, progress)
    workers.wait()
    return text if workers.leader else text.parsed(run.analysis, language, processes, None)


class _Analysis:
    """One analysis under way: the counts of every site, fed by one pass over the text."""

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
        setting = Setting(
            longest=positions, relations=self.preparation.relations,
            offsets=self.preparation.offsets, frequencies=self._frequencies(),
            tokenizer=run.source_tokenizer, device=self.device,
        )  # fmt: skip
        self.counts = {
            site: SiteCounts(SiteHeads.of(run.model.heads, site), setting) for site in sites
        }

    def _frequencies(self) -> Frequencies | None:
        counts, tokenizer = self.run.source_frequencies, self.run.source_tokenizer
        if counts is None:
            return None
        special = {tokenizer.pad, tokenizer.start, tokenizer.eos}
        return Frequencies.of(counts, special, self.criteria.frequent).to(self.device)

    def count(self, batch_tokens: int, progress: Progress | None) -> None:
        """Run the model over the text once and count; then sum over processes."""
        done, total = 0, self.text.count()
        model = self.run.model
        was_training = model.training
        model.eval()
        try:
            for batches in batches_of(self._ready(), batch_tokens):
                for rows in self.workers.share(batches):
                    self._count_batch(rows)
                    done += len(rows) * self.workers.world
                    if progress is not None:
                        progress("Counting", min(done, total), total)
        finally:
            model.train(was_training)
        for counts in self.counts.values():
            for tensor in counts.tensors:
                self.workers.sum(tensor)

    def _ready(self) -> Iterator[ReadySentence]:
        target = self.run.target_tokenizer
        for place, (line, parse, reference) in enumerate(self.text.rows(), start=1):
            tokens = None if reference is None else target.encode(reference)
            sentence = self.preparation.ready(line, parse, tokens, place)
            if sentence is not None:
                yield sentence

    @torch.inference_mode()
    def _count_batch(self, rows: list[ReadySentence]) -> None:
        model, tokenizer = self.run.model, self.run.source_tokenizer
        batch = SentenceBatch.of(rows, pad=tokenizer.pad, eos=tokenizer.eos, device=self.device)
        targets = self._targets(rows) if self.counts.keys() & {"dec", "cross"} else None
        with record(model, {"weights"}, set(self.counts)) as recording:
            memory, mask = model.encode(batch.source)
            if targets is not None:
                model.decode(targets[0], memory, mask)

        for site, counts in self.counts.items():
            weights = {layer: recording[site, layer, "weights"] for layer in counts.heads.layers}
            counts.add(batch, weights, None if targets is None else targets[1])

    def _targets(self, rows: list[ReadySentence]) -> tuple[Tensor, Tensor]:
        """The references, or the model's own greedy translations, as decoder input."""
        missing = [row.ids for row in rows if row.target is None]
        own = iter(translate_tokens(self.run, missing, GREEDY) if missing else ())
        tokens = [row.target if row.target is not None else next(own)[0].tokens for row in rows]
        # A translation that never ends takes all positions, and START takes one.
        tokens = [row[: self.preparation.longest] for row in tokens]
        target = self.run.target_tokenizer
        return padded_targets(tokens, pad=target.pad, start=target.start, device=self.device)

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
                "Give the parses of these very sentences, in their order.",
            )
        bootstrap = Bootstrap.seeded(groups_for(mapping.sentences), seed)
        heads: list[HeadRoles] = []
        best: list[BestHead] = []
        for counts in self.counts.values():
            of_site, best_of_site = name_heads(counts, bootstrap, criteria)
            heads += of_site
            best += best_of_site
        return Roles(
            heads={found.head: found for found in heads},
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
