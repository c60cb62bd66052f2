"""Worker processes: their share of the cores."""

from twinloop.core.pool import LocalProcesses, count_cores


def count(_):
    return count_cores()


def test_a_worker_counts_its_share_of_the_cores():
    cores = count_cores()
    with LocalProcesses(2) as engine:
        assert [found for _, found in engine.map(count, range(2))] == [max(1, cores // 2)] * 2
    assert count_cores() == cores
