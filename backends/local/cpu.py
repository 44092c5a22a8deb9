"""What this machine's processor offers: instruction flags, and how many cores we may keep busy."""

import math
import os
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def parse_flags(cpuinfo: str) -> frozenset[str]:
    """The flags of the first processor in the text of /proc/cpuinfo ("Features" on ARM)."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def cpu_flags() -> frozenset[str]:
    """Instruction flags; empty where the system does not tell (macOS)."""
    try:
        return parse_flags(CPUINFO.read_text())
    except OSError:
        return frozenset()


def parse_cpu_limit(text: str) -> float | None:
    """The cores that cgroup v2's cpu.max ("200000 100000") grants; None for "max"."""
    quota, period = text.split()
    return None if quota == "max" else int(quota) / int(period)


def worker_threads() -> int:
    """Threads for torch: the physical cores this process may use, less one for the event loop, at least one.

    Two OpenMP threads on two contended cores were 4-20 times slower than one, so it is better to be one too low.
    """
    cores = float(_physical_cores())
    try:
        limit = parse_cpu_limit(CGROUP_LIMIT.read_text())
    except (OSError, ValueError):
        limit = None
    if limit is not None:
        cores = min(cores, limit)
    return max(1, math.floor(cores) - 1)


def _physical_cores() -> int:
    """Cores behind the CPUs we are allowed to run on: hyperthreads of one core share its vector units."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        topology = CPU_TOPOLOGY / f"cpu{cpu}" / "topology"
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return len(allowed)
    return len(cores)
