"""Replay of a recorded upload log gives the recorded answers and state, to the last bit."""

import pytest

from .record_uploads import SERVED, load, replay


@pytest.mark.parametrize("policy", SERVED)
def test_a_recorded_log_replays_to_the_recorded_state(policy: str) -> None:
    uploads, state = load()[policy]
    assert len(uploads) > 40
    assert replay(policy, uploads) == state
