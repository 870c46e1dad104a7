"""Why a sandbox could not be built, and what to do about it, by the layer that is missing."""

from __future__ import annotations

from purerl.errors import SandboxError

__all__ = ["LAYERS", "REMEDIES", "failed"]

_REMOTE = "or use a remote sandbox: the setting remote"
_NAMESPACES = (
    "allow user namespaces: sysctl user.max_user_namespaces=10000, on Debian also kernel.unprivileged_userns_clone=1, "
    "on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; in Docker: --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined, in Kubernetes: seccompProfile Unconfined; " + _REMOTE
)
_KERNEL = "use Linux 5.13 or later, with seccomp, " + _REMOTE

LAYERS = {
    "user namespace": "a user of its own, without permissions outside",
    "mount namespace": "a file system of its own, read-only except for a private directory",
    "pid namespace": "only its own processes; they end with the first of them",
    "network namespace": "no network but its own loopback",
    "ipc namespace": "no shared memory of others",
    "uts namespace": "a host name of its own",
    "capabilities": "none of root's permissions, and no way to get them",
    "seccomp": "a list of allowed system calls",
    "landlock": "rules for files, signals and abstract sockets, beside the namespaces",
    "accounting": "memory and processes of the whole tree",
}
"""The layers of a sandbox, and what each of them gives a program."""

REMEDIES = {
    **dict.fromkeys([name for name in LAYERS if name.endswith("namespace")], _NAMESPACES),
    "capabilities": _NAMESPACES,
    "seccomp": _KERNEL,
    "landlock": "use Linux 5.13 or later with lsm=landlock,..., set layers = without_landlock, " + _REMOTE,
    "accounting": "let this process create cgroups, or start the container without masked paths in /proc, " + _REMOTE,
    "cgroups": "run as root, or by systemd-run --user --scope -p Delegate=yes, or leave accounting out",
    "command": "name a program in /usr, in the environment of Python, or below read_only, which every user may read",
    "files": "write fewer or smaller files, or raise max_disk, max_files or max_memory",
    "read_only": "name directories and files that exist and that your user may read",
    "preload": "leave the module out, or install it in the environment of python",
}
"""Remedies if a layer, or another part of a sandbox, is not available."""


def failed(step: str, errno: int | None, text: str) -> SandboxError:
    """The exception for a step in which a sandbox could not be built."""
    got = text if errno is None or text.startswith("[Errno") else f"[Errno {errno}] {text}"
    error = SandboxError(f"the sandbox cannot be built: {step}", got=got, do=REMEDIES.get(step))
    error.layer = step if step in LAYERS else None
    return error
