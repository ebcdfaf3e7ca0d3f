"""The kubeconfig that leads kubectl and client libraries to a server. Pure."""

import msgspec

__all__ = ["kubeconfig"]


def kubeconfig(url: str, token: str = "") -> str:
    """Return a kubeconfig for the server at ``url``, as YAML (which JSON is)."""
    user = {"token": token} if token else {}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "rig", "cluster": {"server": url}}],
        "users": [{"name": "rig", "user": user}],
        "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig", "namespace": "default"}}],
        "current-context": "rig",
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"
