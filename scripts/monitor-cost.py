#!/usr/bin/env python3
"""What QEMU's monitor and its log of CPU resets, which unwatched boots have, cost a boot.

    scripts/monitor-cost.py RUN PAIRS

RUN is the folder of a saved run of `vmeter boot --watch none --accel tcg`: its command line is
run PAIRS times with what vmeter injected and PAIRS times without, in pairs of random order.
Prints the geometric mean of the pairs' ratios with its 95 % interval (Student's t of the
logarithms), for the wall clock and for the VMM's CPU time.
"""

import json
import math
import os
import pathlib
import random
import socket
import sys
import tempfile
import time

# Two-sided 95 % quantiles of Student's t, by degrees of freedom from which they hold.
T95 = [(9, 2.262), (14, 2.145), (19, 2.093), (29, 2.045), (39, 2.023), (59, 2.001), (99, 1.984)]
FD = 100


def boot(argv):
    """Wall and CPU time of one run, s."""
    ours, theirs = socket.socketpair()
    ours.sendall(b'{"execute": "qmp_capabilities"}\n')
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.dup2(theirs.fileno(), FD)
        os.execvp(argv[0], argv)
    theirs.close()
    _, status, usage = os.wait4(pid, 0)
    wall = time.monotonic() - begin
    ours.close()
    if status != 0:
        sys.exit(f"{argv}: status {status}")
    return wall, usage.ru_utime + usage.ru_stime


def main():
    folder, pairs = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    with_all = json.loads((folder / "run.json").read_text())["argv"]
    with tempfile.TemporaryDirectory() as scratch:
        at = with_all.index("-D") + 1
        with_all[at] = scratch + "/log"
        plain = list(with_all)
        for option in ["-D", "-d", "-mon", "-chardev"]:
            at = plain.index(option)
            del plain[at : at + 2]
        ratios = []
        for pair in range(pairs):
            both = {"with": with_all, "without": plain}
            order = random.sample(sorted(both), 2)
            took = {name: boot(both[name]) for name in order}
            ratios.append([math.log(a / b) for a, b in zip(took["with"], took["without"])])
            print(pair, {k: [round(x, 3) for x in v] for k, v in took.items()}, file=sys.stderr)
    quantile = [t for least, t in T95 if pairs - 1 >= least]
    if not quantile:
        sys.exit("10 pairs at least")
    for name, logs in zip(["wall clock", "CPU time"], zip(*ratios)):
        mean = sum(logs) / pairs
        sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / (pairs - 1))
        half = quantile[-1] * sd / math.sqrt(pairs)
        low, mid, high = (math.exp(x) for x in (mean - half, mean, mean + half))
        print(f"{name}: {mid:.4f} [{low:.4f}, {high:.4f}], {pairs} pairs")


main()
