"""Tables of `bench decode`: the state of kernel caches at a start."""

from firesteel.cli.bench.decode_tables import describe_caches
from firesteel.measure.decode.kernel_caches import CacheUse
from firesteel.measure.loop.figures import Startup


def test_caption_names_the_state_of_each_cache():
    caches = {"CUDA": CacheUse(held=7, compiled=0), "Triton": CacheUse(held=0, compiled=9)}
    startup = Startup(first_token_s=1.0, second_token_s=2.0, caches=caches)
    assert describe_caches(startup) == ", CUDA kernels' cache warm, Triton kernels' cache cold (9 compiled)"
    assert describe_caches(Startup(first_token_s=1.0, second_token_s=2.0, caches={})) == ""
