"""Builds HAMi's images with docker, podman or buildah: ``python -m tools.images [--engine ENGINE] [TARGET...]``.

`make images` builds all of them. A tag is the version in pyproject.toml; labels name the git revision and its origin.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCKERFILE: Final = "deploy/docker/Dockerfile"
TARGETS: Final = ("scheduler", "webhook", "registry", "node-agent", "rig")
ENGINES: Final = ("docker", "podman", "buildah")
REPOSITORY: Final = "hami"
MISSING: Final = """no engine builds images here:
{reasons}
Install one of them: Docker (https://docs.docker.com/engine/install), or a package of your distribution,
as `apt-get install buildah` or `dnf install podman`."""


class NoEngineError(Exception):
    """No engine works on this machine; the text gives each one's reason, and what to install."""


def version() -> str:
    """The project's version."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def engine(wanted: str = "") -> str:
    """The first engine that works, or the ``wanted`` one.

    Raises:
        NoEngineError: there is none.
    """
    reasons = {}
    for name in [wanted] if wanted else ENGINES:
        if not (reason := _lacking(name)):
            return name
        reasons[name] = reason
    raise NoEngineError(MISSING.format(reasons="\n".join(f"  {name}: {reason}" for name, reason in reasons.items())))


def command(name: str, target: str, tag: str, *, labels: dict[str, str], epoch: int) -> list[str]:
    """The command of an engine that builds ``target``; ``epoch`` is the time in what it creates, in seconds."""
    arguments = ["--file", DOCKERFILE, "--target", target, "--tag", tag]
    for key, value in labels.items():
        arguments += ["--build-arg", f"{key}={value}"]
    if name == "docker":
        return ["docker", "build", *arguments, "--build-arg", f"SOURCE_DATE_EPOCH={epoch}", "."]
    return [name, "build", "--layers", "--format", "oci", "--timestamp", str(epoch), *arguments, "."]


def labels() -> dict[str, str]:
    """The build arguments that become labels: version, git revision, and the address of the repository."""
    found = {"REVISION": _git("rev-parse", "HEAD"), "SOURCE": address(_git("remote", "get-url", "origin"))}
    return {"VERSION": version()} | {key: value for key, value in found.items() if value}


def address(remote: str) -> str:
    """The web address of a git remote, without a user or a password; empty where it has none."""
    if ssh := re.fullmatch(r"(?:ssh://)?git@([^:/]+)[:/](.+)", remote):
        remote = f"https://{ssh[1]}/{ssh[2]}"
    url = re.fullmatch(r"https://(?:[^/@]*@)?([^/@]+/.+?)(?:\.git)?/?", remote)
    return f"https://{url[1]}" if url else ""


def epoch() -> int:
    """When the revision was committed, in seconds: what is built twice from one revision has the same times."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or time.time())


def build(name: str, targets: Sequence[str], repository: str) -> None:
    """Build ``targets``, one after the other, with the engine ``name``.

    Raises:
        subprocess.CalledProcessError: a build failed; what it printed has been shown.
    """
    found, when = labels(), epoch()
    for at, target in enumerate(targets, 1):
        tag = f"{repository}/{target}:{found['VERSION']}"
        print(f"==> {tag}, with {name} ({at} of {len(targets)})", flush=True)
        begin = time.monotonic()
        subprocess.run(command(name, target, tag, labels=found, epoch=when), cwd=ROOT, check=True)
        print(f"==> {tag}: built in {time.monotonic() - begin:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.images", description="Build HAMi's images.")
    parser.add_argument("--engine", default="", choices=("", *ENGINES), help="default: the first that works")
    parser.add_argument("--repository", default=REPOSITORY, help=f"what a tag begins with; default: {REPOSITORY}")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {' '.join(TARGETS)}")
    options = parser.parse_args(arguments)
    if unknown := [each for each in options.targets if each not in TARGETS]:
        parser.error(f"no image {unknown[0]!r}; accepted: {', '.join(TARGETS)}")
    try:
        build(engine(options.engine), options.targets or TARGETS, options.repository)
    except NoEngineError as exc:
        print(exc, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as exc:
        print(f"{exc.cmd[0]} ended with exit status {exc.returncode}; see above", file=sys.stderr)
        return 1
    return 0


def _lacking(name: str) -> str:
    if not shutil.which(name):
        return "not installed"
    done = subprocess.run([name, "info"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"installed, but `{name} info` fails: {done.stderr.strip().splitlines()[-1]}"


def _git(*arguments: str) -> str:
    """What git prints; empty where this is no checkout."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
