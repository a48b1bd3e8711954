# SPDX-License-Identifier: Apache-2.0
"""Runs a program, after it has written the program's process number to the file FOLDER/WORKER.

usage: tell_pid.py FOLDER PROGRAM ARGUMENT...
"""
import os
import sys
from pathlib import Path

Path(sys.argv[1], os.environ["TERN_INDEX"]).write_text(str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])
