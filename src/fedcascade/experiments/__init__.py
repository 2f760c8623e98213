"""Many runs: plans, parallel and resumable execution, results, figures and reports."""

from fedcascade.checks import require_extra

require_extra("experiments", "an experiment")
