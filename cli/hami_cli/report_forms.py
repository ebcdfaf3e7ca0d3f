"""The report written as text, Markdown or one HTML page. Pure.

What tenants can write (names, reasons) is escaped in each form. The page is one file that asks no other host for anything: its charts are inline
SVG, its style follows the reader's choice of light or dark, and every figure of a chart is in a table too.
"""

from __future__ import annotations

import textwrap
from html import escape

from hami_cli.output import columns, plain, strong
from hami_cli.report_document import Bar, Chart, Document, Section, Table
from hami_cli.tables import cut_middle
from hami_protocol.figures import rounded

WIDTH = 100
MOST_BARS = 200
_ROW_PIXELS = 22
_LABEL_PIXELS = 300
_CHART_PIXELS = 860
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#~"})


def text(document: Document) -> str:
    """For a terminal or a mail."""
    parts = [strong(document.title), document.time]
    for section in document.sections:
        parts += ["", strong(section.title)]
        parts += [""] if section.paragraphs or section.points else []
        parts += [textwrap.fill(plain(each), WIDTH) for each in section.paragraphs]
        parts += [textwrap.fill(plain(each), WIDTH, initial_indent="- ", subsequent_indent="  ") for each in section.points]
        for table in section.tables:
            parts += ["", *([table.caption] if table.caption else []), columns(table.headers, table.rows) if table.rows else "none"]
    return "\n".join(parts)


def markdown(document: Document) -> str:
    """For an issue or a wiki."""
    parts = [f"# {document.title}", "", document.time]
    for section in document.sections:
        parts += ["", f"## {section.title}"]
        parts += [line for each in section.paragraphs for line in ("", _inline(each))]
        parts += ["", *(f"- {_inline(each)}" for each in section.points)] if section.points else []
        for table in section.tables:
            parts += ["", *([f"{_inline(table.caption)}:", ""] if table.caption else []), *_markdown_table(table)]
    return "\n".join(parts)


def html(document: Document) -> str:
    """For a browser."""
    sections = "\n".join(_html_section(section) for section in document.sections)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)} {escape(document.time)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(document.title)}</h1>\n<p><time>{escape(document.time)}</time></p>\n{sections}\n</main>\n</body>\n</html>"
    )


def _inline(value: str) -> str:
    return plain(value).translate(_SPECIAL)


def _markdown_table(table: Table) -> list[str]:
    if not table.rows:
        return ["none"]
    rows = (table.headers, ("---",) * len(table.headers))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return lines + [f"| {' | '.join(_inline(cell) for cell in row)} |" for row in table.rows]


def _html_section(section: Section) -> str:
    parts = [f"<section>\n<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{_text(each)}</p>" for each in section.paragraphs]
    if section.points:
        parts.append("<ul>" + "".join(f"<li>{_text(each)}</li>" for each in section.points) + "</ul>")
    parts += [_svg(chart) for chart in section.charts if chart.bars]
    parts += [_html_table(table) for table in section.tables]
    return "\n".join([*parts, "</section>"])


def _html_table(table: Table) -> str:
    caption = f"<caption>{_text(table.caption)}</caption>" if table.caption else ""
    if not table.rows:
        return f"<p>{_text(table.caption + ': none' if table.caption else 'None.')}</p>"
    head = "".join(f'<th scope="col">{_text(each)}</th>' for each in table.headers)
    body = "\n".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _svg(chart: Chart) -> str:
    """Bars, one row each; beyond ``MOST_BARS`` the table has the rest."""
    shown = chart.bars[:MOST_BARS]
    height = (len(shown) + 1) * _ROW_PIXELS + 8
    legend = "".join(
        f'<rect class="bar{place}" x="{_LABEL_PIXELS + 140 * place}" y="4" width="12" height="12"/>'
        f'<text x="{_LABEL_PIXELS + 140 * place + 18}" y="15">{_text(name)}</text>'
        for place, name in enumerate(chart.legend)
    )
    rows = "".join(_bars(bar, (place + 1) * _ROW_PIXELS) for place, bar in enumerate(shown))
    rest = f"<p>The table has the other {len(chart.bars) - len(shown)} as well.</p>" if len(chart.bars) > len(shown) else ""
    return (
        f'<figure><figcaption>{_text(chart.title)}</figcaption><svg role="img" aria-label="{_text(chart.title)}" '
        f'viewBox="0 0 {_CHART_PIXELS} {height}" width="{_CHART_PIXELS}" height="{height}">{legend}{rows}</svg>{rest}</figure>'
    )


def _bars(bar: Bar, y: int) -> str:
    figures = [figure for figure in (bar.percent, bar.second_percent) if figure is not None]
    room = _CHART_PIXELS - _LABEL_PIXELS - 110
    thickness = 16 // len(figures)
    label = cut_middle(bar.label, 46)
    said = " / ".join(f"{rounded(figure)} %" for figure in figures)
    drawn = "".join(
        f'<rect class="track" x="{_LABEL_PIXELS}" y="{y + place * thickness}" width="{room}" height="{thickness - 1}"/>'
        f'<rect class="bar{place}" x="{_LABEL_PIXELS}" y="{y + place * thickness}" width="{room * min(max(figure, 0.0), 100.0) / 100:.1f}" '
        f'height="{thickness - 1}"/>'
        for place, figure in enumerate(figures)
    )
    return (
        f'<g><title>{_text(bar.label)}: {said}</title><text class="label" x="{_LABEL_PIXELS - 8}" y="{y + 13}">{_text(label)}</text>{drawn}'
        f'<text x="{_LABEL_PIXELS + room + 8}" y="{y + 13}">{said}</text></g>'
    )


def _text(value: str) -> str:
    return escape(plain(value))


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --track: #eceff2; --one: #2a6fbb; --two: #b5651d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0f1419; --line: #30363d; --track: #21262d; --one: #6cb0ff; --two: #f0a060; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem; }
h2 { border-bottom: 1px solid var(--line); padding-bottom: .3rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: left; white-space: nowrap; }
td:last-child { white-space: normal; }
figure { margin: 1rem 0; overflow-x: auto; }
figcaption { font-weight: 600; }
svg text { fill: var(--ink); font-size: 12px; }
svg .label { text-anchor: end; }
.track { fill: var(--track); } .bar0 { fill: var(--one); } .bar1 { fill: var(--two); }
@media print { main { max-width: none; } figure, tr { break-inside: avoid; } }
"""
