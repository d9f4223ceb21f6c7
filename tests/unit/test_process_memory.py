"""Commands with repeating steps keep freed memory, so that later steps touch no new pages."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from limner.process import keep_freed_memory
if sys.argv[1] == "retained":
    assert keep_freed_memory()
torch.set_num_threads(1)
network = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(2)), torch.nn.Linear(1024, 1000))
pages = []
for _ in range(16):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    network(torch.ones(8, 1024)).logsumexp(1).sum().backward()
    network.zero_grad()
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(pages[6:]))  # the heap grows in the first steps
"""


PROGRAM_OF_THREADS = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
import torch
from limner.process import keep_freed_memory
if sys.argv[1] == "retained":
    assert keep_freed_memory()
torch.set_num_threads(1)
pages = []
for _ in range(16):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with ThreadPoolExecutor(1) as pool:  # as many backbones, which start threads for every batch
        pool.submit(lambda: [torch.ones(5_000_000).sum() for _ in range(3)]).result()
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(pages[6:]))  # the heap grows in the first steps
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is not given by glibc")
@pytest.mark.parametrize("program", [PROGRAM, PROGRAM_OF_THREADS])
def test_repeated_steps_allocate_no_new_memory_pages(program):
    pages = {
        how: int(subprocess.run([sys.executable, "-c", program, how], check=True, capture_output=True).stdout)
        for how in ("retained", "released")
    }

    assert pages["retained"] < pages["released"] / 4
