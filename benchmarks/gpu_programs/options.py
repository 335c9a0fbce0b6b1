"""What can be said to a program of the proof? Device, steps, and `--small` for a try on a CPU."""

from __future__ import annotations

import argparse
import json
import time

import torch


def options(steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--trace", help="profile the last 24 steps into this file")
    return parser.parse_args()


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def told(begun: float, steps: int, **more: object) -> None:
    """Print the last line, which the check reads."""
    print(json.dumps({"seconds": time.perf_counter() - begun, "steps": steps, **more}))
