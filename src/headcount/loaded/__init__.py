"""A model to explore: `headcount.load` and the questions that its result answers."""
