"""Policies with the trigger ``Rayleigh`` in the place of ``Determinant``, for ``triggers.toml``."""

from dataclasses import replace

from fedcascade import POLICIES
from fedcascade.federation.triggers import Auxiliary, Doubling, Rayleigh

PAPER = replace(POLICIES["fedc3ucb-h"], name="paper-rayleigh", trigger=Rayleigh() | Auxiliary())
POPULATION = replace(POLICIES["population"], name="population-rayleigh", trigger=Rayleigh() | Doubling())
