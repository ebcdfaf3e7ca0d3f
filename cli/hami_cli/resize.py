"""``hami resize``: other sizes for the shares of a pod that runs."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from hami_cli import ask, live
from hami_cli.exits import USAGE, run
from hami_cli.output import Format, OutputOption, plain, show, strong
from hami_cli.places import ContextOption, KubeconfigOption, NamespaceOption, SchedulerOption, TokenOption
from hami_cli.pod_names import pod_name
from hami_protocol.resize import ResizeAnswer, ResizeRequest, ResizeState


def resize(
    pod: Annotated[str, typer.Argument(help="NAME, NAMESPACE/NAME or pod/NAME.")],
    memory_mib: Annotated[
        int | None, typer.Option("--memory-mib", min=1, help="Memory on each of the container's devices.", show_default=False)
    ] = None,
    cores: Annotated[
        int | None, typer.Option("--cores", min=0, max=100, help="Percent of each device's compute; 0 limits nothing.", show_default=False)
    ] = None,
    container: Annotated[
        str, typer.Option("--container", "-c", help="Which container, where several have shares.", show_default=False)
    ] = "",
    namespace: NamespaceOption = "",
    output: OutputOption = Format.TABLE,
    url: SchedulerOption = "",
    token: TokenOption = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
) -> None:
    """Give a running pod's shares another size, on the cards that it has. Nothing restarts, and nothing goes below what is in use.

    [bold]Examples[/]

    $ hami resize train-0 --memory-mib 8000

    $ hami resize train-0 --memory-mib 4000 --cores 30 -c worker
    """
    if memory_mib is None and cores is None:
        typer.echo("hami resize: nothing was asked for; accepted: --memory-mib, --cores, or both", err=True)
        raise SystemExit(USAGE)
    namespace, name = pod_name(pod, namespace, kubeconfig, context)
    wanted = ResizeRequest(namespace=namespace, pod=name, container=container, memory_mib=memory_mib, cores=cores)
    live.progress("booking, and waiting for the node's agent")
    content = run("resize", ask.post(ask.scheduler(url, token, kubeconfig, context), "/v1/resize", msgspec.json.encode(wanted)))
    answer = msgspec.json.decode(content, type=ResizeAnswer)
    show(answer, output, lambda: text(answer))


def text(answer: ResizeAnswer) -> str:
    """The answer for people."""
    how = "resized" if answer.state is ResizeState.APPLIED else "booked; the node's agent has not answered yet"
    lines = [strong(f"{answer.pod.namespace}/{answer.pod.name}") + f"  {how}  {answer.node}"]
    lines += [
        f"  {plain(container.container)}: {share.memory_mib} MiB{f', {share.cores} %' if share.cores else ''} of {share.uuid}"
        for assignment in answer.assignments
        for container in assignment.containers
        for share in container.shares
    ]
    return "\n".join(lines)
