"""Areas on the ground, whatever the coordinate system of an image."""

from __future__ import annotations

import numpy as np

_A, _F = 6378137.0, 1 / 298.257223563
"""Equatorial radius in metres and flattening of WGS 84."""
_E2 = _F * (2 - _F)
_E = np.sqrt(_E2)


def ring_area(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Area of a ring, or of several (..., points), in square metres on the ellipsoid of WGS 84, positive if it runs
    counter-clockwise.

    It is computed under the cylindrical equal-area projection: exact for edges along meridians and parallels, and for
    edges of a few pixels as good as exact. Not for a ring around a pole.

    Args:
        longitude, latitude: of its points in degrees, the first again at the end; without a jump by 360 degrees.
    """
    sine = np.sin(np.radians(latitude))
    # Snyder, Map Projections: A Working Manual (1987), equation (3-12), without the factor of the sphere.
    q = (1 - _E2) * (sine / (1 - _E2 * sine**2) + np.arctanh(_E * sine) / _E)
    heights = _A**2 * q / 2
    return -(np.diff(np.radians(longitude)) * (heights[..., 1:] + heights[..., :-1]) / 2).sum(axis=-1)


def without_jumps(longitude: np.ndarray, near: float | None = None) -> np.ndarray:
    """Longitudes along a ring, or several, without jumps by 360 degrees; the first one within 180 degrees of
    ``near``."""
    degrees = np.unwrap(longitude, period=360.0)
    return degrees if near is None else degrees + 360 * np.round((near - degrees[0]) / 360)
