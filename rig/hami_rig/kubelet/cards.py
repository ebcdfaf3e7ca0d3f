"""A node's fake cards as files: the profile that its agent reads, and the same cards for the driver that its containers see."""

from __future__ import annotations

import msgspec

from hami_node_agent import profile
from hami_node_agent.profile import ProfileHardware
from hami_rig.kubelet.kubelet import NodeFolder
from hami_rig.profile import RigNode


async def write(folder: NodeFolder, node: RigNode) -> None:
    """Write both files, below ``folder``."""
    devices = msgspec.yaml.encode(node.devices)
    folder.make()
    folder.device_profile.write_bytes(devices)
    inventory = await ProfileHardware(profile.read(devices), node=node.name).scan()
    lines = [f"uuid={card.uuid} name={card.type.replace(' ', '-')} memory_mib={card.memory_mib}\n" for card in inventory.devices]
    folder.cards.write_text("".join(lines))
