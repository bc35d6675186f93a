//! Multicast groups: which QPs get a copy of a datagram. Every core has a list of all members.

use std::net::IpAddr;

use feroce_wire::Qpn;

/// A QP that is attached to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The number of the QP.
    pub qpn: Qpn,
    /// The core of the QP.
    pub core: usize,
    /// The slot on that core.
    pub slot: u32,
    /// The QP does not receive its own datagrams to the group.
    pub blocks_own: bool,
}

/// The groups, sorted by address. There are few of them, so a binary search is cheaper than a hash
/// table.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<(IpAddr, Vec<Member>)>);

impl Groups {
    /// The members of `group`.
    #[inline]
    pub(super) fn members(&self, group: IpAddr) -> &[Member] {
        match self.0.binary_search_by_key(&group, |(address, _)| *address) {
            Ok(at) => &self.0[at].1,
            Err(_) => &[],
        }
    }

    /// Adds `member` to `group`; no effect if it is a member already.
    pub(super) fn attach(&mut self, group: IpAddr, member: Member) {
        let at = match self.0.binary_search_by_key(&group, |(address, _)| *address) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (group, Vec::new()));
                at
            }
        };
        let members = &mut self.0[at].1;
        if members.iter().all(|known| known.qpn != member.qpn) {
            members.push(member);
        }
    }

    /// Removes the QP `qpn` from `group`.
    pub(super) fn detach(&mut self, group: IpAddr, qpn: Qpn) {
        self.0.retain_mut(|(address, members)| {
            if *address == group {
                members.retain(|member| member.qpn != qpn);
            }
            !members.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_added_once_and_removed_one_by_one() {
        let member = |qpn| Member { qpn: Qpn::masked(qpn), core: 0, slot: qpn, blocks_own: false };
        let [a, b]: [IpAddr; 2] = ["ff0e::1", "239.1.2.3"].map(|text| text.parse().unwrap());
        let mut groups = Groups::default();
        for (group, qpn) in [(a, 5), (b, 5), (b, 6), (b, 6), (a, 7)] {
            groups.attach(group, member(qpn));
        }
        assert_eq!(groups.members(a), [member(5), member(7)]);
        assert_eq!(groups.members(b), [member(5), member(6)]);
        groups.detach(b, Qpn::masked(5));
        groups.detach(a, Qpn::masked(6));
        assert_eq!(groups.members(a), [member(5), member(7)]);
        assert_eq!(groups.members(b), [member(6)]);
        groups.detach(b, Qpn::masked(6));
        assert_eq!((groups.members(b), groups.0.len()), (&[][..], 1));
    }
}
