"""Layer-wise relevance propagation (App. A): from a logit down to every head and every token.

rules.py      what a rule is, in a few lines each: the file to edit; what else can be chosen
maps.py       what a rule means for a matrix product, layer norm, a residual sum, attention
fast.py       the same for the rules that are used most, in a few matrix products
propagate.py  the pass from logits down to tokens, for all generation steps of a batch at once
descent.py    one part of that pass
audit.py      where the relevance went
relevance.py  shares of the heads of a layer
"""
