"""Which decisions somebody wants to see."""

from dataclasses import dataclass

from gateway.hits import Record


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which decisions: None is all. `text`, in lower case, is a part of the id, model, user, key or error."""

    endpoint: str | None = None
    tenant: str | None = None
    model: str | None = None
    outcome: str | None = None
    status: str | None = None
    text: str | None = None

    def accepts(self, d: Record) -> bool:
        return (
            (self.tenant is None or d.tenant == self.tenant)
            and (self.endpoint is None or d.endpoint == self.endpoint)
            and (self.model is None or d.model == self.model)
            and (self.outcome is None or (d.outcome or "error") == self.outcome)
            and (self.status is None or (d.error is not None) == (self.status == "error"))
            and (self.text is None or self._has(d, self.text))
        )

    @staticmethod
    def _has(d: Record, text: str) -> bool:
        user = d.principal.user if d.principal else ""
        return any(text in part.lower() for part in (d.id, d.model, user, d.error or "", d.key.hex()))
