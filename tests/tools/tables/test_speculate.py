"""The table of steps that verify drafted tokens."""

from tables import speculate


def test_every_record_is_in_the_table_with_its_cost():
    records = speculate.read_verify()
    rows = [row.strip("| ").split(" | ") for row in speculate.verify_table(records).splitlines()[2:]]
    requests = sorted({record.parameters["requests"] for record in records})
    assert len(rows) * len(requests) == len(records)
    for record in records:
        facts = record.parameters
        cells = rows[facts["rows"] - 1][1 + 4 * requests.index(facts["requests"]) :]
        assert cells[0] == f"{record.median:.2f}"
        plain = next(
            other.median
            for other in records
            if (other.parameters["requests"], other.parameters["rows"]) == (facts["requests"], 1)
        )
        assert abs(float(cells[1]) - record.median / plain) < 0.006
