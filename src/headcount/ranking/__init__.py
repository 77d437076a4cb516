"""How much each head matters (Sec. 4): LRP, confidence, ablation, gradient, and their agreement."""
