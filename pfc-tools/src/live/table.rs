//! MAC address table: learns the host behind an Ethernet address from the frames that hosts send.

use std::collections::BTreeMap;

use feroce_wire::MacAddr;

/// Maximum number of addresses; frames to further addresses are flooded.
const MAX_ADDRESSES: usize = 4096;

/// The learned addresses.
#[derive(Debug, Default)]
pub struct MacTable(BTreeMap<[u8; 6], u32>);

impl MacTable {
    /// Learns that `host` sends from `address`.
    pub fn learn(&mut self, address: MacAddr, host: u32) {
        if address.is_multicast() {
            return;
        }
        if self.0.len() < MAX_ADDRESSES || self.0.contains_key(&address.0) {
            self.0.insert(address.0, host);
        }
    }

    /// The host with this address; `None` for a multicast or unknown address.
    pub fn host(&self, address: MacAddr) -> Option<u32> {
        self.0.get(&address.0).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sender_owns_the_address() {
        let (mut table, address) = (MacTable::default(), MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!(table.host(address), None);
        table.learn(address, 1);
        table.learn(address, 2);
        table.learn(MacAddr([0xff; 6]), 3);
        assert_eq!((table.host(address), table.host(MacAddr([0xff; 6]))), (Some(2), None));
    }
}
