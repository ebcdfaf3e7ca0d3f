"""How a pod is named on the command line: ``NAME``, ``NAMESPACE/NAME`` or ``pod/NAME``, and in which namespace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import typer

from hami_cli.places import kubeconfig_path

DEFAULT = "default"
_KINDS = frozenset({"pod", "pods", "po"})


class PodName(NamedTuple):
    """A pod's namespace and name."""

    namespace: str
    name: str


def pod_name(given: str, namespace: str, kubeconfig: str, context: str) -> PodName:
    """The pod that ``given`` names; without a namespace in it or in ``--namespace`` it is in the context's.

    Raises:
        typer.BadParameter: it names no pod, or two namespaces.
    """
    parts = given.split("/")
    if len(parts) > 1 and parts[0] in _KINDS:
        parts = parts[1:]
    if not all(parts) or len(parts) > 2:
        raise typer.BadParameter(f"{given!r} is not accepted; accepted: NAME, NAMESPACE/NAME or pod/NAME", param_hint="POD")
    if len(parts) == 2 and namespace not in ("", parts[0]):
        raise typer.BadParameter(f"{given!r} is in {parts[0]}, and --namespace is {namespace}; accepted: one of them", param_hint="POD")
    return PodName(parts[0] if len(parts) == 2 else namespace or context_namespace(kubeconfig, context), parts[-1])


def context_namespace(kubeconfig: str, context: str) -> str:
    """The namespace of the kubeconfig's context; ``default`` where it names none."""
    from hami_runtime.kube.kubeconfig import namespace_of

    path = kubeconfig_path(kubeconfig)
    files = [each for each in (path or "").split(os.pathsep) if each and Path(each).is_file()]
    return next((found for each in files if (found := namespace_of(each, context or None))), DEFAULT)
