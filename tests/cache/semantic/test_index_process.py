"""What the index does to its process: its threads, and its end."""

import subprocess
import sys
import threading

import faiss

from cache.semantic.index_layers import one_thread
from tests.support.process import ROOT, environment


def test_one_thread_is_nobody_elses_setting() -> None:
    faiss.omp_set_num_threads(2)
    seen = []
    with one_thread():
        seen.append(faiss.omp_get_max_threads())
        other = threading.Thread(target=lambda: seen.append(faiss.omp_get_max_threads()))
        other.start()
        other.join()
    assert seen[0] == 1
    assert seen[1] != 1 or faiss.omp_get_num_procs() == 1
    assert faiss.omp_get_max_threads() == 2


def test_the_process_ends_while_a_graph_is_built() -> None:
    program = """
import numpy as np
from cache.semantic import index_large
from cache.semantic.index import Index
index_large.GRAPH_FROM = 9_000
vectors = np.random.default_rng(1).standard_normal((20_000, 256)).astype(np.float32)  # seconds to build
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
index = Index(256, max_bytes=1 << 27)
for number in range(len(vectors)):
    index.add(b"c", b"%d" % number, vectors[number])
print(index.settled())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
