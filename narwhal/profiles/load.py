"""The fleet's models as they are when a router starts: from the profile file, as far as it goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from narwhal.profiles import store
from narwhal.profiles.model import EngineModel
from narwhal.profiles.models import FleetModels


def load_models(engines: Sequence[str], model: str, path: Path | None) -> tuple[FleetModels, list[str]]:
    """Models of `engines` (IDs, in the table's order), which serve `model`; and remarks for a person.

    An engine without a profile starts with nothing and learns. The file need not be there yet. Raises
    ProfileError if it is there and can't be used.
    """
    if path is None:
        return FleetModels([EngineModel() for _ in engines]), []
    if not path.exists():
        remark = f"{path} is not there yet (profiles.path): `narwhal profile` writes it"
        return FleetModels([EngineModel() for _ in engines]), [remark]
    profiles = store.read(path)
    models, remarks = [], []
    for engine in engines:
        profile = profiles.get(engine)
        why_not = "there is none" if profile is None else store.unfit(profile, model)
        if profile is None or why_not is not None:
            remarks.append(f"{path}: no profile of engine {engine} to go by, since {why_not}; it learns")
            models.append(EngineModel())
        else:
            models.append(profile.engine_model())
    return FleetModels(models), remarks
