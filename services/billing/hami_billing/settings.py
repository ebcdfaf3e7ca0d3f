"""Settings of the billing service, from ``HAMI_*`` variables."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hami_runtime.settings import ProcessSettings


class Settings(ProcessSettings, frozen=True, kw_only=True):
    """Everything that can be set."""

    database_url: Annotated[
        str,
        Meta(description="database, as SQLAlchemy's URL: sqlite or postgresql+psycopg", extra={"secret": True}, min_length=1),
    ] = "sqlite:////data/billing.db"
    kept_days: Annotated[int, Meta(description="how many days the ledger keeps what has ended", ge=7, le=36_500)] = 400
    prices_file: Annotated[str, Meta(description="price list (YAML), read again for each bill; empty means that bills have no prices")] = ""
    api_host: Annotated[str, Meta(description="address of /v1/bill")] = "127.0.0.1"
    api_port: Annotated[int, Meta(description="its port; 0 means any free one", ge=0, le=65535)] = 0
    api_open: Annotated[bool, Meta(description="answer /v1 without a token; only on a loopback address")] = False
    api_tls: Annotated[bool, Meta(description="serve /v1 over TLS, with a self-signed certificate; for the API server's service proxy")] = (
        False
    )

    def __post_init__(self) -> None:
        """Refuse what would be unsafe."""
        loopback = self.api_host in {"localhost", "::1"} or self.api_host.startswith("127.")
        if self.api_open and not loopback:
            raise ValueError(f"HAMI_API_OPEN: true with HAMI_API_HOST {self.api_host!r}; accepted: a loopback address, or false")
