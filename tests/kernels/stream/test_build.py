"""Builds of the decode kernels: each build has its own kernels and plans, made once."""

from firesteel.kernels.stream.build import build_kernel, keep, with_delays


def test_kernels_with_delays_are_separate_and_sleep(kernel_cache):
    plain = build_kernel("decode_sample", {"HIDDEN": 256}, threads=512)
    with with_delays():
        slow = build_kernel("decode_sample", {"HIDDEN": 256}, threads=512)
    assert build_kernel("decode_sample", {"HIDDEN": 256}, threads=512).source is plain.source
    assert "nanosleep" in slow.build("sm_90a").ptx and "nanosleep" not in plain.build("sm_90a").ptx


def test_a_plan_is_made_once_and_once_more_with_delays():
    """A call of an op needs its plan twice; remaking it took most of an eager step's time."""
    made = []

    @keep
    def plan(size, *, is_fp4):
        made.append((size, is_fp4))
        return object()

    packed = plan(3, is_fp4=True)
    with with_delays():
        slow = plan(3, is_fp4=True)
        assert slow is plan(3, is_fp4=True)
    assert plan(3, is_fp4=True) is packed is not slow and plan(3, is_fp4=False) is not packed
    assert made == [(3, True), (3, True), (3, False)]
