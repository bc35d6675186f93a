//! What a request is, without what may differ between its copies.

use crc32fast::Hasher;
use feroce_wire::Packet;

/// The same for two packets that ask for the same: payload and operands, but neither flags nor anything of the way.
pub(super) fn digest(packet: &Packet<'_>) -> u32 {
    let mut hasher = Hasher::new();
    for slice in packet.payload.slices() {
        hasher.update(slice);
    }
    let ext = &packet.ext;
    if let Some(reth) = &ext.reth {
        hasher.update(&reth.to_bytes());
    }
    if let Some(atomic) = &ext.atomic_eth {
        hasher.update(&atomic.to_bytes());
    }
    if let Some(imm) = &ext.imm {
        hasher.update(&imm.to_bytes());
    }
    if let Some(ieth) = &ext.ieth {
        hasher.update(&ieth.to_bytes());
    }
    hasher.finalize()
}
