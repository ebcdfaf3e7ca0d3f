"""``hami report``: the usage report, in the form that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hami_cli import live, report_forms
from hami_cli.exits import FAILED, run
from hami_cli.output import Format, encoded
from hami_cli.places import ContextOption, DeviceConfigOption, KubeconfigOption, NatsOption, RegistryOption, TokenOption
from hami_cli.report_document import Document, document
from hami_cli.report_facts import Report
from hami_cli.report_facts import report as report_on


class Form(StrEnum):
    """What the report is written as."""

    TEXT = "text"
    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"
    YAML = "yaml"


_FORMS: dict[Form, Callable[[Document], str]] = {
    Form.TEXT: report_forms.text,
    Form.MARKDOWN: report_forms.markdown,
    Form.HTML: report_forms.html,
}


def report(
    output: Annotated[Form, typer.Option("--output", "-o", help="What it is written as.")] = Form.TEXT,
    file: Annotated[Path | None, typer.Option("--file", help="Write it here; default: standard output.", dir_okay=False)] = None,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    registry: RegistryOption = "",
    token: TokenOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Report on the cluster in eight sections: nodes, cards, namespaces, workloads, real against booked, capacity, findings.

    [bold]Examples[/]

    $ hami report

    $ hami report -o html --file report.html
    """
    where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, registry=registry, token=token, device_config=device_config)
    content = written(report_on(run("report", live.read(where))), output)
    if file is None:
        print(content)
        return
    try:
        file.write_text(content + "\n", encoding="utf-8")
    except OSError as exc:
        print(f"hami report: {file}: {exc.strerror}", file=sys.stderr)
        raise SystemExit(FAILED) from exc


def written(found: Report, form: Form) -> str:
    """The report in its form."""
    writer = _FORMS.get(form)
    return encoded(found, Format(form.value)) if writer is None else writer(document(found))
