"""Speed, memory and size of runs and exports, side by side."""
