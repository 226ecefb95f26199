"""The tiled operator of a schedule, as training builds it."""

from __future__ import annotations

from mercer.operators.tiled import TiledOperator


def square(kernel, points, V, n_outputs, schedule, tile_size=None):
    return TiledOperator(
        kernel,
        points,
        points,
        n_outputs,
        rows_at_once=schedule.longest,
        cuts=schedule.cuts,
        basis=V,
        tile_size=tile_size,
    )
