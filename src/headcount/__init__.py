"""headcount: which attention heads of a Transformer matter, what they do, and pruning the rest."""

__version__ = "0.1.0"
