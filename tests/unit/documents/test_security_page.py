"""Each claim of the security page names the test that holds it; what nothing holds stands under "Not enforced"."""

from __future__ import annotations

import pytest

from tests.unit.documents.naming_tests import ROOT, assert_tests_exist, rows

TEXT = (ROOT / "docs" / "security.md").read_text()
TABLES = ("## Who could want what", "## Bounds")
CLAIMS = [(row[0][:60], row[-1]) for heading in TABLES for row in rows(TEXT, heading)]


@pytest.mark.parametrize(("claim", "named"), CLAIMS, ids=[claim for claim, _ in CLAIMS])
def test_a_claim_names_a_test_that_there_is(claim: str, named: str) -> None:
    assert claim
    assert_tests_exist(named)


def test_what_nothing_holds_is_said() -> None:
    assert len(rows(TEXT, TABLES[0])) >= 20
    assert len(rows(TEXT, TABLES[1])) >= 10
    assert TEXT.count("\n## Not enforced\n") == 1
