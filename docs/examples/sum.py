# SPDX-License-Identifier: Apache-2.0
"""Two processes add their arrays.

python sum.py listen            prints its address, and waits for the other one
python sum.py connect ADDRESS
"""
import sys

import numpy
import pytern
from pytern.transport import Context

GROUP = 1  # a number that no channel of the peers has


def add(context, rank, peer):
    values = numpy.arange(6, dtype=numpy.float32) * 10**rank
    peers = [None, peer] if rank == 0 else [peer, None]  # by rank; one's own place is empty
    with context.group(rank, 2, peers, GROUP) as group:
        group.all_reduce(values).wait()
        group.barrier().wait()
    print(f"rank {rank} over {peer.fabric}: {values}")
    peer.close()


with Context(name=sys.argv[1], timeout=60) as context:
    try:
        if sys.argv[1] == "listen":
            with context.listen("auto://127.0.0.1:0") as listener:
                print(listener.address, flush=True)
                add(context, 0, listener.accept())
        else:
            add(context, 1, context.connect(sys.argv[2]).wait_up())
    except pytern.Error as error:
        sys.exit(str(error))
