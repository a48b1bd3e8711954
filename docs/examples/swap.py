# SPDX-License-Identifier: Apache-2.0
"""Two processes exchange arrays.

python swap.py listen           prints its address, and waits for the other one
python swap.py connect ADDRESS
"""
import sys

import numpy
from pytern.transport import Context, PeerDown

with Context(name=sys.argv[1], timeout=60) as context:
    if sys.argv[1] == "listen":
        with context.listen("auto://127.0.0.1:0") as listener:
            print(listener.address, flush=True)
            peer = listener.accept()
    else:
        peer = context.connect(sys.argv[2]).wait_up()
    channel = peer.channel()

    mine = numpy.full((1000, 1000), len(sys.argv), numpy.float32)
    try:
        for step in range(10):
            arriving = channel.recv("array", step)
            leaving = channel.send("array", mine, step)
            theirs = numpy.asarray(arriving.wait())
            leaving.wait()  # only now may `mine` be changed
            mine = (mine + theirs) / 2
    except PeerDown as error:
        sys.exit(str(error))
    print(f"{peer.fabric}: the mean is {mine.mean():.3f}")
    peer.close()
