"""Takes servers through tests, measures them and writes down what was found; knows servers by their URL."""
