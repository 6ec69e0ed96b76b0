"""Libraries in native code: their panics as exceptions, and the stack that they need."""
