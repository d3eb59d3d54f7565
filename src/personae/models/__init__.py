"""Who answers: endpoints, the embedded model, scripts; and the registry of id schemes."""

from personae.models.dry import DryBackend
from personae.models.registry import Registry, model_scheme
from personae.models.scripted import ScriptedModel

__all__ = ["DryBackend", "Registry", "ScriptedModel", "model_scheme"]
