//! Which host is behind which Ethernet address: learned from what hosts send.

use std::collections::BTreeMap;

use feroce_wire::MacAddr;

/// Most addresses: more are flooded.
const MOST: usize = 4096;

/// The addresses that were seen.
#[derive(Debug, Default)]
pub struct MacTable(BTreeMap<[u8; 6], u32>);

impl MacTable {
    /// `host` has sent from `address`.
    pub fn learn(&mut self, address: MacAddr, host: u32) {
        if address.is_multicast() {
            return;
        }
        if self.0.len() < MOST || self.0.contains_key(&address.0) {
            self.0.insert(address.0, host);
        }
    }

    /// The host that has `address`; `None` if it is everybody's, or not known.
    pub fn host(&self, address: MacAddr) -> Option<u32> {
        self.0.get(&address.0).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sender_has_the_address() {
        let (mut table, address) = (MacTable::default(), MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!(table.host(address), None);
        table.learn(address, 1);
        table.learn(address, 2);
        table.learn(MacAddr([0xff; 6]), 3);
        assert_eq!((table.host(address), table.host(MacAddr([0xff; 6]))), (Some(2), None));
    }
}
