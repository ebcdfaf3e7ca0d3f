"""The usage report as a document of eight sections, whatever it is then written as. Pure: facts in, sentences, tables and bars out."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from hami_cli.report_facts import Report, Totals, ratio_percent
from hami_cli.snapshot import BookedCard, HeldFact
from hami_protocol.figures import rounded

TITLE = "Accelerator usage report"


class Table(Struct, frozen=True, kw_only=True):
    """A table."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


class Bar(Struct, frozen=True, kw_only=True):
    """One bar of a chart, 0 to 100, and a second figure beside it where there is one."""

    label: str
    percent: float
    second_percent: float | None = None


class Chart(Struct, frozen=True, kw_only=True):
    """Bars, for those forms that can draw them. The same figures are in a table of the section."""

    title: str
    bars: tuple[Bar, ...]
    legend: tuple[str, ...]


class Section(Struct, frozen=True, kw_only=True):
    """One of the eight."""

    title: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()


class Document(Struct, frozen=True, kw_only=True):
    """The report."""

    title: str
    time: str
    sections: tuple[Section, ...]


def document(report: Report) -> Document:
    """The document on ``report``."""
    return Document(
        title=TITLE,
        time=report.time,
        sections=(
            Section(title="1. Executive summary", paragraphs=(report.summary,)),
            _cluster(report),
            _cards(report.cards),
            _namespaces(report),
            _workloads(report.workloads),
            _real(report),
            _capacity(report),
            Section(
                title="8. Key findings and caveats",
                points=report.findings or ("Nothing stands out.",),
                paragraphs=report.caveats,
            ),
        ),
    )


def _cluster(report: Report) -> Section:
    totals: Totals = report.totals
    figures = Table(
        headers=("what", "booked", "of", "in percent"),
        rows=(
            (
                "memory MiB",
                str(totals.allocated_memory_mib),
                str(totals.memory_mib),
                _percent(totals.allocated_memory_mib, totals.memory_mib),
            ),
            ("cores", str(totals.allocated_cores), str(totals.cores), _percent(totals.allocated_cores, totals.cores)),
        ),
        caption=f"{totals.nodes} nodes ({totals.nodes_ready} ready), {totals.cards} cards ({totals.cards_usable} take new pods)",
    )
    nodes = Table(
        headers=("node", "ready", "cards", "memory MiB", "of", "memory", "cores"),
        rows=tuple(
            (
                node.name,
                "yes" if node.ready else "no",
                str(node.cards),
                str(node.allocated_memory_mib),
                str(node.memory_mib),
                _percent(node.allocated_memory_mib, node.memory_mib),
                _percent(node.allocated_cores, node.cores),
            )
            for node in report.nodes
        ),
    )
    bars = tuple(
        Bar(
            label=node.name,
            percent=ratio_percent(node.allocated_memory_mib, node.memory_mib),
            second_percent=ratio_percent(node.allocated_cores, node.cores),
        )
        for node in report.nodes
    )
    return Section(
        title="2. Cluster and nodes",
        tables=(figures, nodes),
        charts=(Chart(title="Booked, per node", bars=bars, legend=("memory", "cores")),),
    )


def _cards(cards: tuple[BookedCard, ...]) -> Section:
    rows = tuple(
        (
            card.node,
            str(card.index),
            card.uuid,
            card.model,
            f"{card.allocated_cores} / {card.cores}",
            _percent(card.allocated_cores, card.cores),
            f"{card.allocated_memory_mib} / {card.memory_mib}",
            _percent(card.allocated_memory_mib, card.memory_mib),
            str(card.containers),
            card.status,
        )
        for card in cards
    )
    headers = ("node", "index", "UUID", "model", "cores", "cores", "memory MiB", "memory", "containers", "status")
    steps = [sum(_tenth(card) == tenth for card in cards) for tenth in range(11)]
    labels = ("nothing", *(f"up to {10 * tenth} %" for tenth in range(1, 11)))
    bars = tuple(
        Bar(label=f"{label}: {count}", percent=ratio_percent(count, len(cards))) for label, count in zip(labels, steps, strict=True)
    )
    return Section(
        title="3. Cards",
        tables=(Table(headers=headers, rows=rows),),
        charts=(Chart(title="How full cards are: number of cards by booked memory", bars=bars, legend=("part of all cards",)),),
    )


def _namespaces(report: Report) -> Section:
    rows = tuple(
        (
            each.name,
            str(each.pods),
            str(each.memory_mib),
            f"{each.memory_mib / 1024:.1f}",
            f"{each.memory_percent:.1f} %",
            str(each.cores),
            f"{each.cores_percent:.1f} %",
            ", ".join(each.main_pods),
        )
        for each in report.namespaces
    )
    bars = tuple(Bar(label=each.name, percent=each.memory_percent, second_percent=each.cores_percent) for each in report.namespaces)
    headers = ("namespace", "pods", "memory MiB", "GiB", "of booked", "cores", "of booked", "main pods")
    return Section(
        title="4. Namespaces",
        tables=(Table(headers=headers, rows=rows),),
        charts=(Chart(title="Who holds what is booked", bars=bars, legend=("memory", "cores")),),
    )


def _workloads(held: tuple[HeldFact, ...]) -> Section:
    headers = ("namespace", "pod", "container", "node", "card", "cores", "memory MiB", "kind")
    rows = tuple(
        (each.namespace, each.pod, each.container, each.node, each.uuid, str(each.cores or "-"), str(each.memory_mib), each.kind)
        for each in held
    )
    return Section(title="5. Workloads", tables=(Table(headers=headers, rows=rows),))


def _real(report: Report) -> Section:
    title = "6. Real against booked"
    if not report.measured:
        return Section(title=title, paragraphs=("Nobody has measured what is used, so nothing can be compared.",))
    cards = Table(
        headers=("node", "card", "memory used MiB", "booked MiB", "of the card's", "compute used", "cores booked"),
        rows=tuple(
            (
                each.node,
                each.uuid,
                str(each.used_memory_mib),
                str(each.allocated_memory_mib),
                _percent(each.used_memory_mib, each.memory_mib),
                f"{each.used_sm_percent} %",
                str(each.allocated_cores),
            )
            for each in report.card_use
        ),
    )
    bars = tuple(
        Bar(
            label=f"{each.node} {each.uuid}",
            percent=ratio_percent(each.allocated_memory_mib, each.memory_mib),
            second_percent=ratio_percent(each.used_memory_mib, each.memory_mib),
        )
        for each in report.card_use
    )
    tables = [cards]
    for caption, listed in (("Hold much and use little", report.idle_holders), ("Use more than is booked", report.over_users)):
        headers = ("namespace", "pod", "container", "cards", "booked MiB", "used MiB", "compute used")
        rows = tuple(_by_container(listed))
        tables.append(Table(headers=headers, rows=rows, caption=caption))
    chart = Chart(title="Memory of measured cards", bars=bars, legend=("booked", "used"))
    return Section(title=title, tables=tuple(tables), charts=(chart,))


def _by_container(listed: Iterable[HeldFact]) -> Iterable[tuple[str, ...]]:
    """A row for each container: its cards counted, its memory added up, and the card that it uses most."""
    grouped: dict[tuple[str, str, str], list[HeldFact]] = {}
    for each in listed:
        grouped.setdefault((each.namespace, each.pod, each.container), []).append(each)
    for container, held in grouped.items():
        booked, used = sum(each.memory_mib for each in held), sum(each.used_memory_mib or 0 for each in held)
        yield (*container, str(len(held)), str(booked), str(used), f"{max(each.used_sm_percent or 0 for each in held)} %")


def _capacity(report: Report) -> Section:
    fit = report.fit
    points = (
        f"Cards that take new pods: {fit.idle_cards} idle, {fit.full_cards} full, {fit.fragmented_cards} partly used.",
        f"A whole card: {_yes(fit.idle_cards)}, {fit.idle_cards} free.",
        f"A quarter of a card: {_yes(fit.quarter_shares)}, {fit.quarter_shares} would fit; most free on one card: {fit.largest_free_mib} MiB.",
        f"Several whole cards on one node: at most {fit.most_idle_on_one_node}.",
    )
    headers = ("namespace", "pod", "since", "why it waits")
    waiting = Table(
        headers=headers,
        rows=tuple((each.namespace, each.pod, each.since, each.reason) for each in report.waiting),
        caption="Pods that wait for a device",
    )
    return Section(title="7. Capacity and scheduling", points=points, tables=(waiting,))


def _yes(count: int) -> str:
    return "yes" if count else "no"


def _tenth(card: BookedCard) -> int:
    """0 for nothing booked, else the tenth of the card's memory that is begun, 1 to 10."""
    if not card.memory_mib or not card.allocated_memory_mib:
        return 0
    return min(-(-10 * card.allocated_memory_mib // card.memory_mib), 10)


def _percent(part: float, whole: float) -> str:
    return f"{rounded(ratio_percent(part, whole))} %" if whole else "-"
