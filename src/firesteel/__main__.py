"""`python -m firesteel`; knows only the command line."""

from firesteel.cli import main

if __name__ == "__main__":
    main()
