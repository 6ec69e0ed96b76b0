"""Reports while a checkpoint is loaded."""

from firesteel.engine.process.progress import thin_out


def test_last_report_is_sent_and_few_before():
    sent = []
    report = thin_out(lambda done, total: sent.append((done, total)))
    for done in range(1001):
        report(done, 1000)
    assert sent[0] == (0, 1000) and sent[-1] == (1000, 1000)
    assert len(sent) < 100
