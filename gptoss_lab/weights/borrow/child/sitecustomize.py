"""Loaded by every Python process below `prove`: makes the Run:ai streamer's recycled buffers unreadable.

Python imports a module of this name at its start, from PYTHONPATH, so processes that the proved command starts get it
too. Nothing is imported here but the standard library; the streamer's classes are changed, in memory, when the command
imports them. Each request then gets a mapping of its own, and when the next request is sent, the mapping before loses
all permissions. A late read is a fault of the processor: faulthandler writes the Python lines of all threads, and
after it `on_fault` writes which tensor the address belongs to. Then the process ends by the signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib.machinery
import importlib.util
import json
import mmap
import os
import signal
import sys

LOG_VARIABLE = "GPTOSS_LAB_PROVE_LOG"
RECORD = "late read: "
NO_RESERVE = 0x4000  # MAP_NORESERVE: the pages of a request that nobody touches cost nothing
SA_SIGINFO, SA_NODEFER = 4, 0x40000000
CODE_OFFSET, ADDRESS_OFFSET = 8, 16  # of si_code and si_addr in siginfo_t, on 64-bit Linux


class Sigaction(ctypes.Structure):
    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


class Mapping:
    """One request's buffer. It is never unmapped: an address that came back would hide a late read."""

    all: list[Mapping] = []

    def __init__(self, nbytes: int) -> None:
        import numpy

        self.pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
        with contextlib.suppress(OSError):  # a kernel without them
            self.pages.madvise(mmap.MADV_HUGEPAGE)  # fewer faults while it is filled
        self.buffer = numpy.frombuffer(self.pages, dtype=numpy.uint8)
        self.first = self.buffer.ctypes.data
        self.slots: list[tuple[int, int, str]] = []  # first address, last address + 1, name of a yielded tensor
        self.protected = False

    def protect(self) -> None:
        """Give the pages back and refuse every access from now on."""
        self.pages.madvise(mmap.MADV_DONTNEED)
        self.protected = True
        size = -(-len(self.pages) // mmap.PAGESIZE) * mmap.PAGESIZE
        if libc.mprotect(ctypes.c_void_p(self.first), ctypes.c_size_t(size), 0):
            raise OSError(ctypes.get_errno(), "mprotect refused to take a recycled buffer away")

    def holds(self, address: int) -> bool:
        return self.first <= address < self.first + len(self.pages)


def patch_requests(module) -> None:
    """Give each request a mapping of its own, and take the one before away."""
    buffered = module.FilesRequestsIteratorWithBuffer
    original = buffered.next_request

    def next_request(self):
        if not self.buffer.nbytes:
            return original(self)
        before, fresh = self.buffer, Mapping(self.buffer.nbytes)
        self.buffer = fresh.buffer
        request = original(self)  # cuts its slots out of `self.buffer`
        if request is None:  # the stream is over, and the last request stays
            self.buffer = before
            return None
        Mapping.all.append(fresh)
        if getattr(self, "mapping", None) is not None:
            self.mapping.protect()
        self.mapping = fresh
        return request

    buffered.next_request = next_request


def patch_streamer(module) -> None:
    """Note where each yielded tensor lies."""
    streamer = module.SafetensorsStreamer
    original = streamer.get_tensors

    def get_tensors(self):
        yield from map(book, original(self))

    streamer.get_tensors = get_tensors


def book(item):
    name, tensor = item
    first = tensor.data_ptr()
    for mapping in reversed(Mapping.all):
        if mapping.holds(first):
            mapping.slots.append((first, first + tensor.nbytes, name))
            break
    return item


PATCHES = {
    "runai_model_streamer.file_streamer.requests_iterator": patch_requests,
    "runai_model_streamer.safetensors_streamer.safetensors_streamer": patch_streamer,
}


class PatchOnImport:
    """A finder that changes the streamer's modules when they have been imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                PATCHES[name](module)

            spec.loader.exec_module = exec_module
        return spec


def on_fault(number, info, context) -> None:
    """Say which tensor was read. Runs after faulthandler has written its lines, in the thread that failed.

    faulthandler ends with raising the signal itself, which comes here first and is let pass. The read is tried again,
    fails again, and comes here with its address.
    """
    if ctypes.c_int.from_address(info + CODE_OFFSET).value <= 0:
        return
    address = ctypes.c_void_p.from_address(info + ADDRESS_OFFSET).value or 0
    for mapping in Mapping.all:
        if mapping.protected and mapping.holds(address):
            names = [name for first, stop, name in mapping.slots if first <= address < stop]
            record = {"pid": os.getpid(), "tensor": names[0] if names else None}
            os.write(log.fileno(), f"\n{RECORD}{json.dumps(record)}\n".encode())
    libc.signal(signal.SIGSEGV, None)  # the default: end the process


def catch_faults(folder: str) -> None:
    """Install both handlers, with a log of this process's own."""
    global log
    log = open(os.path.join(folder, f"{os.getpid()}.log"), "ab", buffering=0)  # noqa: SIM115
    libc.sigaction(signal.SIGSEGV, ctypes.byref(action), None)
    faulthandler.enable(file=log, all_threads=True)


def run_the_other_sitecustomize() -> None:
    """This module hides one that the environment may have: run that too."""
    here = os.path.dirname(os.path.abspath(__file__))
    elsewhere = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if LOG_VARIABLE in os.environ:
    libc = ctypes.CDLL(None, use_errno=True)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(on_fault)
    action = Sigaction(ctypes.cast(handler, ctypes.c_void_p), (ctypes.c_ulong * 16)(), SA_SIGINFO | SA_NODEFER, None)
    sys.meta_path.insert(0, PatchOnImport)
    catch_faults(os.environ[LOG_VARIABLE])

    def after_fork() -> None:
        faulthandler.disable()
        catch_faults(os.environ[LOG_VARIABLE])

    os.register_at_fork(after_in_child=after_fork)
    run_the_other_sitecustomize()
