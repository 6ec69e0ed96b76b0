"""What is wrong with an order, found before a server is started and hours are spent; runs nothing."""

from __future__ import annotations

from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.backend import load_rules
from firesteel.lab.compare import find_bench
from firesteel.lab.engines import HOST, find_words, name_kind
from firesteel.lab.matrix import parse_gates
from firesteel.lab.order import Order
from firesteel.lab.report import read_result
from firesteel.lab.trace import read_kernels
from firesteel.lab.wire import find_root


def check_order(order: Order) -> None:
    """A UserError names the flag that cannot be followed."""
    if order.url:
        find_root(order.url)
    else:
        find_words(order.engine, model=order.model, port=1, folder=Path(HOST))
    if order.reference_url:
        find_root(order.reference_url)
    if order.gates and "6" in order.levels:
        parse_gates(order.gates, engine=order.engine)
    if order.baseline and "5" in order.levels:
        find_bench(read_result(Path(order.baseline)))
    if "1.5" in order.levels:
        check_path_asked_for(order)


def check_path_asked_for(order: Order) -> None:
    if order.trace:
        read_kernels(Path(order.trace))
    if not order.path:
        return
    rules = load_rules(name_kind(order.engine))
    if rules is None:
        raise UserError(f"--path {order.path}: there are no rules for {order.engine}, so no path can be asked for")
    if order.path not in (names := [path.name for path in rules.paths if path.name]):
        raise UserError(f"--path {order.path}: the rules for {rules.engine} have {', '.join(names)}")
