"""The embedded model: real weights, no key, no network after the first use."""

from personae.models.local.model import LocalModel
from personae.models.local.weights import catalogue, pull

__all__ = ["LocalModel", "catalogue", "pull"]
