"""What is wrong with an order, found before a server is started and hours are spent; runs nothing."""

from __future__ import annotations

from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.client.wire import find_root
from firesteel.lab.compare.compare import find_bench
from firesteel.lab.matrix.matrix import parse_gates
from firesteel.lab.path.backend import Rules, load_rules
from firesteel.lab.report.report import read_result
from firesteel.lab.servers.commands import HOST, find_words, name_kind
from firesteel.lab.spec import Order
from firesteel.lab.trace import count_kernels


def check_order(order: Order) -> None:
    """A UserError names the flag that cannot be followed."""
    if order.url:
        find_root(order.url)
    else:
        find_words(order.engine, model=order.model, port=1, folder=Path(HOST))
    if order.reference_url:
        find_root(order.reference_url)
    if order.gates and "6" in order.levels:
        if order.url:
            raise UserError("--gates: each cell needs a server of its own, and --url names one that runs already")
        parse_gates(order.gates, engine=order.engine)
    if order.baseline and "5" in order.levels:
        find_bench(read_result(Path(order.baseline)))
    if "1.5" in order.levels:
        check_path_asked_for(order)


def check_path_asked_for(order: Order) -> None:
    rules = load_rules(name_kind(order.engine))
    if order.trace:
        check_trace(order, rules)
    if not order.path:
        return
    if rules is None:
        raise UserError(f"--path {order.path}: there are no rules for {order.engine}, so no path can be asked for")
    if order.path not in (names := [path.name for path in rules.paths if path.name]):
        raise UserError(f"--path {order.path}: the rules for {rules.engine} have {', '.join(names)}")


def check_trace(order: Order, rules: Rules | None) -> None:
    """A profile that no rule speaks of would be read and judged by nothing."""
    whose = "; with --url, --engine says whose it is" if order.url else ""
    if rules is None:
        raise UserError(f"--trace {order.trace}: there are no rules for {order.engine} to judge it by{whose}")
    if not any(sign.kernels for sign in rules.signs):
        raise UserError(
            f"--trace {order.trace}: {rules.engine} is judged by its ledger, not by a profile: leave it out{whose}"
        )
    count_kernels(Path(order.trace))
