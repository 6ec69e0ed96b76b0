"""The network's ops: contract, reference, implementations and samples, one file per op."""
