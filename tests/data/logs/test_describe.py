"""What a log holds and what it can be used for."""

from pathlib import Path

from fedcascade.data.logs import read_log
from fedcascade.data.logs.describe import describe_log


def test_facts_and_uses(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,items,clicks,propensity\na,1 2,0,0.5\na,1 2,0,0.5\nb,2 1,0 1,0.25\nb,2,,0.5\n")
    facts = describe_log(read_log(path))
    assert (facts["lists"], facts["users"], facts["items"], facts["lengths"]) == (4, 2, 2, [1, 2])
    assert (facts["clicked"], facts["several_clicks"], facts["repeated_rows"]) == (0.75, 0.25, 1)
    assert facts["positions"][1] == {"position": 1, "shown": 3, "clicked": 1 / 3}
    assert facts["least_propensity"] == 0.25
    assert facts["uses"]["ips, snips"] == "yes"
    assert facts["uses"]["rips"] == "no: no propensities of positions"
    assert facts["uses"]["warm start"].startswith("no: no features")
