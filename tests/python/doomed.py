# SPDX-License-Identifier: Apache-2.0
"""Runs a program, and ends it after some seconds by a signal if it is a certain worker.

usage: doomed.py WORKER SIGNAL SECONDS PROGRAM ARGUMENT...
"""
import os
import signal
import sys
import time

worker, name, seconds, *command = sys.argv[1:]
if os.environ["TERN_INDEX"] == worker and name != "none":
    mine = os.getpid()
    if os.fork() == 0:
        time.sleep(float(seconds))
        os.kill(mine, signal.Signals[name])
        os._exit(0)
os.execvp(command[0], command)
