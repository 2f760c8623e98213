"""Refusals: an HTTP status, a reason for metrics, and a line for people."""


class Refused(ValueError):  # noqa: N818 (a refusal is an answer, not an accident)
    """A request that was refused and changed nothing."""

    def __init__(self, status: int, reason: str, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.status, self.reason, self.detail, self.retry_after = status, reason, detail, retry_after


class Unavailable(Refused):
    """A store that cannot be written or read for now. Acknowledged uploads are safe; retry later."""

    def __init__(self, detail: str) -> None:
        super().__init__(503, "store-unavailable", detail, retry_after=1.0)
