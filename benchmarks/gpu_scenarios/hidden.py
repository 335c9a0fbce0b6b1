"""Run another program with the GPUs that a launcher gives a rank: hidden.py own|none PROGRAM ...

own: rank N sees GPU N and no other; none: the last rank sees no GPU.
"""

import os
import runpy
import sys

rank = int(os.environ["LOCAL_RANK"])
if sys.argv[1] == "own":
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
elif rank == int(os.environ["LOCAL_WORLD_SIZE"]) - 1:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.argv = [os.path.join(os.path.dirname(os.path.abspath(__file__)), sys.argv[2]), *sys.argv[3:]]
runpy.run_path(sys.argv[0], run_name="__main__")
