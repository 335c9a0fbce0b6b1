"""Pages of the remedies that concern the host and its GPUs."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "gpu.cooling": """
Improve the cooling of the GPU, so that the GPU does not have to lower its clock rate.

## When it helps

This change helps if the driver lowers the clock rate of the GPU because the GPU is too hot.

## Safety class

The safety class is exact: training computes the same numbers in less time.

## How to do it

Clean the fans and filters, check the air flow in the rack, and set the fans to start at a lower temperature. Until the
cooling is repaired, run the job on another node. `nvidia-smi -q -d TEMPERATURE` prints the current temperature of the
GPU and its temperature limits.
""",
    "gpu.debug": """
Run the program in a mode in which CUDA reports each error at the line of code that causes the error.

## When it helps

This change helps if the driver reported an Xid error that a program can cause, such as Xid 13 or 31 (an invalid memory
access). CUDA reports errors of kernels late, so the Python traceback usually names the wrong line.

## Safety class

The safety class is exact, because training computes the same numbers. With `CUDA_LAUNCH_BLOCKING=1`, the run is slower.

## How to do it

Run the program once with the environment variable `CUDA_LAUNCH_BLOCKING=1`, so that the traceback names the right line.
To see also which kernel failed and at which memory address, run `compute-sanitizer python train.py`.
""",
    "gpu.exclusive": """
Run the training on a GPU that no other process uses.

## When it helps

This change helps if another process computes on the same GPU, so that the two processes share its compute time and its
memory.

## Safety class

The safety class is exact, because training computes the same numbers.

## How to do it

End the other process if you started it, or choose a free GPU with `CUDA_VISIBLE_DEVICES`. An administrator can reserve
a GPU for one process with `nvidia-smi -c EXCLUSIVE_PROCESS`.
""",
    "gpu.pcie_slot": """
Connect the GPU so that its PCIe link runs at the full speed that the card and the slot support.

## When it helps

This change helps if the GPU is connected with fewer PCIe lanes or an older PCIe generation than the card and the slot
support, and copies between host and GPU take a visible share of step time.

## Safety class

The safety class is exact, because training computes the same numbers.

## How to do it

Take the card out and insert it again, or try another slot, riser or cable. Check the link speed in the firmware
settings. `nvidia-smi -q` prints the current and the fastest possible link speed under "GPU Link Info". Run `nvidia-smi
-q` while the GPU is busy, because an idle GPU lowers its link speed.
""",
    "gpu.power_limit": """
Raise the power limit of the GPU to its default. If the GPU overheats, lower the power limit slightly instead, so that
the clock rate stays constant.

## When it helps

This change helps if the power limit of the GPU was set below the default, so that the GPU lowers its clock rate to stay
below the limit. If the GPU overheats, a slightly lower power limit prevents its clock rate from repeatedly falling and
rising.

## Safety class

The safety class is exact, because training computes the same numbers.

## How to do it

Run `nvidia-smi -i GPU -pl WATTS` as an administrator. `nvidia-smi -q -d POWER` prints the default power limit and the
range of allowed power limits.
""",
    "gpu.power_supply": """
Have the power supply of the machine checked.

## When it helps

This change helps if the machine signals the GPU to use less power (a power brake). The usual causes are a failed power
supply or too many GPUs on one power supply.

## Safety class

The safety class is exact, because training computes the same numbers.

## How to do it

Tell the operator of the machine which host and which GPU have the problem. Run the job on another node until the power
supply is repaired.
""",
    "gpu.replace": """
Stop using the faulty GPU, or the node that contains it, for training.

## When it helps

This change helps if the GPU reported an uncorrectable memory error, or an Xid error that indicates a hardware fault.
Results that the GPU computes after a hardware fault can be wrong, and the next error can end the run.

## Safety class

The safety class is exact, because the run continues from a checkpoint on another GPU.

## How to do it

On another node, resume training from the last checkpoint that was saved before the error. Exclude the faulty node from
further jobs (Slurm: `scontrol update nodename=NODE state=drain reason=xid`; Kubernetes: `kubectl cordon NODE`), and
report the fault to the operator.
""",
    "host.cores": """
Give the program CPU cores that no other process uses.

## When it helps

This change helps if the program often waits for a CPU core because of other processes or because of the CPU quota of
its container. The program itself does not cause the waiting time.

## Safety class

The safety class is exact, because training computes the same numbers.

## How to do it

Choose one of three ways: move the other programs to another machine, raise the CPU quota (`docker run --cpus`,
`resources.limits.cpu` in Kubernetes, `--cpus-per-task` in Slurm), or pin the program to free cores with `taskset -c 0-7
python train.py`.
""",
    "host.memory": """
Reduce the host memory that the program uses.

## When it helps

This change helps if the processes of the run use nearly all memory of the host, or if the host moves memory pages to
disk (swapping).

## Safety class

The safety class is exact if you only reduce the number of workers or the size of queues and caches. A smaller shuffle
buffer is not exact, because it changes the order of the samples.

## How to do it

Use fewer loader workers or a smaller `prefetch_factor`, and limit the size of caches in the dataset. Convert large
Python lists to NumPy arrays, so that forked workers share their memory. If the program still uses too much memory, use
a machine with more memory.
""",
    "ranks.balance": """
Give all ranks the same amount of work, and run them on machines of the same speed.

## When it helps

This change helps if one rank is slower than the others, so that the other ranks wait for it in each collective
operation. The finding names the slow rank, and the phase of a step that takes longer on this rank.

## Safety class

The safety class is exact if the host or the GPU of the slow rank is the cause, and you fix the host or the GPU. The
safety class is semantic if you move samples from one rank to another.

## How to do it

- If the slow phase is `data_wait`, compare the loader, the disk and the file sizes of the slow rank with those of the
  other ranks.
- If the slow phase is `forward` or `backward`, compare the input lengths of the slow rank with those of the other
  ranks. Group samples of similar length, so that the batches of all ranks take equally long.
- If all phases take longer on the slow rank, check the CPU and GPU clock rates, the temperatures and the other
  processes of its machine.
""",
}
