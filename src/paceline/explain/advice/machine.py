"""Pages of the remedies that concern the host and its GPUs."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "gpu.cooling": """
The GPU gets more cooling, so that it keeps its clock rate.

## When it helps

The driver lowers the clock of the GPU because it is too hot.

## Safety class

Exact: training computes the same numbers, faster.

## How to do it

Clean the fans and filters, check the air flow in the rack, and let the fans start at a lower temperature. Move the job
to another node in the meantime. `nvidia-smi -q -d TEMPERATURE` prints the temperature and the limits.
""",
    "gpu.debug": """
The program runs in a mode in which each CUDA error is reported at the line that causes it.

## When it helps

The driver reported an Xid that a program can cause itself, such as 13 or 31 (an invalid memory access). CUDA reports
such errors late, so the Python traceback usually names the wrong line.

## Safety class

Exact: training computes the same numbers. The run is slower.

## How to do it

Run once with `CUDA_LAUNCH_BLOCKING=1`. The traceback then names the right line. `compute-sanitizer python train.py`
also names the kernel and the address.
""",
    "gpu.exclusive": """
The training run uses a GPU that no other process uses.

## When it helps

Another process computes on the same GPU. The two processes take turns and share its memory.

## Safety class

Exact: training computes the same numbers.

## How to do it

End the other process if it is yours, or choose a free GPU with `CUDA_VISIBLE_DEVICES`. An administrator can reserve a
GPU for one process with `nvidia-smi -c EXCLUSIVE_PROCESS`.
""",
    "gpu.pcie_slot": """
The link between the host and the GPU runs at the full speed of the card and the slot.

## When it helps

The GPU is connected with fewer PCIe lanes or an older PCIe generation than possible, and copies take a visible share of
a step.

## Safety class

Exact: training computes the same numbers.

## How to do it

Take the card out and insert it again, or try another slot, riser or cable. Check the link speed in the firmware
settings. `nvidia-smi -q` prints the current and the fastest possible link under "GPU Link Info". Run this command while
the GPU is busy, because an idle GPU lowers its link speed.
""",
    "gpu.power_limit": """
The power limit of the GPU is raised to its default, or lowered a little to keep the clock steady.

## When it helps

Somebody set the power limit below the default, and the GPU lowers its clock to stay below the limit. If a GPU
overheats, a slightly lower limit keeps the clock steady instead of rising and falling.

## Safety class

Exact: training computes the same numbers.

## How to do it

Run `nvidia-smi -i GPU -pl WATTS` as an administrator. `nvidia-smi -q -d POWER` prints the default and the allowed
range.
""",
    "gpu.power_supply": """
Somebody checks the power supply of the machine.

## When it helps

The machine signals the GPU to use less power (a power brake). The usual causes are a power supply that failed or too
many cards on one supply.

## Safety class

Exact: training computes the same numbers.

## How to do it

Report the host and the GPU to the operator of the machine. Use another node until the power supply is repaired.
""",
    "gpu.replace": """
The faulty GPU, or its node, is no longer used for training.

## When it helps

The GPU reported an uncorrectable memory error or an Xid that points to the hardware. Results after the error can be
wrong, and the next error can end the run.

## Safety class

Exact: the run continues from a checkpoint on another GPU.

## How to do it

Resume from the last checkpoint before the error on another node. Exclude this node (Slurm: `scontrol update
nodename=NODE state=drain reason=xid`; Kubernetes: `kubectl cordon NODE`) and report it.
""",
    "host.cores": """
The program gets CPU cores that no other process uses.

## When it helps

The program often waits for a CPU core, because of other processes or the CPU quota of the container. The program itself
is not the cause.

## Safety class

Exact: training computes the same numbers.

## How to do it

Move the other programs to another machine, raise the CPU quota (`docker run --cpus`, `resources.limits.cpu` in
Kubernetes, `--cpus-per-task` in Slurm), or pin this program to free cores with `taskset -c 0-7 python train.py`.
""",
    "host.memory": """
The program uses less memory of the host.

## When it helps

The processes of the run use nearly all memory, or the host moves memory pages to disk (swapping).

## Safety class

Exact if only the number of workers, the queues and the caches become smaller. A smaller shuffle buffer changes the
order of the samples.

## How to do it

Use fewer loader workers or a smaller `prefetch_factor`, and limit caches in the dataset. Keep large Python lists in
NumPy arrays, so that forked workers share them. If this is not enough, use a machine with more memory.
""",
    "ranks.balance": """
All ranks get the same amount of work and machines of the same speed.

## When it helps

One rank is slower than the others, and they wait for it in each collective. The finding names the rank and the phase
that takes longer on this rank.

## Safety class

Exact if the cause is the host or the device of the rank. Semantic if samples move from one rank to another.

## How to do it

- If the phase is `data_wait`, compare the loader, the disk and the file sizes of that rank with those of the other
  ranks.
- If the phase is `forward` or `backward`, compare the input lengths of that rank with those of the other ranks. Group
  samples of similar length, so that the batches of all ranks take equally long.
- If all phases take longer, check the clock, the temperature and the other processes of that rank's machine.
""",
}
