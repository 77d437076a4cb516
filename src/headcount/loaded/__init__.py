"""A model in one's hands: `headcount.load` and what its result can be asked."""
