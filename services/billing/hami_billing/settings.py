"""Settings of the billing service, from ``HAMI_*`` variables."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hami_runtime.settings import ApiSettings


class Settings(ApiSettings, frozen=True, kw_only=True):
    """Everything that can be set."""

    database_url: Annotated[
        str,
        Meta(description="database, as SQLAlchemy's URL: sqlite or postgresql+psycopg", extra={"secret": True}, min_length=1),
    ] = "sqlite:////data/billing.db"
    kept_days: Annotated[int, Meta(description="how many days the ledger keeps what has ended", ge=7, le=36_500)] = 400
    prices_file: Annotated[str, Meta(description="price list (YAML), read again for each bill; empty means that bills have no prices")] = ""
