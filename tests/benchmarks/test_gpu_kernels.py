import numpy as np

from benchmarks import gpu_kernels


def test_packed_rows_have_four_instances_with_positions_of_their_own():
    segments, positions = map(np.asarray, gpu_kernels._packed(8, 32))
    for row, places in zip(segments, positions, strict=True):
        assert sorted(set(row.tolist())) == [1, 2, 3, 4] and (np.diff(row) >= 0).all()
        assert [place for number in range(1, 5) for place in range((row == number).sum())] == places.tolist()
