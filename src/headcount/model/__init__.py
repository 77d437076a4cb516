"""The Transformer, its heads and gates, decoding, physical removal."""
