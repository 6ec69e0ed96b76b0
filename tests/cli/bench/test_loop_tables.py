"""What the tables of bench decode --engine say of a start."""

from firesteel.cli.bench.loop_tables import _caches
from firesteel.measure.decode.kernel_caches import CacheUse
from firesteel.measure.loop.figures import Startup


def test_each_cache_is_warm_or_cold_in_words():
    caches = {"CUDA": CacheUse(held=7, compiled=0), "Triton": CacheUse(held=0, compiled=9)}
    startup = Startup(first_token_s=1.0, second_token_s=2.0, caches=caches)
    assert _caches(startup) == ", CUDA kernels' cache warm, Triton kernels' cache cold (9 compiled)"
    assert _caches(Startup(first_token_s=1.0, second_token_s=2.0, caches={})) == ""
