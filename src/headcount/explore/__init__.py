"""The live page: type a sentence, look at its heads, switch them off (extra: explore)."""
