"""Explore random problems: `python -m tests.generated.fuzz --seed 1 --count 200 --processes 2 --out FILE`.

Workers are processes of their own, so that a crash or a hang of one case is one failure. Each takes a batch of cases, drawn from
its own seed, under one setting of JAX_ENABLE_X64. A failure is printed with the line for `regressions.py`.
"""

import argparse
import collections
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH = 8
STARTING = 120.0  # seconds for a worker to import and to draw its cases


def work(seed: int, index: int, first: int, count: int, reduce: bool, asks: bool) -> None:
    """Run a batch from its `first` case on, and print a line of JSON when a case begins and when it ends."""
    from .strategies import sample

    x64 = os.environ["JAX_ENABLE_X64"] == "1"
    for number, case in enumerate(sample(seed * 1_000_003 + index, count, asks)):
        if number >= first:
            attempt(dataclasses.replace(case, x64=x64), number, reduce)


def attempt(case: Any, number: int, reduce: bool) -> None:
    from .invariants import failures

    say(begin=number, case=repr(case), kind=case.kind, method=case.method)
    begun = time.monotonic()
    found = failures(case)
    say(end=number, found=found, seconds=round(time.monotonic() - begun, 1))
    if found and reduce:
        say(reduced=repr(smallest(case, found)))


def smallest(case: Any, found: list[str]) -> Any:
    """Return a simpler description with the same kind of failure, field by field."""
    from .case import simpler
    from .invariants import failures

    label = kind_of(found)
    for _ in range(40):
        before = case
        for candidate in simpler(case):
            if kind_of(failures(candidate)) == label:
                case = candidate
                break
        if case == before:
            break
    return case


def kind_of(found: list[str]) -> str:
    """Return the first words of the first failure, without numbers."""
    return "".join(letter for letter in found[0] if not letter.isdigit())[:60] if found else ""


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Batch:
    """One worker at a time for one batch; a new one goes on after a crash or a hang. Records are kept as they come."""

    def __init__(self, options: argparse.Namespace, index: int, count: int, keep: Callable[[dict[str, Any]], None]) -> None:
        self.options, self.index, self.count, self.keep = options, index, count, keep
        self.last: dict[str, Any] = {}

    def run(self) -> None:
        first: int | None = 0
        while first is not None and first < self.count:
            first = self.attend(first)

    def attend(self, first: int) -> int | None:
        """Return the case to go on with, or None at the end."""
        o = self.options
        command = [sys.executable, "-m", "tests.generated.fuzz", "--work", str(self.index), "--first", str(first)]
        command += ["--seed", str(o.seed), "--count", str(self.count)] + ["--reduce"] * o.reduce + ["--plain"] * o.plain
        settings = {"JAX_PLATFORMS": "cpu", "HYPOTHESIS_STORAGE_DIRECTORY": os.devnull}
        environment = settings | dict(os.environ) | {"JAX_ENABLE_X64": str(self.index % 2)}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment
        )
        lines: queue.Queue[str | None] = queue.Queue()
        errors: collections.deque[str] = collections.deque(maxlen=3)
        threading.Thread(target=lambda: [*map(lines.put, process.stdout), lines.put(None)], daemon=True).start()
        threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True).start()
        current: dict[str, Any] | None = None
        limit = STARTING
        while True:
            try:
                text = lines.get(timeout=limit)
            except queue.Empty:
                process.kill()
                process.wait()
                return self.lost(current, f"no end after {limit:.0f} seconds", first)
            if text is None:
                process.wait()
                why = f"the worker ended with status {process.returncode}: {''.join(errors)[-200:]!r}"
                return None if process.returncode == 0 else self.lost(current, why, first)
            line = json.loads(text) if text.startswith("{") else {}
            if "begin" in line:
                current, limit = line, o.limit
            elif "end" in line and current is not None:
                self.record(current, line["found"], line["seconds"])
                current, limit = None, 10 * o.limit if o.reduce else STARTING
            elif "reduced" in line:
                self.last["reduced"] = line["reduced"]
                print(f"simpler: {line['reduced']},", flush=True)

    def lost(self, current: dict[str, Any] | None, why: str, first: int) -> int | None:
        """Record a crash or a hang; return the case to go on with."""
        if current is None:
            current = {"begin": self.count, "case": f"# batch {self.index} from {first}", "kind": "none", "method": "none"}
        self.record(current, [why], self.options.limit)
        return int(current["begin"]) + 1

    def record(self, current: dict[str, Any], found: list[str], seconds: float) -> None:
        self.last = {**current, "found": found, "seconds": seconds, "x64": self.index % 2}
        self.keep(self.last)
        if found:
            print("\n    # ".join([current["case"] + ",", *(line[:400] for line in found)]), flush=True)


def explore(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all batches, several at a time, and print failures as they come."""
    batches: queue.Queue[Batch] = queue.Queue()
    records: list[dict[str, Any]] = []
    lock = threading.Lock()
    begun = time.monotonic()

    def keep(record: dict[str, Any]) -> None:
        with lock:
            records.append(record)
            if options.out:
                save(options, records, time.monotonic() - begun)

    for index, start in enumerate(range(0, options.count, BATCH)):
        batches.put(Batch(options, index, min(BATCH, options.count - start), keep))

    def serve() -> None:
        while options.seconds is None or time.monotonic() - begun < options.seconds:
            try:
                batch = batches.get_nowait()
            except queue.Empty:
                return
            batch.run()

    threads = [threading.Thread(target=serve) for _ in range(options.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(table(records))
    return records


def summary(records: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return cases and failures by class and method."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        row = found.setdefault(f"{record['kind']} {record['method']}", {"cases": 0, "failed": 0, "seconds": 0})
        row["cases"] += 1
        row["failed"] += bool(record["found"])
        row["seconds"] += round(record["seconds"])
    return dict(sorted(found.items()))


def table(records: list[dict[str, Any]]) -> str:
    rows = [f"{name:24}{row['cases']:6}{row['failed']:6}{row['seconds']:8}" for name, row in summary(records).items()]
    total = f"{'all':24}{len(records):6}{sum(bool(r['found']) for r in records):6}{round(sum(r['seconds'] for r in records)):8}"
    return "\n".join([f"{'class and method':24}{'cases':>6}{'fail':>6}{'seconds':>8}", *rows, total])


def save(options: argparse.Namespace, records: list[dict[str, Any]], seconds: float) -> None:
    failed = [record for record in records if record["found"]]
    content = {
        "seed": options.seed,
        "seconds": round(seconds),
        "cases": len(records),
        "summary": summary(records),
        "failed": failed,
    }
    Path(options.out).write_text(json.dumps(content, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one case")
    parser.add_argument("--seconds", type=float, help="begin no batch after so many seconds")
    parser.add_argument("--out", help="a file for the summary and the failures, as JSON")
    parser.add_argument("--reduce", action="store_true", help="look for a simpler description of each failure")
    parser.add_argument("--plain", action="store_true", help="one run for each case, compared with NumPy alone")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.seed, options.work, options.first, options.count, options.reduce, not options.plain)
        return 0
    return int(any(record["found"] for record in explore(options)))


if __name__ == "__main__":
    sys.exit(main())
