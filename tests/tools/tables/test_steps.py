"""Tables of decoding steps."""

from dataclasses import replace

from tables import steps


def test_steps_with_fp8_pages_are_separate():
    plain = steps.read_decode()[0]
    fp8 = replace(plain, config={**plain.config, "cache": {**plain.config["cache"], "kv_dtype": "fp8"}})
    rows = steps.decode_table([plain, fp8]).splitlines()[2:]
    assert "| as shipped |" in rows[0] and "| as shipped, FP8 KV |" in rows[1]


def test_decoding_through_the_engine_shows_the_figures_of_its_records():
    records = steps.read_loop()
    old = {"share_of_floor", "bytes_a_token", "stages_ms_a_step"}
    plain = [
        replace(record, parameters={k: v for k, v in record.parameters.items() if k not in old})
        for record in records
    ]
    assert "floor" not in steps.loop_table(plain)
    new = {"share_of_floor": 0.7, "bytes_a_token": 5.04e9, "stages_ms_a_step": {"schedule": 0.043}}
    mixed = [replace(plain[0], parameters={**plain[0].parameters, **new}), *plain[1:]]
    heads, _, first, second, *_ = steps.loop_table(mixed).splitlines()
    assert heads.endswith("| GB per token | share of the floor | scheduling us |")
    assert first.endswith("| 5.04 | 70 % | 43 |") and second.endswith("|  |  |  |")
