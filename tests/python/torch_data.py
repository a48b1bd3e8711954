# SPDX-License-Identifier: Apache-2.0
"""The batches that pytern.torch reads, in the calling process and ahead in others. No server runs: native_model.py
stands for them.

usage: torch_data.py
"""
import with_torch  # noqa: F401  (must be the first: it may start this script again, with another Python)
import ctypes
import gc
import multiprocessing
import os
import random
import signal
import sys
import time

import numpy
import pytern as tern
import pytern.torch
import torch
from torch import nn

from jobs import tap
from native_model import session
from pytern.torch.data import Processes

RECORDS, SLOTS = 40, 7
Server = pytern.torch.Server


class Dataset:
    """Records with random augmentation. `seen` counts the reads of each record, in all processes."""

    def __init__(self, act=None):
        self.act = act
        self.seen = multiprocessing.Array(ctypes.c_int, RECORDS)

    def __len__(self):
        return RECORDS

    def __getitem__(self, record):
        with self.seen.get_lock():
            self.seen[record] += 1
        if self.act:
            self.act(record)
        return torch.full((3,), float(record)), torch.rand(2), numpy.random.rand(), random.random(), f"record {record}"


def collate(items):
    """In this order the random numbers of collate_fn would be others if a record drew none."""
    return [*torch.utils.data.default_collate(items), torch.rand(1)]


def slots_of(dataset, each=lambda server, slot, batch: None, slots=SLOTS, native=None, **options):
    """Trains a module without a meaning, and returns the batches."""
    s, of_session = session(slots, records=RECORDS)
    if native:
        native(of_session)
    with s:
        server = Server(nn.Linear(3, 1), s)
        batches = []
        for slot, batch in server.slots(dataset, **{"collate_fn": collate, **options}):
            with slot:
                each(server, slot, batch)
                slot.loss(0)
            batches.append(batch)
    return batches


def nobody_is_left():
    gc.collect()
    assert not multiprocessing.active_children(), multiprocessing.active_children()


def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        assert type(error) is kind and str(error).startswith(sentence), f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


# ---- what is read ----

def same(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else list(a) == list(b) for x, y in zip(one, other) for a, b in zip(x, y, strict=True))


def batches_are_the_same_for_any_number_of_processes():
    alone = slots_of(Dataset())
    assert len(alone) == SLOTS and alone[0][0][:, 0].tolist() == [1, 2, 3, 4] and alone[0][4][0] == "record 1"
    assert len({batch[1].sum().item() for batch in alone}) == SLOTS
    for workers, prefetch in ((1, 1), (1, 5), (3, 3), (2, None), (3, 40)):
        torch.rand(workers)
        assert same(alone, slots_of(Dataset(), workers=workers, prefetch=prefetch)), (workers, prefetch)
        nobody_is_left()
    # A loader has one intra-op thread, however many the server has.
    s, _ = session(1, records=RECORDS)
    with s:
        server = Server(nn.Linear(3, 1), s, threads=2)
        for slot, threads in server.slots([0] * RECORDS, collate_fn=lambda items: torch.get_num_threads()):
            with slot:
                assert threads == 1 and torch.get_num_threads() == 2
                slot.loss(0)
    torch.set_num_threads(1)


def tensors_come_in_shared_memory_and_may_be_changed_and_kept():
    def each(server, slot, batch):
        assert batch[0].is_shared() and not batch[0].requires_grad
        batch[0].add_(1)
    kept = slots_of(Dataset(), each, workers=2)
    assert [batch[0][0, 0].item() for batch in kept] == [slot + 2 for slot in range(SLOTS)]


def no_more_is_read_ahead_than_prefetch_says():
    """Each record is in the batches of the next four slots, so a record's count says which slots were read."""
    dataset = Dataset()

    def each(server, slot, batch):
        deadline = time.monotonic() + 20
        expected = min(SLOTS, slot.step + 1 + 3) * 4
        while sum(dataset.seen) < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)  # for those that would read too much
        assert sum(dataset.seen) == expected, (slot.step, sum(dataset.seen))
    slots_of(dataset, each, workers=2, prefetch=3)
    assert sum(dataset.seen) == SLOTS * 4


def a_slot_out_of_turn_is_read_at_once_and_others_are_dropped():
    """The session says that each slot follows on the one before, and after the third one another comes."""
    dataset = Dataset()
    pid = os.getpid()
    here = []
    dataset.act = lambda record: here.append(record) if os.getpid() == pid else None

    def skip(native):
        step = native.next

        def with_a_loss(seconds):
            if native.turn == 3:
                native.turn = 5  # the slots 3 and 4 of the steps are another's now
            return step(seconds)
        native.next = with_a_loss

        def told(count, real=native.ahead):
            return [one for one in real(count + 1) if one[0] != 6][:count]  # the last slot comes as a surprise
        native.ahead = told
    def each(server, slot, batch):
        """Whatever was read of the slots that are another's is given back."""
        processes = server._batches._processes
        while slot.step == 5 and any(key[0] < 5 for p in processes._processes for key in p.pending):
            processes.collect(1)
        assert all(key[0] > slot.step for key in processes._ready), (slot, processes._ready)
    batches = slots_of(dataset, each, native=skip, workers=2, prefetch=3)
    alone = slots_of(Dataset())
    assert same(batches, [alone[i] for i in (0, 1, 2, 5, 6)])
    assert here == [7, 8, 9, 10], here  # of the slot of step 6
    nobody_is_left()


def a_batch_that_is_dropped_while_it_is_read_is_not_kept():
    processes = Processes(Dataset(), collate, 1, 2, 4)
    records = numpy.arange(4, dtype=numpy.uint64).tobytes()
    for kept in ({(0, 0)}, set()):
        processes.keep({(0, 0)})
        processes.ask([(0, 0, 1, records)])
        processes.keep(kept)
        while processes._processes[0].pending:
            processes.collect(1)
        assert processes.has((0, 0)) is bool(kept)
        processes.keep(set())
    processes.close()
    nobody_is_left()


def a_slot_that_is_computed_twice_is_read_twice():
    def twice(native):
        step, again = native.next, []

        def repeat(seconds):
            if native.turn == 1 and not again:
                again.append(True)
                native.holds = True
                native.pushed = {}
                return 1, 0, 0, 4, 1001, True, False, False
            return step(seconds)
        native.next = repeat
    for workers in (0, 2):
        dataset = Dataset()
        batches = slots_of(dataset, lambda server, slot, batch: batch[0].zero_() if slot.repeated else None, native=twice,
                           workers=workers)
        assert len(batches) == SLOTS + 1 and torch.equal(batches[0][1], batches[1][1])
        assert batches[0][0][0, 0] == 1 and sum(dataset.seen) == (SLOTS + 1) * 4


# ---- what goes wrong ----

def no_luck(record):
    if record == 6:
        raise KeyError("no luck")


def a_record_that_cannot_be_read_is_named_with_the_traceback():
    for workers in (0, 2):
        error = refused(tern.Error, "slot 0 of step 2: record 6 cannot be read: KeyError: 'no luck'", slots_of,
                        Dataset(no_luck), workers=workers)
        cause = error.__cause__
        assert isinstance(cause, KeyError) if workers == 0 else "in no_luck\n    raise KeyError(\"no luck\")" in str(cause), cause
        nobody_is_left()
        refused(tern.Error, "slot 0 of step 0: the batch cannot be made of its records: ZeroDivisionError: division by zero",
                slots_of, Dataset(), workers=workers, collate_fn=lambda items: 1 / 0)
    refused(tern.Error, "slot 0 of step 0: the batch cannot be made of its records: ", slots_of, Dataset(), workers=1,
            collate_fn=lambda items: lambda: items)
    nobody_is_left()


class Gone:
    """Cannot be made anew from what pickle says of it."""

    def __reduce__(self):
        return open, ("/there/is/no/such/file",)


def a_batch_that_cannot_be_unpickled_is_no_death():
    error = refused(tern.Error, "slots: a batch of loader process ", slots_of, Dataset(), workers=1,
                    collate_fn=lambda items: Gone())
    assert " cannot be read: FileNotFoundError: " in str(error) and isinstance(error.__cause__, FileNotFoundError), error
    nobody_is_left()


def a_process_that_dies_is_told_with_its_record():
    pid = os.getpid()

    def die(how):
        return lambda record: how() if record == 6 and os.getpid() != pid else None
    for how, words in ((lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
                       (lambda: os._exit(3), "ended with exit code 3")):
        error = refused(tern.Error, "loader process ", slots_of, Dataset(die(how)), workers=2)
        assert f" {words} while it read record 6, for slot 0 of step " in str(error) and str(error)[-1] in "2345", error
        nobody_is_left()

    forked = multiprocessing.RawValue(ctypes.c_int)

    def leave_a_child():
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        forked.value = child
        os.kill(os.getpid(), signal.SIGKILL)
    refused(tern.Error, "loader process ", slots_of, Dataset(die(leave_a_child)), workers=1, collate_fn=len)
    os.kill(forked.value, signal.SIGKILL)  # it is still there, with the other end of the connection
    nobody_is_left()

    def kill_all(server, slot, batch):
        if slot.step == 2:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)
                child.join()
    error = refused(tern.Error, "loader process ", slots_of, Dataset(), kill_all, workers=1, prefetch=1)
    assert str(error).split(" ", 3)[3].startswith("was killed by SIGKILL "), error


def no_process_is_left_however_the_loop_ends():
    def after_two(how):
        def each(server, slot, batch):
            assert len(multiprocessing.active_children()) == 2
            if slot.step == 2:
                how()
        return each

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    def fail():
        raise ValueError("no luck")
    for kind, how in ((KeyboardInterrupt, interrupt), (ValueError, fail)):
        try:
            slots_of(Dataset(), after_two(how), workers=2)
            raise AssertionError("the loop goes on")
        except kind:
            nobody_is_left()
    s, _ = session(SLOTS, records=RECORDS)
    with s:
        server = Server(nn.Linear(3, 1), s)
        for slot, batch in server.slots(Dataset(), workers=2):
            with slot:
                slot.loss(0)
            break
    nobody_is_left()
    s, _ = session(SLOTS, records=RECORDS)
    server = Server(nn.Linear(3, 1), s)
    iterator = server.slots(Dataset(), workers=2)
    next(iterator)
    assert len(multiprocessing.active_children()) == 2
    s.close()
    nobody_is_left()


def a_process_that_does_not_end_is_killed():
    pid = os.getpid()

    def hang(record):
        while record == 9 and os.getpid() != pid:
            time.sleep(1)
    slots_of(Dataset(hang), slots=SLOTS, workers=2, native=lambda native: setattr(native, "end", end_at(native, 3)))
    nobody_is_left()


def end_at(native, slots):
    """The job ends after so many slots, while later ones are read."""
    end = native.end

    def ended(turn, *rest):
        end(turn, *rest)
        if turn == slots:
            native.count = slots
    return ended


def a_dataset_may_be_sent_to_a_process_that_was_spawned():
    """Under "spawn" the dataset is pickled, and the processes import this script again."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        data = torch.utils.data.TensorDataset(torch.arange(float(RECORDS)))
        got = slots_of(data, slots=2, workers=1, collate_fn=None)
        assert [batch[0].tolist() for batch in got] == [[1, 2, 3, 4], [2, 3, 4, 5]]
        refused(TypeError, "slots: the dataset cannot be sent to another process: ", slots_of, [lambda: 0] * RECORDS, workers=1)
        refused(TypeError, "slots: collate_fn cannot be sent to another process: ", slots_of, data, workers=1,
                collate_fn=lambda items: items)
        nobody_is_left()
    finally:
        multiprocessing.set_start_method(before, force=True)


def what_cannot_be_read_ahead_is_refused():
    s, _ = session(records=RECORDS)
    server = Server(nn.Linear(3, 1), s)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())
    data = torch.utils.data.TensorDataset(torch.zeros(RECORDS, 3))
    for wrong in (torch.utils.data.DataLoader(data), torch.utils.data.RandomSampler(data)):
        refused(TypeError, f"slots: expected a dataset, got {type(wrong).__name__}: the servers say which records each slot "
                "has, and a sampler would choose others, far ahead of the slots, and wrong ones after the loss", server.slots,
                wrong)
    refused(TypeError, "slots: expected a dataset whose records have numbers, got Stream, which chooses their order itself",
            server.slots, Stream())
    refused(TypeError, "slots: expected a dataset with a length and items, got int", server.slots, 3)
    refused(ValueError, "slots: the dataset has 2 records, and the session was made with records=40", server.slots, [1, 2])
    for options, sentence in (
            ({"workers": -1}, "slots: workers: expected an integer from 0 to 256, got -1"),
            ({"workers": "2"}, "slots: workers: expected an integer from 0 to 256, got '2'"),
            ({"workers": True}, "slots: workers: expected an integer from 0 to 256, got True"),
            ({"workers": 3, "prefetch": 2}, "slots: prefetch: expected an integer from 3 to 256, got 2"),
            ({"workers": 1, "prefetch": 2.0}, "slots: prefetch: expected an integer from 1 to 256, got 2.0"),
            ({"prefetch": 2}, "slots: prefetch: without `workers` nothing is read ahead")):
        refused(ValueError, sentence, server.slots, data, **options)
    refused(TypeError, "slots: collate_fn: expected a function of a list, got int", server.slots, data, collate_fn=3)
    refused(TypeError, "slots: collate_fn, workers and prefetch need a dataset", server.slots, workers=2)


def a_loop_that_does_not_look_at_its_records_is_told():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(RECORDS, 3)), batch_size=4)
    s, native = session(SLOTS, records=RECORDS)

    def loop(looks):
        with s:
            server = Server(nn.Linear(3, 1), s)
            for slot, (x,) in zip(server.slots(), loader):
                with slot:
                    if looks:
                        assert len(slot.records) == 4
                    slot.loss(0)
    sentence = "slot 0 of step 0: the program did not look at slot.records, although the session has records=40: "
    refused(tern.Error, sentence, loop, False)
    assert native.failures[0].startswith("pytern.Error: " + sentence[:60]) and not native.history, native.failures
    s, native = session(SLOTS, records=RECORDS)
    loop(True)
    assert len(native.history) == SLOTS


if __name__ == "__main__":
    CASES = [
        batches_are_the_same_for_any_number_of_processes,
        tensors_come_in_shared_memory_and_may_be_changed_and_kept,
        no_more_is_read_ahead_than_prefetch_says,
        a_slot_out_of_turn_is_read_at_once_and_others_are_dropped,
        a_batch_that_is_dropped_while_it_is_read_is_not_kept,
        a_slot_that_is_computed_twice_is_read_twice,
        a_record_that_cannot_be_read_is_named_with_the_traceback,
        a_batch_that_cannot_be_unpickled_is_no_death,
        a_process_that_dies_is_told_with_its_record,
        no_process_is_left_however_the_loop_ends,
        a_process_that_does_not_end_is_killed,
        a_dataset_may_be_sent_to_a_process_that_was_spawned,
        what_cannot_be_read_ahead_is_refused,
        a_loop_that_does_not_look_at_its_records_is_told,
    ]
    tap.run([case for case in CASES if len(sys.argv) < 2 or case.__name__ in sys.argv[1:]])
