"""An upload passes few functions and types on its way from feedback to a durable answer and back."""

import re
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "trace_exchange.py"
MOST_FUNCTIONS, MOST_TYPES = 45, 4  # these only go down


def test_an_exchange_passes_few_functions_and_types() -> None:
    done = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True, timeout=120, check=True)
    counted = re.search(r"(\d+) of \d+ functions carry the upload or the answer", done.stdout)
    types = re.search(r"in (\d+) types", done.stdout)
    assert counted is not None
    assert types is not None
    assert int(counted[1]) <= MOST_FUNCTIONS, done.stdout
    assert int(types[1]) <= MOST_TYPES, done.stdout
