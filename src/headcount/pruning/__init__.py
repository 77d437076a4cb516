"""Pruning: learned gates, exact numbers, scores; then the closed heads are physically removed."""
