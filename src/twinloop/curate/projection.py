"""Rows of an encoder made comparable (whitened principal components) and drawn in two dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.files import sha256_bytes, sha256_json

Array = NDArray[np.float64]
Projection = Literal["pca", "umap"]
# Components that are kept: as many as hold this share of the variance of standardized columns, and not more than so
# many. The others are noise, which whitening would amplify (our choice, docs/evidence/scenarios.md).
SHARE, MOST = 0.95, 32
_FLAT = 1e-9  # of a column's size: below it the column is one number and its rounding
_UMAP_ROWS = 10_000  # 10,000 rows take 40 s; more take too long for a page


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Standardized columns, turned into principal components of unit variance.

    ``centre`` and ``scale`` ``(d,)`` are of the raw columns, ``axes`` ``(d, m)`` turn standardized columns into
    components in standard deviations; ``share`` of their variance is kept. ``fitted`` says on which rows.
    """

    centre: Array
    scale: Array
    axes: Array
    share: float
    fitted: str

    def __call__(self, rows: Array) -> Array:
        """Components ``(n, m)`` of raw rows ``(n, d)``."""
        return ((rows - self.centre) / self.scale) @ self.axes

    @property
    def hash(self) -> str:
        """Of the numbers and what they were fitted on: distances of equal hash are in equal units."""
        parts = (np.ascontiguousarray(part).tobytes() for part in (self.centre, self.scale, self.axes))
        return sha256_bytes(self.fitted.encode(), *parts)

    def to_json(self) -> dict[str, Any]:
        """What a result says of it."""
        return {
            "hash": self.hash,
            "fitted": self.fitted,
            "columns": len(self.centre),
            "components": self.axes.shape[1],
            "share": self.share,
        }


def fit_whitening(
    rows: Array, *, fitted: str, share: float = SHARE, most: int = MOST, resolution: Array | None = None
) -> Whitening:
    """The whitening of rows ``(n, d)``; columns that never change are left out.

    Args:
        rows: raw numbers of an encoder.
        fitted: whose rows they are, in words.
        share: of the variance that is kept.
        most: components that are kept at most.
        resolution: ``(d,)``, the spread below which a column holds noise, which is not made as large as the rest.

    Raises:
        InputError: fewer than two rows, or no column that changes.
    """
    if len(rows) < 2:
        raise InputError(f"{len(rows)} clips of {fitted} do not say how clips differ. Give more episodes.")
    centre, scale = rows.mean(axis=0), rows.std(axis=0)
    varies = scale > _FLAT * np.maximum(np.abs(rows).max(axis=0), 1e-12)
    if not varies.any():
        raise InputError(f"All {len(rows)} clips of {fitted} are the same in every number. Is the log frozen?")
    scale = np.where(varies, scale if resolution is None else np.maximum(scale, resolution), 1.0)
    standard = np.where(varies, (rows - centre) / scale, 0.0)
    _, size, directions = np.linalg.svd(standard, full_matrices=False)
    variance = size**2
    held = np.cumsum(variance) / variance.sum()
    kept = int(min(np.searchsorted(held, share - 1e-12) + 1, most, len(held)))
    axes = directions[:kept].T * varies[:, None] / (size[:kept] / np.sqrt(len(rows)))
    sign = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(kept)])  # so that maps of one data set look alike
    return Whitening(centre=centre, scale=scale, axes=axes * sign, share=float(held[kept - 1]), fitted=fitted)


@dataclass(frozen=True, kw_only=True)
class ClipMap:
    """Rows drawn in two dimensions ``(n, 2)``; ``axes`` say what across and up are."""

    points: Array
    axes: tuple[str, str]
    kind: str


def project(rows: Array, kind: Projection, *, seed: int = 0, names: Mapping[int, str] | None = None) -> ClipMap:
    """Whitened rows ``(n, m)`` in two dimensions.

    Args:
        rows: whitened, so that the first two columns are the first two components.
        kind: ``pca``, or ``umap`` (McInnes, Healy & Melville, arXiv 1802.03426), which keeps neighbours and no
            distances.
        seed: of UMAP.
        names: of columns, where they are not components.

    Raises:
        MissingDependencyError: umap-learn is not installed.
        InputError: too many rows for UMAP, or an unknown kind.
    """
    if kind == "umap":
        return ClipMap(points=_umap(rows, seed), axes=("UMAP 1", "UMAP 2"), kind="umap")
    if kind != "pca":
        raise InputError(f"--projection {kind}: there are pca and umap.")
    called = names or {}
    points = rows[:, :2] if rows.shape[1] > 1 else np.pad(rows, ((0, 0), (0, 1)))
    return ClipMap(points=points, axes=(called.get(0, "component 1"), called.get(1, "component 2")), kind="pca")


def _umap(rows: Array, seed: int) -> Array:
    if len(rows) > _UMAP_ROWS:
        raise InputError(f"UMAP of {len(rows)} clips takes too long; up to {_UMAP_ROWS}. Take --projection pca.")
    try:
        import umap  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "A map by UMAP needs umap-learn.", remedy="pip install 'twinloop[umap]'"
        ) from error
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells that a seed costs it its threads
        return np.asarray(umap.UMAP(random_state=seed).fit_transform(rows), dtype=np.float64)


def fitted_hash(encoder_hash: str, whitening: Whitening) -> str:
    """Names the space that distances are measured in: raw rows and what was done to them."""
    return sha256_json({"rows": encoder_hash, "whitening": whitening.hash})
