//! Classic BPF programs of the receive sockets: which datagrams they accept, by destination
//! address, and which socket of a group gets a datagram, by destination QP.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use crate::port::classic_bpf::{
    Instruction, JUMP_IF_EQUAL, LOAD_WORD, MASK, MODULO, NOTHING, RETURN, RETURN_LOADED, plain,
};

/// Loads from this offset on are relative to the IP header (`SKF_NET_OFF`).
const NETWORK: u32 = (-0x10_0000_i32).cast_unsigned();
/// Offsets of the destination address in the IP header.
const V4_DESTINATION: u32 = 16;
const V6_DESTINATION: u32 = 24;
/// Offset of the word with the destination QP in the BTH. Its upper byte is reserved.
const DESTINATION_QP: u32 = 4;

/// A program that accepts datagrams to `addresses` (IPv4 addresses are IPv4-mapped), on sockets of
/// one family. `with_groups`: also datagrams to multicast groups; only one socket of a group may
/// accept them, because the kernel delivers a copy to each.
pub(super) fn accept(
    addresses: &BTreeSet<Ipv6Addr>,
    is_v6: bool,
    with_groups: bool,
) -> Vec<Instruction> {
    let canonical = addresses.iter().map(Ipv6Addr::to_canonical);
    let wanted =
        canonical.filter(|ip| ip.is_ipv6() == is_v6 && (with_groups || !ip.is_multicast()));
    let mut program: Vec<_> = wanted.flat_map(accept_one).collect();
    program.extend(NOTHING);
    program
}

/// Accepts a datagram to `address`; otherwise execution continues after these instructions.
fn accept_one(address: IpAddr) -> Vec<Instruction> {
    let (at, words) = match address {
        IpAddr::V4(ip) => (V4_DESTINATION, vec![u32::from(ip)]),
        IpAddr::V6(ip) => {
            let bits = u128::from(ip);
            let word = |shift: u32| u32::try_from(bits >> shift & 0xffff_ffff).expect("32 bits");
            (V6_DESTINATION, [96, 64, 32, 0].map(word).to_vec())
        }
    };
    let compares = words.len();
    let mut program = Vec::with_capacity(2 * compares + 1);
    for (index, (word, offset)) in words.into_iter().zip((at..).step_by(4)).enumerate() {
        // Instructions to skip: two for each further word, and the one that accepts.
        let left = u8::try_from(2 * (compares - 1 - index) + 1).expect("at most seven");
        program.push(plain(LOAD_WORD, NETWORK.wrapping_add(offset)));
        program.push(Instruction { jf: left, ..plain(JUMP_IF_EQUAL, word) });
    }
    program.push(plain(RETURN, u32::MAX));
    program
}

/// A program that chooses one of `sockets` by the destination QP. The socket with index i is of
/// core i modulo the number of cores, which gets the QPs whose number is i modulo this number.
pub(super) fn choose(sockets: u32) -> [Instruction; 4] {
    [
        plain(LOAD_WORD, DESTINATION_QP),
        plain(MASK, 0x00ff_ffff),
        plain(MODULO, sockets),
        plain(RETURN_LOADED, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program of this file on `packet`, which begins with the IP header for `accept` and
    /// with the BTH for `choose`.
    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let (mut loaded, mut at) = (0_u32, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LOAD_WORD => {
                    let offset = usize::try_from(k.wrapping_sub(NETWORK).min(k)).unwrap();
                    let Some(word) = packet.get(offset..offset + 4) else { return 0 };
                    loaded = u32::from_be_bytes(word.try_into().unwrap());
                }
                JUMP_IF_EQUAL => at += usize::from(if loaded == k { jt } else { jf }),
                MASK => loaded &= k,
                MODULO => loaded %= k,
                RETURN => return k,
                RETURN_LOADED => return loaded,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn to(address: &str) -> (bool, Vec<u8>) {
        match address.parse().unwrap() {
            IpAddr::V4(ip) => (false, [&[0x45; 16][..], &ip.octets()].concat()),
            IpAddr::V6(ip) => (true, [&[0x60; 24][..], &ip.octets()].concat()),
        }
    }

    #[test]
    fn datagrams_to_own_addresses_are_accepted() {
        let own = ["10.0.0.1", "10.0.0.9", "fd00::1", "fd00::1:0:0:1", "239.1.2.3", "ff0e::7"];
        let mapped = |address: &str| match address.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let addresses: BTreeSet<_> = own.iter().map(|address| mapped(address)).collect();
        for (address, accepted, with_groups) in [
            ("10.0.0.1", true, false),
            ("10.0.0.9", true, true),
            ("10.0.0.2", false, true),
            ("fd00::1", true, false),
            ("fd00::1:0:0:1", true, false),
            ("fd00::1:0:0:2", false, true),
            ("fd01::1", false, true),
            ("239.1.2.3", true, true),
            ("239.1.2.3", false, false),
            ("ff0e::7", true, true),
            ("ff0e::7", false, false),
        ] {
            let (is_v6, packet) = to(address);
            let program = accept(&addresses, is_v6, with_groups);
            assert_eq!(run(&program, &packet) != 0, accepted, "{address}");
        }
        let (is_v6, packet) = to("10.0.0.1");
        assert_eq!(run(&accept(&BTreeSet::new(), is_v6, true), &packet), 0);
    }

    #[test]
    fn the_destination_qp_chooses_the_socket() {
        let mut bth = [0; 12];
        bth[4..8].copy_from_slice(&0xff12_3457_u32.to_be_bytes());
        assert_eq!(run(&choose(8), &bth), 0x12_3457 % 8);
        assert_eq!(run(&choose(6), &bth), 0x12_3457 % 6);
        assert_eq!(run(&choose(8), &bth[..7]), 0, "shorter than a BTH: the first socket");
    }
}
