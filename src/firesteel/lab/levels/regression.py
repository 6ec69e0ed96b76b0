"""Level 5: this run's benchmark compared with an earlier one."""

from __future__ import annotations

from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.compare.compare import compare, smallest_visible_change
from firesteel.lab.compare.samples import take_samples
from firesteel.lab.level import REGRESSION
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.baseline import find_baseline, keep_baseline
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.result import LabResult, read_result
from firesteel.lab.spec import LabSpec
from firesteel.lab.surroundings import list_differences
from firesteel.lab.verdict import Verdict

QUIETER = "measure on an idle machine, and without --quick"


def check_regression(context: LevelContext) -> LevelResult:
    """Without --baseline, compares with the first run with these settings in the folder."""
    spec, result = context.spec, context.result_so_far()
    if not result.has_counted_bench:
        reason = "nothing to compare: the benchmark did not pass, or does not count"
        return LevelResult(level=REGRESSION, verdict=Verdict.UNPROVEN, reason=reason)
    device = "" if result.surroundings is None else result.surroundings.device or ""
    path = Path(spec.baseline) if spec.baseline else find_baseline(spec, device, context.folder)
    if not spec.baseline and not path.exists():
        return start_baseline(result, path)
    return compare_with_baseline(spec, result, path)


def start_baseline(result: LabResult, path: Path) -> LevelResult:
    """Keeps this run as the baseline, because there is no earlier one."""
    keep_baseline(result, path)
    visible = smallest_visible_change(result.counted_bench())
    checks = Checks(REGRESSION)
    checks.facts |= {"baseline": str(path), "visible_change": visible}
    hint = "" if visible is None else f"; half of its figures would show a change of {100 * visible:.1f} %"
    words = f"the first run with these settings: kept as the baseline of later runs ({path}){hint}"
    checks.add("baseline", Verdict.NOT_APPLICABLE, words)
    return checks.result()


def compare_with_baseline(spec: LabSpec, result: LabResult, path: Path) -> LevelResult:
    try:
        before = read_result(path)
        compared = compare(
            take_samples(before.counted_bench()),
            take_samples(result.counted_bench()),
            threshold=spec.slower / 100,
            memory_gb=spec.more_gb,
            differences=list_differences(before.surroundings, result.surroundings),
        )
    except UserError as error:
        return LevelResult(level=REGRESSION, verdict=Verdict.FAILED, reason=f"nothing to compare: {error}")
    checks = Checks(REGRESSION)
    checks.facts["baseline"] = str(path)
    since = f"compared with the run of {before.time_utc or 'unknown time'}"
    cure = QUIETER if compared.is_too_noisy else ""
    if compared.regressions:
        cure = "" if spec.baseline else f"if the change is intended, remove {path}"
    checks.add("speed and memory", compared.verdict, f"{compared.in_words()}, {since}", cure=cure)
    return checks.result(comparison=compared)
