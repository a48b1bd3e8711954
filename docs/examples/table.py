# SPDX-License-Identifier: Apache-2.0
"""One process has a table, and another one reads and writes rows of it.

python table.py serve           prints its address, and waits for the other one
python table.py use ADDRESS
"""
import sys

import numpy
from pytern.transport import Context, PeerDown

ROWS, COLUMNS = 1000, 64
ROW_BYTES = 4 * COLUMNS


def serve(context):
    table = numpy.zeros((ROWS, COLUMNS), numpy.float32)
    with context.listen("auto://127.0.0.1:0") as listener:
        print(listener.address, flush=True)
        peer = listener.accept()
    with context.window(table, read=True, write=True) as window:
        peer.channel().send("table", window.describe()).wait()
        while (note := peer.wait_notified()) != b"end":
            row = int.from_bytes(note, "little")
            print(f"{peer.fabric}: row {row} is now {table[row, 0]:.1f}", flush=True)
    peer.close()


def use(context, address):
    peer = context.connect(address).wait_up()
    row = numpy.empty(COLUMNS, numpy.float32)
    with peer.open(peer.channel().recv("table").wait()) as remote:
        for number in (3, 999):
            remote.get(row, number * ROW_BYTES).wait()
            row += number
            remote.put(row, number * ROW_BYTES, note=number.to_bytes(8, "little")).wait()
        peer.notify(b"end").wait()
    peer.close()


with Context(name=sys.argv[1], timeout=60) as context:
    try:
        serve(context) if sys.argv[1] == "serve" else use(context, sys.argv[2])
    except PeerDown as error:
        sys.exit(str(error))
