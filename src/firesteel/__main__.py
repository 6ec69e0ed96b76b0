"""Runs the command line as `python -m firesteel`."""

from firesteel.cli import main

if __name__ == "__main__":
    main()
