"""Shows what differs in assertions of the scheduler's world."""

import pytest

pytest.register_assert_rewrite("tests.engine.scheduler_world")
