"""What answers a miss: servers elsewhere, and the local engine."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.fields import BaseUrl, Count, Duration, Fraction, Secret, Section, Size, Text, Usd, Whole


class Timeouts(Section):
    """Seconds that each phase of a call may take."""

    connect: Duration = 5.0
    first_byte: Duration = 300.0
    between_chunks: Duration = 60.0


class _Backend(Section):
    kind: str
    max_queue: Count = 64
    timeouts: Timeouts = Timeouts()
    retries: Annotated[Whole, Field(ge=0, le=10)] = 2
    hourly_cost: Usd | None = None
    utilization: Fraction | None = None


class LocalBackend(_Backend):
    """A torch model in a process of its own."""

    kind: Literal["local"]
    model: Text = "SmolLM2-135M-Instruct"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    quantize: Literal["none", "int8", "int4"] = "none"
    max_running: Count = 16
    kv_memory: Size = 2**30


class RemoteBackend(_Backend):
    """An OpenAI-style server: one (`base_url`) or several that answer alike (`replicas`)."""

    kind: Literal["remote"]
    base_url: BaseUrl | None = None
    api_key: Secret | None = None
    replicas: tuple[BaseUrl, ...] = ()
    balance: Literal["prefix", "least_loaded", "round_robin"] = "prefix"
    max_running: Count | None = None
    upstream_batches: bool = False

    @model_validator(mode="after")
    def _one_or_many(self) -> "RemoteBackend":
        if (self.base_url is None) == (not self.replicas):
            raise ValueError("needs either `base_url` or `replicas`")
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URLs of all replicas, at least one."""
        return self.replicas if self.base_url is None else (self.base_url,)


Backend = Annotated[LocalBackend | RemoteBackend, Field(discriminator="kind")]
