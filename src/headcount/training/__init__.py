"""Objective, schedule, the loop, checkpoints, distribution."""
