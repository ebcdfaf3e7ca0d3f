"""Every loop of every service, as the code has it: it handles its items inside ``Isolation``, or hands them to a function that does, and a test feeds
it an item whose handler raises; or it has no items of others. A new loop fails here until it is in one of the three tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = tuple(sorted([*ROOT.glob("services/*/hami_*/**/*.py"), *ROOT.glob("libs/runtime/hami_runtime/**/*.py")]))

AGENT = "test_agent_loops.py::test_an_item_that_fails_keeps_the_next_from_nothing"
SCHEDULER = "test_scheduler_loops.py::test_an_item_that_fails_keeps_the_next_from_nothing"
NODES = "test_registry_loops.py::test_a_node_that_fails_keeps_no_other_from_being_recorded"
OTHER = "test_other_loops.py::test_"

ISOLATED = {
    "agent.NodeAgent.flag_running_pods": AGENT,
    "bus_certificate.BusCertificate.run": OTHER + "the_agents_certificate_for_nats_is_read_again",
    "cleanup.Cleanup.run": AGENT,
    "grants_view.GrantsView._take_live": AGENT,
    "grants_view.GrantsView._refresh_for_ever": OTHER + "grants_are_looked_up_again",
    "kubelet.KubeletConnection.run": OTHER + "the_agent_registers_with_kubelet_again",
    "mig_instances.MigInstances.run": AGENT,
    "monitor.Monitor.run": AGENT,
    "node_config.NodeConfig.run": OTHER + "the_nodes_configuration_is_read_again",
    "node_devices.NodeDevices.watch": AGENT,
    "node_devices.NodeDevices.rescan": AGENT,
    "node_devices.NodeDevices.recover": AGENT,
    "region_size.RegionSize.run": AGENT,
    "registration.Registration.run": AGENT,
    "resize.Resizer.run": AGENT,
    "republishing.Republishing.run": AGENT,
    "responder.Responder._hear_for_ever": OTHER + "the_callout_subscribes_again",
    "responder.Responder._answer_for_ever": OTHER + "the_callout_answers_the_next_question",
    "devices.DeviceMirror.watch_sources": NODES,
    "devices.DeviceMirror.carry_out": NODES,
    "outcomes.OutcomeFollower.follow": "test_registry_loops.py::test_an_outcome_that_fails_keeps_no_other_from_being_carried_out",
    "reports.ReportGate._check_for_ever": OTHER + "the_gate_passes_the_next_report",
    "follower.Follower._for_ever": OTHER + "the_ledger_follows_a_stream_again",
    "follower.Follower.sweep": OTHER + "the_ledger_is_swept_again",
    "feed.Feed._follow": OTHER + "the_page_shows_the_next_event",
    "feed.Feed._ask": OTHER + "the_page_asks_the_scheduler_again",
    "feed.Feed._tell": OTHER + "the_page_publishes_the_next_change",
    "adopting.Adopting._serve": SCHEDULER,
    "agents.Agents.run": SCHEDULER,
    "binder.Binder.run": SCHEDULER,
    "feeds.Feeds._follow": SCHEDULER,
    "gathering.Gathering._read_for_ever": SCHEDULER,
    "nodelock.NodeLocks._sweep_for_ever": SCHEDULER,
    "nodelock.NodeLocks._remove_for_ever": SCHEDULER,
    "preempting.Preempting._serve": SCHEDULER,
    "tending.Tending.run": SCHEDULER,
    "keeper.CertificateKeeper.run": OTHER + "the_webhook_looks_after_its_certificate_again",
    "keeper.MountedCertificate.run": OTHER + "a_mounted_certificate_is_read_again",
}
"""Loops that isolate their items themselves, and the test of each."""

HANDED_ON = {
    "devices.DeviceMirror.follow_bus": ("devices.DeviceMirror._take_in", NODES),
    "reports.ReportGate.run": ("reports.ReportGate._check_for_ever", OTHER + "the_gate_passes_the_next_report"),
    "feeds.Feeds._read": ("feeds.Feeds._take", SCHEDULER),
    "feeds.Feeds._read_to_the_end": ("feeds.Feeds._take", SCHEDULER),
    "informer.Informer._follow": ("informer.Informer._call_once", SCHEDULER),
    "informer.Informer._follow_for_ever": ("informer.Informer._call_once", SCHEDULER),
    "events.EventRecorder.run": ("events.EventRecorder._write", AGENT),
    "lease.LeaderElector.run": ("lease.LeaderElector._try", SCHEDULER),
    "outbox.Outbox._send_for_ever": ("outbox.Outbox._unexpected", AGENT),
    "follower.Follower._follow": ("follower.Follower._for_ever", OTHER + "the_ledger_follows_a_stream_again"),
    "kubelet.KubeletConnection._stay_registered": ("kubelet.KubeletConnection.run", OTHER + "the_agent_registers_with_kubelet_again"),
}
"""Loops whose items are isolated by another function, that function, and the test."""

WAITS = "waits for a condition, or tries one thing again; what it raises is its caller's"
OWN = "its values are our own, and are made by code that other tests cover"
ONE_CALLER = "serves one connection: what fails ends that connection alone"
CLIENT = "keeps a connection or a reader alive: whatever is raised is logged, and it goes on"
WITHOUT_ITEMS = {
    "agent.NodeAgent.hand_over": WAITS,
    "agent.NodeAgent.leave": WAITS,
    "bell.Bell.each": WAITS,
    "bell.Bell.until": WAITS,
    "main._mode": WAITS,
    "nvml.NvmlHardware.events": "NVML's events; NodeDevices.watch isolates what it raises",
    "plugin.DevicePlugin.ListAndWatch": ONE_CALLER,
    "profile.ProfileHardware.events": OWN,
    "profile.ProfileFile.events": OWN,
    "registration.Registration._until_due": WAITS,
    "registration.Registration._publish_for_sure": WAITS,
    "seat.Seat.wanted": WAITS,
    "seat.Seat.deserted": WAITS,
    "seat.Seat._locked": WAITS,
    "bus_reads._BusReads._log": ONE_CALLER,
    "server_sent._pass_on": ONE_CALLER,
    "handlers._changes": ONE_CALLER,
    "outcomes.OutcomeFollower._begin_anew": WAITS,
    "outcomes.OutcomeFollower._stopped_in_a_burst": WAITS,
    "outcomes.OutcomeFollower._release_lock": WAITS,
    "service.Registry._make_streams": WAITS,
    "service.Registry._lead_on": OWN,
    "binding.write": WAITS,
    "collector.keep_calm": OWN,
    "feeds.Feeds.ensure_streams": WAITS,
    "follower._batches": "passes on what others iterate over",
    "nodelock.NodeLocks._take": WAITS,
    "nodelock.NodeLocks._remove": WAITS,
    "questions.answer_on_bus": OWN,
    "service.Scheduler._read_pods_anew": OWN,
    "service.Scheduler.simulate": ONE_CALLER,
    "service._each": WAITS,
    "api.first_after": "a search of bounded length",
    "jetstream.JetStreamBus.live": CLIENT,
    "jetstream.JetStreamBus.session": WAITS,
    "jetstream.JetStreamBus.keep_connected": CLIENT,
    "jetstream.JetStreamBus._use": WAITS,
    "jetstream.connect": WAITS,
    "memory.MemoryBus.wait_connected": WAITS,
    "memory._Deliveries.__anext__": WAITS,
    "memory._Watch.__anext__": WAITS,
    "pulling.Reader.__anext__": WAITS,
    "pulling.Reader.run": CLIENT,
    "pulling.Reader._pull": WAITS,
    "reading.newest": ONE_CALLER,
    "reading.log": ONE_CALLER,
    "http_bounds.Bodies.read": ONE_CALLER,
    "http_bounds.Listener.run": CLIENT,
    "http_bounds.Listener._look": OWN,
    "http.HttpCluster.list": ONE_CALLER,
    "http.HttpCluster._call": WAITS,
    "http._changes": "lines of one watch; Informer lists anew where it raises",
    "informer.Informer.refresh": WAITS,
    "lease.LeaderElector.wait_leading": WAITS,
    "lifecycle.until": "passes on what others iterate over",
    "outbox.Outbox._next": WAITS,
}


def functions(tree: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods by their dotted names; a function inside one belongs to it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, (*names, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ".".join((*names, node.name)), node
        else:
            yield from functions(node, names)


def loops_in(function: ast.AST) -> bool:
    """Whether it has a loop that waits: one that may go on for ever."""
    return any(
        isinstance(node, ast.AsyncFor)
        or (isinstance(node, ast.While) and any(isinstance(inner, ast.Await | ast.AsyncWith | ast.Yield) for inner in ast.walk(node)))
        for node in ast.walk(function)
    )


def isolates(function: ast.AST) -> bool:
    """Whether it handles something inside ``Isolation``, or hands it a failure."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"item", "failed"}
        and "isolation" in ast.unparse(node.func.value)
        for node in ast.walk(function)
    )


FUNCTIONS = {
    name: function
    for path in SOURCES
    if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    for name, function in functions(ast.parse(path.read_text()), (path.stem,))
}
LOOPS = {name for name, function in FUNCTIONS.items() if isinstance(function, ast.AsyncFunctionDef) and loops_in(function)}


def test_every_loop_is_in_one_table() -> None:
    tables = [set(ISOLATED), set(HANDED_ON), set(WITHOUT_ITEMS)]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert LOOPS - set().union(*tables) == set(), "handle the items of these loops inside Isolation, and test that"
    assert set().union(*tables) - LOOPS == set(), "these are no loops any more"


@pytest.mark.parametrize("loop", sorted(ISOLATED))
def test_it_isolates_its_items(loop: str) -> None:
    assert isolates(FUNCTIONS[loop])


@pytest.mark.parametrize("loop", sorted(HANDED_ON))
def test_its_items_are_isolated_where_they_are_handed_to(loop: str) -> None:
    assert isolates(FUNCTIONS[HANDED_ON[loop][0]])


def test_each_has_a_test_that_feeds_it_an_item_whose_handler_raises() -> None:
    for named in {*ISOLATED.values(), *(test for _, test in HANDED_ON.values())}:
        file, _, name = named.partition("::")
        assert f"def {name}(" in (Path(__file__).with_name(file)).read_text(), named
