# SPDX-License-Identifier: Apache-2.0
"""What the Python package says of wrong arguments, and that no misuse ends the interpreter. No server runs.

usage: arguments.py
"""
import contextlib
import errno
import gc
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import threading

import numpy
import pytern as tern
from pytern import _native, rules

from jobs import SCRATCH, TOP, tap

NOBODY = "tcp://127.0.0.1:1"  # where no server listens
for name in ("TERN_JOIN", "TERN_WORKERS", "TERN_INDEX", "TERN_SECRET_FILE"):
    os.environ.pop(name, None)


def refused(kind, sentence, call, *arguments, **options):
    """The call must raise an exception of exactly this class, with this sentence."""
    try:
        call(*arguments, **options)
    except Exception as error:
        assert type(error) is kind and str(error) == sentence, f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def session(**options):
    return tern.Session(**{"join": NOBODY, "steps": 10, "workers": 1, "index": 0, **options})


def sessions_say_which_argument_is_wrong():
    for kind, sentence, options in (
            (ValueError, "mode: expected 'sync', 'async', or 'ssp:K' with K from 0 to 2^40, got 'fast'", {"mode": "fast"}),
            (ValueError, "mode: expected 'sync', 'async', or 'ssp:K' with K from 0 to 2^40, got 'ssp:-1'", {"mode": "ssp:-1"}),
            (ValueError, "mode: expected 'sync', 'async', or 'ssp:K' with K from 0 to 2^40, got 'async:1'", {"mode": "async:1"}),
            (ValueError, "steps: expected an integer from 1 to 18446744073709551615, got 0", {"steps": 0}),
            (TypeError, "steps: expected an integer, got float", {"steps": 1.5}),
            (ValueError, "slots: expected an integer from 0 to 4294967295, got -1", {"slots": -1}),
            (ValueError, f"batch: expected an integer from 1 to 4294967295, got {1 << 70}", {"batch": 1 << 70}),
            (ValueError, f"data: expected an integer from 0 to 18446744073709551615, got {1 << 64}", {"data": 1 << 64}),
            (TypeError, "optimizer: expected one such as Adam(lr=1e-3), got str", {"optimizer": "adam"}),
            (ValueError, "optimizer: Mean() is for single tensors: give it to Session.tensor()",
             {"optimizer": tern.Mean()}),
            (TypeError, "schedule: expected one such as Cosine(warmup=100), got str", {"schedule": "cosine"}),
            (TypeError, "schedule: expected one such as Cosine(warmup=100), got Init", {"schedule": tern.constant(1)}),
            (TypeError, "arithmetic: expected a string, got int", {"arithmetic": 1}),
            (ValueError, "arithmetic: expected a string without NUL characters, got 'a\\x00'", {"arithmetic": "a\0"}),
            (TypeError, "note: expected a function of one string, got int", {"note": 3}),
            (ValueError, "clip_norm: expected 0 (none) or more, got -1", {"clip_norm": -1}),
            (ValueError, "clip_norm: expected a finite number, got nan", {"clip_norm": float("nan")}),
            (ValueError, "eval_every: expected an integer from 0 to 4294967295, got -1", {"eval_every": -1}),
            (ValueError, "push: expected 'f32' or 'bf16', got 'f16'", {"push": "f16"}),
            (ValueError, "pull: expected 'f32' or 'bf16', got None", {"pull": None}),
            (ValueError, "timeout: expected a number of seconds, got -1", {"timeout": -1}),
            (ValueError, "server_wait: expected an integer from 0 to 86400, got 86401", {"server_wait": 86401}),
            (ValueError, "server_wait: expected an integer from 0 to 86400, got -1", {"server_wait": -1}),
            (TypeError, "server_wait: expected an integer, got float", {"server_wait": 0.5}),
            (TypeError, "on_rollback: expected a function of two steps, got int", {"on_rollback": 3}),
            (ValueError, "workers, index: expected both or neither", {"index": None}),
            (ValueError, "join a:1,a:1: expected HOST:PORT of each server, with commas between them, and each server once",
             {"join": "a:1,a:1"}),
            (ValueError, "secret file /none: No such file or directory", {"secret_file": "/none"})):
        if options is not None:
            refused(kind, sentence, session, **options)


def what_the_environment_lacks_is_told():
    refused(ValueError, "no address of a server: give `join`, or set TERN_JOIN, or start the program with `tern run`",
            session, join=None)
    with session(workers=None, index=None) as s:
        s.tensor("w", 3)
        refused(ValueError, "the number of workers is not known: give `workers` and `index`, or set TERN_WORKERS and "
                "TERN_INDEX, or start the program with `tern run --workers N`", s.slots)


def addresses_that_cannot_be_joined_are_refused():
    empty = ("the address of a server is empty: set TERN_JOIN, or `join`, to HOST:PORT of each server, with commas "
             "between them")
    refused(ValueError, empty, session, join="")
    for address, why in (
            ("127.0.0.1:99999", "not an address: "), ("127.0.0.1:0", "not an address: "),
            ("tcp://127.0.0.1:x", "not an address: "), ("127.0.0.1", "not an address: "),
            ("tpc://127.0.0.1:7000", "this host has no fabric of this name: ")):
        with session(join=address) as s:
            s.tensor("w", 3)
            try:
                next(iter(s.slots()))
            except (ValueError, tern.Error) as error:
                shown = address if "://" in address else f"auto://{address}"
                assert str(error).startswith(f"server 0 at {shown}: {why}"), error
            else:
                raise AssertionError(f"{address} was taken")


def tensors_say_what_is_wrong():
    with session() as s:
        for kind, sentence, arguments in (
                (ValueError, "tensor a: shape: expected at most 8 dimensions of 1 or more, got (3, 0)", ("a", (3, 0))),
                (ValueError, f"tensor a: shape: expected at most 8 dimensions of 1 or more, got {(1,) * 9}",
                 ("a", (1,) * 9)),
                (ValueError, "tensor a: shape: expected at most 8 dimensions of 1 or more, got "
                 f"{(1 << 40, 1 << 40)}", ("a", (1 << 40, 1 << 40))),
                (TypeError, "tensor a: shape: expected integers, got 1.5", ("a", 1.5)),
                (TypeError, "tensor a: shape: expected integers, got (2, '3')", ("a", (2, "3"))),
                (TypeError, "tensor a: init: expected one such as uniform(0.1), or an array of real numbers, got float",
                 ("a", 3, 0.1)),
                (TypeError, "tensor a: init: expected one such as uniform(0.1), or an array of real numbers, got str",
                 ("a", 3, "0.1")),
                (TypeError, "tensor a: init: expected one such as uniform(0.1), or an array of real numbers, got dtype complex128",
                 ("a", 3, numpy.zeros(3, complex))),
                (ValueError, "tensor a: init: expected an array of shape (3,), got (3, 1)", ("a", 3, numpy.zeros((3, 1)))),
                (ValueError, "tensor a: init: expected an array of shape (), got (1,)", ("a", (), [0.5])),
                (TypeError, "tensor a: shape: expected integers, as `init` is not an array", ("a",)),
                (TypeError, "tensor a: shape: expected integers, as `init` is not an array", ("a", None, tern.zeros())),
                (TypeError, "tensor a: optimizer: expected one such as Adam(lr=1e-3), got str", ("a", 3, None, "adam")),
                (ValueError, "tensor a: push: expected 'f32' or 'bf16', got 16", ("a", 3, None, None, 16)),
                (ValueError, "tensor a: pull: expected 'f32' or 'bf16', got 'bfloat16'",
                 ("a", 3, None, None, "bf16", "bfloat16")),
                (TypeError, "the name of a tensor: expected a string, got int", (3, 3)),
                (ValueError, "the name of tensor 0: expected 1 to 255 bytes, got none", ("", 3)),
                (ValueError, "the name of tensor 0: expected 1 to 255 bytes, got more", ("a" * 256, 3))):
            refused(kind, sentence, s.tensor, *arguments)
        assert [s.tensor(f"t{i}", numpy.int64(i + 1)).id for i in range(40)] == list(range(40))


def initial_values_are_read_when_the_session_starts():
    with session() as s:
        for i, values in enumerate(([1, 2], numpy.float64([1, 2]), numpy.arange(6).reshape(2, 3).T, numpy.float32(7))):
            assert s.tensor(f"t{i}", init=values).shape == numpy.shape(values)
    for values, number in (([3, numpy.nan], "1 is nan"), ([1e300, 1], "0 is inf")):
        with session() as s, numpy.errstate(over="ignore"):
            s.tensor("a", init=values)
            refused(ValueError, f"tensor a: initial value {number}: expected finite numbers", s.slots)
    # The array belongs to the session until the start.
    values = numpy.ones(4, numpy.float32)
    before = sys.getrefcount(values)
    with session() as s:
        s.tensor("a", init=values)
        assert sys.getrefcount(values) > before
        values[2] = numpy.inf
        refused(ValueError, "tensor a: initial value 2 is inf: expected finite numbers", s.slots)
    assert sys.getrefcount(values) == before
    with session() as s:
        s.tensor("a", 4, numpy.ones(4, numpy.float32))
        s.tensor("b", init=values[:2])
        s.slots()
        assert sys.getrefcount(values) == before


def jobs_that_cannot_be_are_refused_at_the_start():
    with session() as s:
        s.tensor("a", 3)
        s.tensor("a", 4)
        refused(ValueError, "two tensors have the name a", s.slots)
    with session(index=1) as s:
        s.tensor("a", 3)
        refused(ValueError, "index 1 of 1 workers: expected an index from 0 to the number of workers less one; only a job in "
                "sync mode gets more, from workers with a server_wait above 0", s.slots)
    with session(index=4096, server_wait=1) as s:
        s.tensor("a", 3)
        refused(ValueError, "index 4096: expected an index from 0 to 4095", s.slots)


def update_rules_that_cannot_be_are_refused_at_the_start():
    with session() as s:
        for i in range(17):
            s.tensor(f"t{i:02}", 3, optimizer=tern.SGD(lr=1 + i))
        refused(ValueError, "tensor t16: a job has at most 16 different rules of tensors", s.slots)
    with session(clip_norm=1) as s:
        s.tensor("a", 3, optimizer=tern.Mean())
        refused(ValueError, "the job is impossible: clip_norm: expected 0 in a job with the rule mean", s.slots)
    with session(optimizer=tern.Adam(epsilon=1e-60)) as s:  # 0 in float32
        s.tensor("a", 3)
        refused(ValueError, "rule adam: 1e-60 is too small for a float32", s.slots)


def optimizers_and_initial_values_are_checked():
    for kind, sentence, call in (
            (ValueError, "Adam: lr: expected more than 0, got 0", lambda: tern.Adam(lr=0)),
            (ValueError, "Adam: beta1: expected 0 or more, and below 1, got 1", lambda: tern.Adam(beta1=1)),
            (ValueError, "AdamW: epsilon: expected more than 0, got 0", lambda: tern.AdamW(epsilon=0)),
            (ValueError, "Momentum: momentum: expected 0 or more, and below 1, got -1", lambda: tern.Momentum(1, -1)),
            (ValueError, "SGD: weight_decay: expected 0 or more, got -1", lambda: tern.SGD(weight_decay=-1)),
            (ValueError, "RMSProp: lr: expected a finite number, got nan", lambda: tern.RMSProp(lr=float("nan"))),
            (TypeError, "SGD: lr: expected a number, got str", lambda: tern.SGD(lr="fast")),
            (ValueError, "uniform: expected a range, got 2.0 to 1.0", lambda: tern.uniform(2, 1)),
            (ValueError, "normal: expected a standard deviation of 0 or more, got -1", lambda: tern.normal(-1))):
        refused(kind, sentence, call)
    assert tern.uniform(0.5) == tern.uniform(-0.5, 0.5)
    assert (tern.normal(2, 1).a, tern.normal(2, 1).b) == (1, 2)


def schedules_are_checked():
    most = (1 << 40) - 1
    for kind, sentence, call in (
            (ValueError, f"Step: every: expected an integer from 1 to {most}, got 0", lambda: tern.Step(0, 0.5)),
            (TypeError, "Step: every: expected an integer, got float", lambda: tern.Step(1.5, 0.5)),
            (ValueError, "Step: factor: expected more than 0, at most 1, got 0", lambda: tern.Step(5, 0)),
            (ValueError, "Step: factor: expected more than 0, at most 1, got 1.5", lambda: tern.Step(5, 1.5)),
            (ValueError, "Linear: end: expected 0 to 1, got -1", lambda: tern.Linear(-1)),
            (ValueError, "Cosine: end: expected a finite number, got inf", lambda: tern.Cosine(float("inf"))),
            (ValueError, f"Cosine: steps: expected an integer from 0 to {most}, got -1", lambda: tern.Cosine(steps=-1)),
            (TypeError, "Linear: warmup: expected an integer, got str", lambda: tern.Linear(warmup="long")),
            (ValueError, f"Warmup: steps: expected an integer from 0 to {most}, got {1 << 40}",
             lambda: tern.Warmup(1 << 40))):
        refused(kind, sentence, call)


def fields_of_optimizers_are_those_of_the_library():
    """Each row of kernels/rules.h has a class with the same settings, defaults and ranges."""
    text = (TOP / "kernels" / "rules.h").read_text().replace("\\\n", " ")
    rows = {name: {"lr": lr, **dict(re.findall(r"TERN_SET\((\w+), ([^)]+)\)", settings))}
            for name, lr, settings in re.findall(r"Y\(X, [A-Z]+, (\w+), ., ., ([^,]+),(.*?)\)\s+(?=Y\(|\n)", text)}
    classes = {cls.name: cls for cls in tern.Optimizer.__subclasses__()}
    assert rows.keys() == classes.keys() and "adamw" in rows, (rows, classes)
    for name, row in rows.items():
        if name != "mean":
            expected = {key: float(value.rstrip("f")) for key, value in row.items()}
            assert classes[name]().settings() == expected, (name, expected)
    words = {"FRACTION": "0 or more, and below 1", "POSITIVE": "more than 0", "NOT_NEGATIVE": "0 or more"}
    ranges = {key: words[kind] for key, kind in re.findall(r"X\((\w+), TERN_RANGE_(\w+)\)", text)}
    assert {"lr": "more than 0", **ranges} == {key: says for key, (says, _) in rules._RANGES.items()}, ranges


def errors_have_a_status_and_can_be_pickled():
    error = pickle.loads(pickle.dumps(tern.Error(-errno.EPROTO, "so")))
    assert (str(error), error.status, error.errno) == ("so", -errno.EPROTO, errno.EPROTO)
    assert isinstance(tern.Timeout(-errno.ETIMEDOUT, "late"), TimeoutError)
    assert str(tern.Timeout(-errno.ETIMEDOUT, "late")) == "late"


def a_timeout_says_what_the_session_waits_for():
    with session(timeout=0.2) as s:
        s.tensor("w", 3)
        for _ in range(2):  # the session can still be used
            try:
                next(s.slots())
                raise AssertionError("a slot without a server")
            except tern.Timeout as error:
                assert str(error).startswith("no answer within 0.2 s: ") and len(str(error)) > 30, error
        s._timeout = None


def ctrl_c_comes_out_of_a_call_that_waits():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with session() as s:
            s.tensor("w", 3)
            next(s.slots())
        raise AssertionError("no KeyboardInterrupt")
    except KeyboardInterrupt:
        pass


def closed_sessions_raise():
    s = session()
    w = s.tensor("w", 3)
    s.close()
    s.close()
    for call in (s.slots, s.describe, lambda: w.value, lambda: s.tensor("v", 3), s.goes_on):
        assert refused(tern.Error, "the session is closed", call).errno == errno.EBADF


def another_thread_can_close_a_session_that_waits():
    s = session()
    s.tensor("w", 3)
    slots = s.slots()
    s._started = False  # close() does not wait for the end of a job that has no server
    threading.Timer(0.3, s.close).start()
    refused(tern.Error, "the session is closed", next, slots)


def sessions_that_nobody_closes_are_collected():
    for _ in range(3):
        s = session()
        s.myself = s
        w = s.tensor("w", 3)
        s.slots()
        del s
        gc.collect()
        del w
        gc.collect()


def metrics_and_weights_say_what_is_wrong():
    with session() as s:
        for name in ("", "a b", "\x1b[m", "n" * 64, "\xf6"):
            refused(ValueError, "metric: expected a name of 1 to 63 printable ASCII characters without blanks, got "
                    f"{name!r}", s.metric, name, 1)
        refused(TypeError, "metric: expected a string, got int", s.metric, 1, 1)
        refused(TypeError, "metric a: expected a number, got str", s.metric, "a", "much")
        assert refused(tern.Error, "the session has not started", s.metric, "a", 1).errno == errno.EINVAL
        slot = tern.session.Slot(s, 1, 0, 0, 0, 7, False, False)
        refused(ValueError, "weight: expected a number from 0 to 1e30, got -1", slot.loss, 1, -1)
        refused(ValueError, "weight: expected a finite number, got nan", slot.loss, 1, float("nan"))
        refused(TypeError, "weight: expected a number, got str", slot.loss, 1, "x")


def the_c_part_survives_what_no_program_should_say():
    native = _native.Session(NOBODY, None)
    native.tensor("w", (3,), 0, 0.0, 0.0, None, None)
    assert native.push.__name__ == "push"
    for call, kind in (
            (lambda: native.tensor("a", (1 << 62, 8), 0, 0.0, 0.0, None, None), ValueError),
            (lambda: native.tensor("a", (-1,), 0, 0.0, 0.0, None, None), ValueError),
            (lambda: native.tensor("a", ("3",), 0, 0.0, 0.0, None, None), TypeError),
            (lambda: native.tensor("a", (3,), 0, 0.0, 0.0, "adam", None), TypeError),
            (lambda: native.tensor("a", (3,), 0, 0.0, 0.0, ("adam", "fast"), None), TypeError),
            (lambda: native.tensor("a", (3,), 0, 0.0, 0.0, ("magic", *[0.0] * 7), None), tern.Error),
            (lambda: native.tensor("a", (3,), 4, 0.0, 0.0, None, numpy.zeros(2, numpy.float32)), ValueError),
            (lambda: native.tensor("a", (3,), 4, 0.0, 0.0, None, numpy.zeros(3)), ValueError),
            (lambda: native.tensor("a", (3,), 4, 0.0, 0.0, None, bytes(12)), ValueError),
            (lambda: native.tensor("a", (3,), 4, 0.0, 0.0, None, "three"), TypeError),
            (lambda: native.tensor("a", (3,), 4, 0.0, 0.0, None, None), tern.Error),
            (lambda: native.tensor("a", (3,), 0, 0.0, 0.0, None, numpy.zeros(3, numpy.float32)), tern.Error),
            (lambda: native.start(1, 0, 0, 0, 9, 0, 0.0, "", 0, 0, 0, None, ("constant", 0, 0, 0.0), False), TypeError),
            (lambda: native.start(1, 0, 0, 0, 9, 0, 0.0, "", 0, 0, 0, ("sgd", *[0.0] * 7), (), False), TypeError),
            (lambda: native.push(0, 0, numpy.zeros(3, numpy.float32)), tern.Error),
            (lambda: native.push(-1, 0, 0), OverflowError),
            (lambda: native.push(0), TypeError),
            (lambda: native.push("0", 0, 0), TypeError),
            (lambda: native.view(0, 1 << 31), tern.Error),
            (lambda: native.read(1, 0, bytearray(12)), tern.Error),
            (lambda: native.param(7, bytearray(12)), IndexError),
            (lambda: native.param(0, bytearray(12)), tern.Error),
            (lambda: native.end(0, 0.0, 1.0), tern.Error),
            (lambda: native.metric("a", 0.0), tern.Error),
            (lambda: native.metric("a", "much"), TypeError),
            (lambda: native.fail(3, "x"), tern.Error),
            (lambda: native.next("soon"), TypeError),
            (lambda: native.next(0.0), tern.Error),
            (lambda: _native.Session(), TypeError),
            (lambda: type(native.notes).__new__(type(native.notes)), TypeError),
            (lambda: _native.Session("a\0b", None), ValueError),
            (lambda: _native.Session(NOBODY, None, 86401), tern.Error),
            (lambda: _native.Session(NOBODY, None, "long"), TypeError)):
        try:
            call()
        except kind:
            continue
        raise AssertionError(kind)


def notes_that_cannot_be_printed_do_not_end_the_training():
    said = []

    def note(text):
        said.append(text)
        raise OSError("no terminal")

    with contextlib.redirect_stderr(io.StringIO()) as errors, session(note=note, timeout=0.1) as s:
        s._native = type("Notes", (), {"notes": lambda self: ["one", "two"], "next": lambda self, seconds: False,
                                       "start": lambda self, *job: None, "close": lambda self: None,
                                       "finisher": lambda self, seconds: False, "ended": lambda self, seconds: True})()
        assert list(s.slots()) == []
    assert said[:2] == ["one", "two"], said
    assert "OSError: no terminal" in errors.getvalue()


def digests_differ_if_the_data_differs():
    array = numpy.arange(6, dtype=numpy.float32)
    digests = {tern.digest(array), tern.digest(array.reshape(2, 3)), tern.digest(array.astype(float)),
               tern.digest(array[::-1]), tern.digest("a", "b"), tern.digest("ab"), tern.digest(b"ab", array)}
    assert len(digests) == 7 and all(0 < d < 1 << 64 for d in digests)
    assert tern.digest(array[::2]) == tern.digest(array[::2].copy())
    refused(TypeError, "digest: expected arrays of numbers, bytes or strings, got object", tern.digest, object())


def secret_files_are_checked():
    path = SCRATCH / "secret"
    path.write_text("0123456789abcdef0123\n")
    path.chmod(0o644)
    refused(ValueError, f"secret file {path}: other users can read or change it (mode 0644), must be 0600", session,
            secret_file=path)
    path.chmod(0o600)
    session(secret_file=path).close()


def a_child_says_nothing_of_its_parents_session():
    done = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", "import os, pytern\n"
                           f"s = pytern.Session('{NOBODY}', steps=3)\n"
                           "if os.fork() == 0:\n"
                           "    del s\n"
                           "    raise SystemExit(0)\n"
                           "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))"], capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


tap.run([
    sessions_say_which_argument_is_wrong,
    what_the_environment_lacks_is_told,
    addresses_that_cannot_be_joined_are_refused,
    tensors_say_what_is_wrong,
    initial_values_are_read_when_the_session_starts,
    jobs_that_cannot_be_are_refused_at_the_start,
    update_rules_that_cannot_be_are_refused_at_the_start,
    optimizers_and_initial_values_are_checked,
    schedules_are_checked,
    fields_of_optimizers_are_those_of_the_library,
    errors_have_a_status_and_can_be_pickled,
    a_timeout_says_what_the_session_waits_for,
    ctrl_c_comes_out_of_a_call_that_waits,
    closed_sessions_raise,
    another_thread_can_close_a_session_that_waits,
    sessions_that_nobody_closes_are_collected,
    metrics_and_weights_say_what_is_wrong,
    the_c_part_survives_what_no_program_should_say,
    notes_that_cannot_be_printed_do_not_end_the_training,
    digests_differ_if_the_data_differs,
    secret_files_are_checked,
    a_child_says_nothing_of_its_parents_session,
])
