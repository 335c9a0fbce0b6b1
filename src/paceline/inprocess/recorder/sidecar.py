"""Start a sidecar for the gauges of a host without `paceline run`; the first rank on the host does this.

Under `srun` or `ssh`, ranks run on hosts that only share the run folder. The sidecar ends with the rank that started
it. If a host has several sidecars, one samples and the others wait. A shell starts the sidecar and exits, so that it is
not a child of the program.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys

_START = 'nohup "$@" >/dev/null 2>&1 </dev/null &'


def start_if_alone(run_dir: str, host: str) -> bool:
    """Start a sidecar unless a `paceline run` on this host samples its gauges; return whether a sidecar was started."""
    if glob.glob(os.path.join(glob.escape(run_dir), f"launch-{glob.escape(host)}-*.json")):
        return False
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {k: v for k, v in os.environ.items() if k != "PACELINE_WATCH_DIR"}
    environment["PYTHONPATH"] = os.path.dirname(package)
    gauges = [sys.executable, "-m", "paceline.monitor.gauges", run_dir, "--parent", str(os.getpid())]
    subprocess.run(
        ["/bin/sh", "-c", _START, "sh", *gauges],
        env=environment,
        check=False,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return True
