"""Refusals: a status for machines, a word for metrics, a line for people."""


class Refused(ValueError):  # noqa: N818 (a refusal is an answer, not an accident)
    """A request that does not take place; nothing has changed."""

    def __init__(self, status: int, reason: str, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.status, self.reason, self.detail, self.retry_after = status, reason, detail, retry_after


class Unavailable(Refused):
    """The store cannot be written or read just now; what was acknowledged is safe, and trying again may help."""

    def __init__(self, detail: str) -> None:
        super().__init__(503, "store-unavailable", detail, retry_after=1.0)
