"""The profile of a machine, as `paceline plan --calibrate` writes it: measured times in a JSON file.

Each time is in seconds, with its quartiles and its count. The file contains measurements only. Rates are fitted when a
prediction is made (`local_prediction.fit_rates`), so that a later version of Paceline can improve them.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from paceline import __version__
from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import host_file, replace_bytes
from paceline.hardware.host import this_host

SCHEMA = "paceline.profile/1"
OLD = timedelta(days=90)
AGAIN = "make a profile on that machine: paceline plan --calibrate --out FILE"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A measured time: the median and the quartiles in seconds, and the number of repetitions."""

    seconds: float
    low: float
    high: float
    count: int
    disturbed: float = 0.0  # share of repetitions in which another process took a core


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The measured time of an operator with some sizes; the fields are those of `operators.OperatorKind`."""

    family: str
    sizes: tuple[float, ...]
    work: float
    time: Figure


class BlockProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a whole model that was trained for some steps.

    Attributes:
        beside: Step time while a thread of the same process was busy.
        beside_cpu_s: CPU time of this thread per step.
        operators: Seconds of the model's operators, measured one by one.
        calls: Number of operators in a step, including views.
        far_bytes: Bytes that operators read and that were no longer in a cache.
        fresh_bytes: As in `local_prediction.StepCounts`.
        exchanged_bytes: Bytes of gradients that replicas exchange.
        held_bytes: Memory of the process before the first step, without weights.
        live_bytes: Peak of live tensor bytes.
        peak_bytes: Peak memory of the process.
    """

    name: str
    kind: Literal["transformer", "convolution"]
    step: Figure
    beside: Figure
    beside_cpu_s: float
    operators: float
    calls: int
    far_bytes: float
    fresh_bytes: float
    exchanged_bytes: float
    held_bytes: int
    live_bytes: int
    peak_bytes: int


class RankProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one rank while as many ranks as `ranks` are busy."""

    ranks: int
    threads: int
    reference: Figure  # time of a 512 x 512 fp32 matrix product: the speed of the machine during the measurement
    points: tuple[Point, ...]
    blocks: tuple[BlockProfile, ...]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The measured time of a collective on a tensor with `sent_bytes` over all ranks."""

    name: str
    ranks: int
    sent_bytes: float
    time: Figure


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The measured time to copy or read a number of bytes."""

    moved_bytes: float
    time: Figure


class MachineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The measured machine and its software versions."""

    host: str
    cpu_model: str | None
    cores: float
    memory_bytes: int | None
    device: str
    devices: int
    device_memory_bytes: int | None
    context_bytes: int | None
    torch: str
    python: str
    paceline: str
    day: date


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of a machine.

    Attributes:
        others_cores: Mean number of cores that other processes used during the calibration.
        took_s: Duration of the calibration in seconds.
    """

    schema: str
    made: MachineDescription
    others_cores: float
    took_s: float
    places: tuple[RankProfile, ...]
    messages: tuple[Message, ...]
    copies: tuple[Moved, ...]
    host_copies: tuple[Moved, ...]
    storage: tuple[Moved, ...]
    launch: Figure

    def place(self, ranks: int) -> RankProfile:
        """Return the measurements with this number of busy ranks.

        Raises:
            UsageError: The profile has no such measurements.
        """
        for each in self.places:
            if each.ranks == ranks:
                return each
        known = ", ".join(str(each.ranks) for each in self.places)
        raise UsageError(
            f"the profile of {self.made.host} contains measurements of {known} ranks, not of {ranks}; {AGAIN}"
        )


def describe_machine(described: Mapping[str, object], day: date) -> MachineDescription:
    """Return a description of this machine.

    Args:
        described: Versions and devices that torch reports.
        day: The date of the calibration.
    """
    host = this_host()
    told = {name: described[name] for name in ("torch", "device", "devices", "device_memory_bytes", "context_bytes")}
    return MachineDescription(
        host=host.name or socket.gethostname(),
        cpu_model=host.cpu_model,
        cores=host.allowed_cores,
        memory_bytes=host.memory_limit_bytes,
        python=platform.python_version(),
        paceline=__version__,
        day=day,
        **told,  # type: ignore[arg-type]  # measured by our own child process
    )


def default_path(environment: Mapping[str, str]) -> Path:
    """Return the path of this machine's profile: ``$XDG_STATE_HOME/paceline/profile-<host>.json``."""
    return host_file("profile", ".json", environment) or Path(".paceline") / "profile.json"


def read_profile(path: Path) -> Profile:
    """Return the profile in a file.

    Raises:
        UsageError: The file does not exist, is damaged, or is not a profile.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"there is no machine profile at {path} ({error.strerror}); {AGAIN}") from None
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != SCHEMA:
            raise UsageError(f"{path} has schema {schema!r}, and Paceline {__version__} reads {SCHEMA!r}; {AGAIN}")
        return msgspec.json.decode(data, type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a machine profile, or is damaged ({error}); {AGAIN}") from None


class _Schema(msgspec.Struct):
    schema: str


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile atomically.

    Raises:
        EnvironmentFault: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror or error}; give another file with --out"
        ) from error


def is_of_this_machine(made: MachineDescription) -> bool:
    """Return whether a profile is of this machine, judged by host name, processor and available cores."""
    host = this_host()
    name = host.name or socket.gethostname()
    return (made.host, made.cpu_model, made.cores) == (name, host.cpu_model, host.allowed_cores)


def profile_doubts(profile: Profile, today: date, *, here: bool) -> list[str]:
    """Return the reasons why predictions from a profile could be wrong, one text for each.

    Args:
        profile: The profile in use.
        today: The day of the prediction.
        here: Whether the prediction is for this machine.
    """
    made, found = profile.made, []
    if here:
        host = this_host()
        if (made.cpu_model, made.cores) != (host.cpu_model, host.allowed_cores):
            found.append(
                f"the profile is of another machine ({made.host}: {made.cpu_model}, {made.cores:g} cores; this one: "
                f"{host.cpu_model}, {host.allowed_cores:g}), so the prediction is for that machine"
            )
    age = (today - made.day).days
    if age > OLD.days:
        found.append(f"the profile is {age} days old (made on {made.day}); measure again: paceline plan --calibrate")
    if profile.others_cores > _BUSY * made.cores:
        found.append(
            f"other processes used {profile.others_cores:.1f} of {made.cores:g} cores during calibration, so the "
            f"measured times are too long or noisy; calibrate again when the machine is idle"
        )
    return found


_BUSY = 0.1  # share of the cores
