"""Corpora, BPE, token shards on disk and length-bucketed batches."""
