"""What a process and all its descendants listen on, read from /proc."""

import contextlib
import ipaddress
import os
from pathlib import Path

LISTEN = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}


def descendants(root=None):
    """Return the numbers of a process and of all below it."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, before = {os.getpid() if root is None else root}, set()
    while found != before:
        before = set(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def name(pid):
    """Return a process's name, "" if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _address(text):
    raw = bytes.fromhex(text.partition(":")[0])
    words = [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]  # each word in the machine's order
    found = ipaddress.ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found


def listening(pids):
    """Return (process name, address) of each socket that these processes listen on."""
    owners = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    owners[os.readlink(link)] = pid
    found = []
    for table, state in LISTEN.items():
        path = Path("/proc/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            pid = owners.get(f"socket:[{fields[9]}]")
            if pid is not None and fields[3] == state:
                found.append((name(pid), _address(fields[1])))
    return found
