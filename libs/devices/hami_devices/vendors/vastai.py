"""Vastai: whole cards, or the dies of cards, by count. Dies of one card (``AIC``) are taken together where several are asked."""

from __future__ import annotations

from hami_devices.config_sections import VastaiConfig
from hami_devices.demands import slot_only
from hami_devices.groups import concentration, info_text, largest_first
from hami_devices.model import DeviceState
from hami_devices.rules import Choice, Outcome, Picked, Rules
from hami_devices.vendor import SelectorKeys, Vendor
from hami_protocol import keys

NAME = "Vastai"
DEVICE_TYPE = "va"
STRATEGY, CARD = "DeviceStrategy", "AIC"


def vendor(config: VastaiConfig) -> Vendor:
    """Vastai's spec under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        register_key=keys.register(DEVICE_TYPE),
        registers_json=True,
        handshake_key=keys.handshake(DEVICE_TYPE),
        allocated_key="hami.io/Vastai-devices-allocated",
        to_allocate_key="hami.io/Vastai-devices-to-allocate",
        selector_keys=SelectorKeys(use_uuids="vastaitech.com/use-gpuuuid", avoid_uuids="vastaitech.com/nouse-gpuuuid"),
        registered_cores=100,
        rules=Rules(demand=slot_only, pick=_pick, bonus=_bonus, board=_card),
    )


def _card(state: DeviceState) -> str:
    """The physical card of a die; empty for a device that is no die, or does not say."""
    return info_text(state, CARD) if info_text(state, STRATEGY) == "die" else ""


def _pick(choice: Choice) -> Picked:
    count = choice.request.count
    if count == 1 or not any(_card(state) for state in choice.devices):
        return choice.fitting[:count]
    return largest_first(choice.fitting, count, _card)


def _bonus(outcome: Outcome) -> float:
    return concentration(outcome.containers, _card)
