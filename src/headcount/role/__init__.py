"""What each head does (Sec. 5): positional, syntactic, rare words; one file per role.

The package has the singular as its name because `headcount.roles` is the verb, a plain function.
"""
