"""`python -m headcount`, which torchrun needs."""

from headcount.cli import main

if __name__ == "__main__":
    main()
