"""Steps that were launched: open until closed, dropped when nobody waits."""

from firesteel.engine.step.flight import Flight


def test_flight_is_open_from_the_first_step_until_it_is_closed():
    flight = Flight()
    assert not flight.is_open
    flight.add("first", 1)
    flight.add("second", 2)
    assert flight.is_open and flight.last == "second" and list(flight.launched) == [("first", 1), ("second", 2)]
    flight.close()
    assert not flight.is_open and len(flight.launched) == 2


def test_steps_that_nobody_waits_for_are_dropped_from_the_front():
    flight = Flight()
    for plan in ("a", "b", "c"):
        flight.add(plan, 0)
    flight.drop_unwanted(lambda plan: plan == "c")
    assert list(flight.launched) == [("c", 0)]
    flight.drop_unwanted(lambda plan: False)
    assert not flight.launched
