"""An observer of lab runs for tests."""


class RecordingObserver:
    def __init__(self):
        self.words = []

    def begin(self, level):
        self.words.append(f"begin {level}")

    def progress(self, words):
        self.words.append(words)

    def end(self, result):
        self.words.append(f"end {result.level}")
