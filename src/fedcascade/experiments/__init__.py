"""Many runs: plans, parallel and resumable execution, results, figures and reports."""
