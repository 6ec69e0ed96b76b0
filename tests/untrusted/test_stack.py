"""Calls with a stack of their own."""

import threading

import pytest

from firesteel.untrusted.stack import call_with_stack


def test_result_and_exception_come_back():
    assert call_with_stack(1 << 20, lambda: 7) == 7
    with pytest.raises(KeyboardInterrupt):
        call_with_stack(1 << 20, lambda: (_ for _ in ()).throw(KeyboardInterrupt))


def test_stack_has_the_size_and_later_threads_the_default():
    def mapped_kib():
        with open("/proc/self/maps", encoding="ascii") as maps:
            spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
        return [(end - start) >> 10 for start, end in spans]

    size_kib, before = (48 << 10) + 20, threading.stack_size()  # a size that nothing else maps
    assert size_kib not in mapped_kib()
    assert size_kib in call_with_stack(size_kib << 10, mapped_kib)
    assert threading.stack_size() == before
