"""Does the loader keep ResNet-50 fed from shards, and do its copies run beside computing? Beside DataLoader and PIL."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu_programs"))

LIMIT_S = 200
PICTURES, BATCH, WARM, STEPS = 4096, 256, 40, 60
WAITS = 0.02  # share of time in which the device may wait for data
Spans = list[tuple[float, float]]  # begin and end, microseconds


def check() -> dict[str, Any]:
    answer: dict[str, Any] = {"figures": {}, "failed": [], "not_done": []}
    try:
        import cv2  # noqa: F401
        import simplejpeg  # noqa: F401

        from paceline.data import Loader, RandomResizedCrop
    except ImportError as error:
        answer["not_done"].append(f"{error.name} is not installed")
        return answer
    with tempfile.TemporaryDirectory(prefix="loader-check-") as folder:
        shards = made(Path(folder))
        step = stepping()
        loader = Loader(shards, BATCH, True, RandomResizedCrop(224), seed=1, ends="drop", device="cuda")
        batches = endless(loader)
        fixed = next(batches)
        alone_s = timed(step, repeated(fixed))
        fed_s = timed(step, batches)
        again_s = timed(step, repeated(fixed))
        best_s = min(alone_s, again_s)
        copying, hidden = overlap(step, batches)
        report = loader.report()
        batches.close()
        loader.close()
        answer["figures"] = {
            "step_s": {"one_batch_again_and_again": [alone_s, again_s], "from_shards": fed_s},
            "data_wait": 1 - best_s / fed_s,
            "copy_us_per_step": copying,
            "copy_hidden": hidden,
            "threads": report.threads,
            "changes": [vars(change) for change in report.changes],
            "stages_us": {stage.name: 1e6 * stage.wall_s for stage in report.stages},
            "data_loader_pil": beside(step, Path(folder) / "pictures", best_s, answer),
        }
    if answer["figures"]["data_wait"] > WAITS:
        answer["failed"].append(f"the device waits {answer['figures']['data_wait']:.1%} of the time for data")
    if hidden is None:
        answer["not_done"].append("the profile has no copies to the device")
    elif hidden < 0.9:
        answer["failed"].append(f"{hidden:.0%} of the time of copies is beside computing")
    return answer


def made(folder: Path) -> Path:
    """Write pictures like photographs in size, and shards of them."""
    from paceline.data.convert.convert import Options, convert
    from paceline.data.sources.image_folder import image_folder

    with ProcessPoolExecutor() as pool:
        list(pool.map(write_picture, [folder / "pictures"] * PICTURES, range(PICTURES), chunksize=64))
    convert(image_folder(folder / "pictures"), folder / "shards", Options(), 8, lambda done, whole: None)
    return folder / "shards"


def write_picture(folder: Path, number: int) -> None:
    import simplejpeg

    chance = np.random.default_rng(number)
    y, x = np.mgrid[:375, :500]
    waves = [np.sin(x / chance.uniform(5, 60) + y / chance.uniform(5, 60) + colour) for colour in range(3)]
    pixels = (128 + 90 * np.stack(waves, -1) + chance.normal(0, 8, (375, 500, 1))).clip(0, 255).astype(np.uint8)
    place = folder / f"class{number % 10}"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=88))


def stepping() -> Callable[[Any], None]:
    """Return a training step in bf16 with channels last."""
    import torch
    from resnet50 import resnet50

    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    torch.backends.cudnn.benchmark = True

    def step(batch: Any) -> None:
        images, labels = batch
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images.float().div_(255)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def repeated(batch: Any) -> Iterator[Any]:
    while True:
        yield batch


def timed(step: Callable[[Any], None], batches: Iterator[Any]) -> float:
    """Return the seconds of a step, over many, once all is warm."""
    import torch

    for _ in range(WARM):
        step(next(batches))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        step(next(batches))
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / STEPS


def overlap(step: Callable[[Any], None], batches: Iterator[Any]) -> tuple[float, float | None]:
    """Return the microseconds of copies to the device of a step, and the share of them in which kernels ran."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(10):
            step(next(batches))
        torch.cuda.synchronize()
    events = [event for event in seen.events() if str(event.device_type).endswith("CUDA")]
    spans = [(event.name, (float(event.time_range.start), float(event.time_range.end))) for event in events]
    copies = [span for name, span in spans if "Memcpy HtoD" in name]
    kernels = [span for name, span in spans if "Memcpy" not in name and "Memset" not in name]
    whole = sum(end - begin for begin, end in copies)
    return whole / 10, shared(copies, united(kernels)) / whole if whole else None


def united(spans: Spans) -> Spans:
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def shared(spans: Spans, others: Spans) -> float:
    return sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in spans for first, last in others)


class Folder:
    """Pictures as people read them: PIL, one by one."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        import torch
        from PIL import Image

        with Image.open(self._files[number]) as picture:
            left, top = int(torch.randint(0, 200, ())), int(torch.randint(0, 100, ()))
            cut = picture.convert("RGB").resize(
                (224, 224), Image.Resampling.BILINEAR, (left, top, left + 260, top + 260)
            )
        return torch.from_numpy(np.asarray(cut).copy()).permute(2, 0, 1), number % 10


def beside(step: Callable[[Any], None], folder: Path, best_s: float, answer: dict[str, Any]) -> dict[str, float] | None:
    """Return what a step takes from a DataLoader with as many workers as there are cores."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        answer["not_done"].append("PIL is not installed")
        return None
    import os

    import torch

    workers = len(os.sched_getaffinity(0))
    usual = torch.utils.data.DataLoader(
        Folder(folder), BATCH, True, num_workers=workers, pin_memory=True, drop_last=True, persistent_workers=True
    )
    moved = ([each.cuda(non_blocking=True) for each in batch] for batch in endless(usual))
    step_s = timed(step, moved)
    return {"step_s": step_s, "data_wait": 1 - best_s / step_s, "workers": workers}
