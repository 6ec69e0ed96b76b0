"""Reports while a checkpoint is loaded."""

from firesteel.engine.process.messages import Loading
from firesteel.engine.process.progress import progress_sender


def test_progress_sends_the_last_report_and_few_before():
    sent = []
    report = progress_sender(sent.append)
    for done in range(1001):
        report(done, 1000)
    assert sent[0] == Loading(done_bytes=0, all_bytes=1000) and sent[-1] == Loading(done_bytes=1000, all_bytes=1000)
    assert len(sent) < 100
