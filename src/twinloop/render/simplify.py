"""Simplify triangle meshes for rendering, within a tolerance.

Vertices are removed one after the other, those first whose removal moves the surface least: an edge is collapsed to one
of its ends, by the quadric error of Garland & Heckbert, "Surface simplification using quadric error metrics", SIGGRAPH
1997. No vertex moves, so normals and texture coordinates of the vertices that remain are unchanged. In each round all
removals that do not touch the same triangle are made at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDS = 200  # at most; a robot's mesh takes 20 to 60
_LEAST = 2.0**-12  # share of the squared limit; lower errors count as equal
_TURN = 0.5  # cosine of the largest angle by which one removal may turn a triangle


def simplify(vertices: Floats, faces: Ints, tolerance: float, *, locked: NDArray[np.bool_] | None = None) -> Ints:
    """Return the triangles of a simplified mesh, as rows of vertices of the given one, ``(k, 3)``.

    Every vertex of a triangle of the given mesh is within ``tolerance`` of the triangles returned.

    Args:
        vertices: positions of the vertices in m, ``(n, 3)``; vertices at the same position are different vertices.
        faces: vertices of the triangles, ``(m, 3)``.
        tolerance: largest distance, in m.
        locked: vertices that must remain, ``(n,)``.
    """
    state = _Collapses(vertices, faces, tolerance, locked)
    state.run()
    return state.faces


def expand_ranges(begin: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return the row and the value of every integer in the ranges ``begin`` to ``begin + count``."""
    number = np.repeat(np.arange(len(begin)), count)
    return number, np.arange(len(number)) - np.repeat(np.cumsum(count) - count, count) + begin[number]


def _point_triangle_distances(points: Floats, triangles: Floats) -> Floats:
    """Return the distances of points ``(n, 3)`` from one triangle each, ``(n, 3, 3)``."""
    normal = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    length = np.linalg.norm(normal, axis=1)
    inside, squares = length > 0.0, np.full(len(points), np.inf)
    for corner in range(3):
        begin, along = triangles[:, corner], triangles[:, (corner + 1) % 3] - triangles[:, corner]
        offset = points - begin
        square = np.einsum("ij,ij->i", along, along)
        share = np.clip(np.einsum("ij,ij->i", offset, along) / np.where(square > 0.0, square, 1.0), 0.0, 1.0)
        squares = np.minimum(squares, np.square(offset - share[:, None] * along).sum(axis=1))
        inside &= np.einsum("ij,ij->i", np.cross(along, offset), normal) >= 0.0
    height = np.abs(np.einsum("ij,ij->i", points - triangles[:, 0], normal)) / np.where(inside, length, 1.0)
    return np.where(inside, height, np.sqrt(squares))


@dataclass(frozen=True)
class _Edges:
    """Directed edges of a mesh, two per edge: from vertex ``start`` to vertex ``end``; ``count`` triangles have it."""

    start: Ints
    end: Ints
    count: Ints


def _find_edges(faces: Ints, size: int) -> _Edges:
    pairs = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
    keys, count = np.unique(pairs[:, 0] * size + pairs[:, 1], return_counts=True)
    low, high = keys // size, keys % size
    return _Edges(np.concatenate([low, high]), np.concatenate([high, low]), np.tile(count, 2))


def face_normals(vertices: Floats, faces: Ints) -> Floats:
    """Return the normals of triangles, ``(m, 3)``, whose lengths are twice the triangles' areas."""
    corner = vertices[faces]
    return np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])


class _Collapses:
    """Collapses of edges of one mesh, which leave every vertex of the mesh within ``limit`` m of the triangles.

    Each vertex, removed or not, is assigned to the triangle that is nearest to it. A collapse replaces the triangles
    around one vertex, so it is valid if the vertices assigned to these are near enough to one of the new triangles.
    """

    def __init__(self, vertices: Floats, faces: Ints, limit: float, locked: NDArray[np.bool_] | None) -> None:
        self.faces = faces[(faces != np.roll(faces, 1, axis=1)).all(axis=1)]
        self._vertices, self._limit, self._size = vertices - vertices.mean(axis=0), limit, len(vertices)
        self._locked = np.zeros(self._size, dtype=bool) if locked is None else locked
        self._nearest = np.full(self._size, -1, dtype=np.int64)
        self._nearest[self.faces] = np.arange(len(self.faces))[:, None]
        self._chance = np.random.default_rng(0).permutation(self._size)
        self._tried = np.zeros(self._size, dtype=np.int64)
        self._quadrics = self._measure_quadrics()

    def run(self) -> None:
        """Collapse edges until none is left within the limit."""
        for _ in range(_ROUNDS):
            best, cost = self._choose_targets()
            candidates = np.flatnonzero(best >= 0)
            if not len(candidates):
                return
            valid = self._keeps_orientation(candidates, best)
            self._tried[candidates[~valid]] += 1
            self._collapse(self._select_independent(candidates[valid], cost), best)

    def _measure_quadrics(self) -> Floats:
        """Return the quadric of each vertex: ten sums over planes (a, b, c, d), and the sum of weights, ``(n, 11)``."""
        normal = face_normals(self._vertices, self.faces)
        area = np.linalg.norm(normal, axis=1)
        unit = normal / np.where(area > 0.0, area, 1.0)[:, None]
        made = np.zeros((self._size, 11))
        planes = _make_planes(unit, self._vertices[self.faces[:, 0]], area)
        for corner in range(3):
            np.add.at(made, self.faces[:, corner], planes)
        edges = _find_edges(self.faces, self._size)
        single = dict.fromkeys((edges.start[edges.count == 1] * self._size + edges.end[edges.count == 1]).tolist())
        for corner in range(3):  # a plane through each border edge, across its triangle, holds the border in place
            start, end = self.faces[:, corner], self.faces[:, (corner + 1) % 3]
            rows = np.flatnonzero([key in single for key in (start * self._size + end).tolist()])
            along = self._vertices[end[rows]] - self._vertices[start[rows]]
            across = np.cross(along, unit[rows])
            length = np.linalg.norm(across, axis=1)
            across /= np.where(length > 0.0, length, 1.0)[:, None]
            border = _make_planes(across, self._vertices[start[rows]], length**2)
            np.add.at(made, start[rows], border)
            np.add.at(made, end[rows], border)
        return made

    def _select_independent(self, candidates: Ints, cost: Floats) -> Ints:
        """Return the candidates for removal that come first of all candidates in each of their triangles.

        The order is that of the cost, rounded to powers of 4. Candidates of equal cost, as on a flat surface, are in a
        random order, so that many can be removed in one round.
        """
        rank = np.full(self._size, self._size, dtype=np.int64)
        level = np.ceil(np.log2(cost[candidates] / self._limit**2 + _LEAST) / 2.0)
        order = np.lexsort((self._chance[candidates], level))
        rank[candidates[order]] = np.arange(len(candidates))
        around = np.full(self._size, self._size, dtype=np.int64)
        least = rank[self.faces].min(axis=1)
        for corner in range(3):
            np.minimum.at(around, self.faces[:, corner], least)
        return candidates[rank[candidates] == around[candidates]]

    def _choose_targets(self) -> tuple[Ints, Floats]:
        """Return the target of each vertex, -1 for none, and the mean square error in m²."""
        edges = _find_edges(self.faces, self._size)
        border, multiple = (np.zeros(self._size, dtype=bool) for _ in range(2))
        border[edges.start[edges.count != 2]] = True
        multiple[edges.start[edges.count > 2]] = True
        allowed = ~(self._locked | multiple)[edges.start] & (~border[edges.start] | (edges.count == 1))
        start, end = edges.start[allowed], edges.end[allowed]
        error = _evaluate_quadrics(self._quadrics[start], self._vertices[end])
        near = error <= self._limit**2
        start, end, error = start[near], end[near], error[near]
        order = np.lexsort((error, start))
        start, end, error = start[order], end[order], error[order]
        vertex, first, count = np.unique(start, return_index=True, return_counts=True)
        untried = self._tried[vertex] < count
        vertex, place = vertex[untried], (first + self._tried[vertex])[untried]
        best, cost = np.full(self._size, -1, dtype=np.int64), np.full(self._size, np.inf)
        best[vertex], cost[vertex] = end[place], error[place]
        return best, cost

    def _keeps_orientation(self, removed: Ints, best: Ints) -> NDArray[np.bool_]:
        """Return for each vertex whether its removal turns no triangle by more than 60°."""
        turned = np.zeros(self._size, dtype=bool)
        before = face_normals(self._vertices, self.faces)
        for corner in range(3):
            vertex = self.faces[:, corner]
            into = best[vertex]
            rows = np.flatnonzero((into >= 0) & (self.faces != into[:, None]).all(axis=1))
            moved = self.faces[rows]
            moved[:, corner] = into[rows]
            after = face_normals(self._vertices, moved)
            size = np.linalg.norm(after, axis=1) * np.linalg.norm(before[rows], axis=1)
            turned[vertex[rows[np.einsum("ij,ij->i", after, before[rows]) < _TURN * size]]] = True
            turned[vertex[rows[size == 0.0]]] = True
        return ~turned[removed]

    def _collapse(self, removed: Ints, best: Ints) -> None:
        """Remove vertices, no two of them in the same triangle, except those that would leave a vertex too far away."""
        target = np.arange(self._size)
        target[removed] = best[removed]
        moved = target[self.faces]
        changed = np.flatnonzero((moved != self.faces).any(axis=1))
        centre = np.full(len(moved), -1, dtype=np.int64)  # removed vertex of each triangle
        centre[changed] = self.faces[changed][moved[changed] != self.faces[changed]]
        remains = (moved != np.roll(moved, 1, axis=1)).all(axis=1)
        points, distance, nearest = self._measure_changes(moved, changed[remains[changed]], centre)
        far = np.zeros(self._size, dtype=bool)
        far[centre[self._nearest[points[distance > self._limit]]]] = True
        self._tried[removed[far[removed]]] += 1
        accepted = (centre >= 0) & ~far[centre]
        near = accepted[self._nearest[points]]
        self._nearest[points[near]] = nearest[near]
        removed = removed[~far[removed]]
        np.add.at(self._quadrics, best[removed], self._quadrics[removed])
        self._tried[np.unique(moved[accepted])] = 0
        faces = np.where(accepted[:, None], moved, self.faces)
        keep = remains | ~accepted
        self._nearest = np.where(self._nearest >= 0, (np.cumsum(keep) - 1)[self._nearest], -1)
        self.faces = faces[keep]

    def _measure_changes(self, moved: Ints, rows: Ints, centre: Ints) -> tuple[Ints, Floats, Ints]:
        """Return the vertices assigned to changed triangles, their distances in m from the new ones, and the nearest.

        Args:
            moved: all triangles after the removals.
            rows: rows of the changed ones that remain.
            centre: removed vertex of each triangle, -1 for none.
        """
        rows = rows[np.argsort(centre[rows], kind="stable")]
        points = np.flatnonzero((self._nearest >= 0) & (centre[self._nearest] >= 0))
        around = centre[self._nearest[points]]
        begin, end = (np.searchsorted(centre[rows], around, side=side) for side in ("left", "right"))
        number, place = expand_ranges(begin, end - begin)
        every = _point_triangle_distances(self._vertices[points[number]], self._vertices[moved[rows[place]]])
        order = np.lexsort((every, number))
        found, first = np.unique(number[order], return_index=True)
        distance, nearest = np.full(len(points), np.inf), np.full(len(points), -1, dtype=np.int64)
        distance[found], nearest[found] = every[order[first]], rows[place[order[first]]]
        return points, distance, nearest


_ROW, _COLUMN = np.triu_indices(4)


def _make_planes(normals: Floats, points: Floats, weights: Floats) -> Floats:
    """Return quadrics ``(n, 11)`` of planes through points."""
    plane = np.concatenate([normals, -np.einsum("ij,ij->i", normals, points)[:, None]], axis=1)
    return np.concatenate([plane[:, _ROW] * plane[:, _COLUMN], np.ones((len(plane), 1))], axis=1) * weights[:, None]


def _evaluate_quadrics(quadrics: Floats, points: Floats) -> Floats:
    """Return the weighted mean of the squared distances of points from the planes of quadrics, ``(n,)`` in m²."""
    point = np.concatenate([points, np.ones((len(points), 1))], axis=1)
    twice = np.where(_ROW == _COLUMN, 1.0, 2.0)
    total = np.einsum("ij,ij,j->i", quadrics[:, :10], point[:, _ROW] * point[:, _COLUMN], twice)
    return np.maximum(total, 0.0) / np.where(quadrics[:, 10] > 0.0, quadrics[:, 10], 1.0)
