"""A log that is shuffled, has bad rows and ids with spaces, or comes as events, says what the clean one says."""

from pathlib import Path

import messy_log


def test_a_messy_log_and_its_events_say_what_the_clean_one_says(tmp_path: Path) -> None:
    found, notes, _ = messy_log.compare(3000, 1, tmp_path)
    for name in ("messy", "events"):
        for command in ("describe", "fit", "evaluate"):
            assert found[name][command] == found["clean"][command], (name, command)
    skipped = [note for note in notes if "skipped" in note]
    assert len(skipped) == len(messy_log.BAD)
    assert "was sorted" in notes[0]
