"""The commands of ``hami``: each with its module, which is imported when the command runs, and its line in the help."""

from __future__ import annotations

from typing import Final, NamedTuple


class CommandEntry(NamedTuple):
    """One command."""

    module: str
    function: str
    """The name of the command's function in ``module``; of its Typer application, for a group."""
    panel: str
    help: str


LOOK: Final = "Look"
WHY: Final = "Ask why"
CHANGE: Final = "Change"
INSTALL: Final = "Install"
COMMANDS: Final[dict[str, CommandEntry]] = {
    "top": CommandEntry("top", "top", LOOK, "Show what is booked of nodes and cards, and by which pods."),
    "summary": CommandEntry("summary", "summary", LOOK, "Sum up what is booked, and how it is spread."),
    "report": CommandEntry("report", "report", LOOK, "Write the usage report."),
    "events": CommandEntry("events", "events", LOOK, "Show the log of grants and outcomes."),
    "bill": CommandEntry("bill", "bill", LOOK, "Show who used the time for which the cards existed."),
    "explain": CommandEntry("explain", "explain", WHY, "Explain why a pod is where it is, or what keeps it waiting."),
    "diagnose": CommandEntry("diagnose", "diagnose", WHY, "Find what is wrong with a pod, with remedy and next command."),
    "trace": CommandEntry("trace", "trace", WHY, "Show a pod's way step by step, with times."),
    "simulate": CommandEntry("simulate", "simulate", WHY, "Show where pods would go, also with nodes added."),
    "resize": CommandEntry("resize", "resize", CHANGE, "Change the sizes of a running pod's shares."),
    "cordon": CommandEntry("cordon", "cordon", CHANGE, "Keep new pods off a card."),
    "uncordon": CommandEntry("cordon", "uncordon", CHANGE, "Let new pods on a card again."),
    "install": CommandEntry("install", "install", INSTALL, "Install HAMi on a cluster."),
    "uninstall": CommandEntry("uninstall", "uninstall", INSTALL, "Remove HAMi from a cluster."),
    "doctor": CommandEntry("doctor", "doctor", INSTALL, "Find what is wrong with an installation."),
    "rig": CommandEntry("rig", "app", INSTALL, "Run a cluster on this machine: no Kubernetes, no Docker, no GPU."),
}
