"""Whiten feature vectors of clips (principal components with unit variance), and project them to two dimensions."""

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
# Components to keep: enough for this share of the variance of standardized columns, but at most this many. The other
# components hold noise, which whitening would scale up to unit variance (our choice, docs/evidence/scenarios.md).
SHARE, MOST = 0.95, 32
_FLAT = 1e-9  # share of a column's largest value; with less spread the column is constant up to rounding
_UMAP_ROWS = 10_000  # 10,000 rows take 40 s; more take too long for a page


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Whitening transform from raw feature vectors to principal components with unit variance.

    Attributes:
        centre: mean of each raw column ``(d,)``.
        scale: standard deviation of each raw column ``(d,)``.
        axes: map from d standardized columns to m components ``(d, m)``.
        share: share of the variance that the components explain.
        fitted: text that describes the rows to which the transform was fitted.
    """

    centre: Array
    scale: Array
    axes: Array
    share: float
    fitted: str

    def __call__(self, rows: Array) -> Array:
        """Return the m whitened principal components ``(n, m)`` of raw feature vectors ``(n, d)``."""
        return ((rows - self.centre) / self.scale) @ self.axes

    @property
    def hash(self) -> str:
        """Hash of the transform and of ``fitted``, the description of the data to which it was fitted.

        Distances are comparable only between equal hashes.
        """
        parts = (np.ascontiguousarray(part).tobytes() for part in (self.centre, self.scale, self.axes))
        return sha256_bytes(self.fitted.encode(), *parts)

    def to_json(self) -> dict[str, Any]:
        """Return hash, description, sizes and explained share as a JSON-compatible dictionary, without the matrices."""
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
    """Fit a whitening transform to feature vectors; constant columns are ignored.

    Args:
        rows: raw feature vectors ``(n, d)`` of an encoder.
        fitted: description of the rows, for messages and for the hash.
        share: share of the variance that the components must explain.
        most: largest number of components.
        resolution: standard deviation ``(d,)`` below which a column contains only noise. A column with a smaller
            standard deviation is divided by this value instead, so that its noise is not amplified to unit variance.

    Raises:
        InputError: If there are fewer than two rows, or all columns are constant.
    """
    if len(rows) < 2:
        raise InputError(f"{len(rows)} clips of {fitted} are too few to estimate their variance. Give more episodes.")
    centre, scale = rows.mean(axis=0), rows.std(axis=0)
    varies = scale > _FLAT * np.maximum(np.abs(rows).max(axis=0), 1e-12)
    if not varies.any():
        raise InputError(f"All {len(rows)} clips of {fitted} are identical. Check whether the recording is frozen.")
    scale = np.where(varies, scale if resolution is None else np.maximum(scale, resolution), 1.0)
    standard = np.where(varies, (rows - centre) / scale, 0.0)
    _, size, directions = np.linalg.svd(standard, full_matrices=False)
    variance = size**2
    held = np.cumsum(variance) / variance.sum()
    kept = int(min(np.searchsorted(held, share - 1e-12) + 1, most, len(held)))
    axes = directions[:kept].T * varies[:, None] / (size[:kept] / np.sqrt(len(rows)))
    sign = np.sign(
        axes[np.abs(axes).argmax(axis=0), np.arange(kept)]
    )  # a fixed sign keeps maps of one dataset comparable
    return Whitening(centre=centre, scale=scale, axes=axes * sign, share=float(held[kept - 1]), fitted=fitted)


@dataclass(frozen=True, kw_only=True)
class ClipMap:
    """Two-dimensional map of clips.

    Attributes:
        points: coordinates ``(n, 2)``.
        axes: labels of the horizontal and the vertical axis.
        kind: method of projection, ``pca`` or ``umap``.
    """

    points: Array
    axes: tuple[str, str]
    kind: str


def project(rows: Array, kind: Projection, *, seed: int = 0, names: Mapping[int, str] | None = None) -> ClipMap:
    """Project whitened feature vectors to two dimensions.

    Args:
        rows: whitened feature vectors ``(n, m)``; their first two columns are the first two components.
        kind: ``pca``, or ``umap`` (McInnes, Healy & Melville, arXiv 1802.03426), which keeps neighbours but not
            distances.
        seed: seed of UMAP.
        names: axis labels by column, for columns that are not principal components.

    Raises:
        MissingDependencyError: If umap-learn is not installed.
        InputError: If there are too many rows for UMAP, or the kind is unknown.
    """
    if kind == "umap":
        return ClipMap(points=_project_umap(rows, seed), axes=("UMAP 1", "UMAP 2"), kind="umap")
    if kind != "pca":
        raise InputError(f"--projection {kind}: use pca or umap.")
    called = names or {}
    points = rows[:, :2] if rows.shape[1] > 1 else np.pad(rows, ((0, 0), (0, 1)))
    return ClipMap(points=points, axes=(called.get(0, "component 1"), called.get(1, "component 2")), kind="pca")


def _project_umap(rows: Array, seed: int) -> Array:
    if len(rows) > _UMAP_ROWS:
        raise InputError(f"UMAP of {len(rows)} clips takes too long; the limit is {_UMAP_ROWS}. Use --projection pca.")
    try:
        import umap  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "A map by UMAP needs umap-learn.", remedy="pip install 'twinloop[umap]'"
        ) from error
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that a seed disables its threads
        return np.asarray(umap.UMAP(random_state=seed).fit_transform(rows), dtype=np.float64)


def hash_space(encoder_hash: str, whitening: Whitening) -> str:
    """Return the hash of a feature space (encoder and whitening); distances in one space are comparable."""
    return sha256_json({"rows": encoder_hash, "whitening": whitening.hash})
