//! The rules that a packet must satisfy by itself, and its fields that must be the same in all
//! packets of its flow.

use feroce_wire::{
    Ecn, EthernetHeader, IpHeader, Operation, Packet, ParseError, PayloadRule, Qpn, Transport,
    VlanTag,
};

use super::findings::{Findings, Place};
use crate::flow::{Channel, Path};
use crate::packet::{Carrier, Icrc, Seen};
use crate::rules::RuleId;

/// Reports a frame that claims to be a RoCE packet and cannot be parsed.
pub(super) fn broken(error: ParseError, place: Place, out: &mut Findings) {
    let rule = match error {
        ParseError::IpChecksum { .. } => RuleId::Checksum,
        ParseError::Fragment => RuleId::Fragment,
        ParseError::BthVersion(_) => RuleId::Version,
        ParseError::Opcode(_) => RuleId::Opcode,
        ParseError::Pad { .. } => RuleId::Pad,
        _ => RuleId::Length,
    };
    out.add(rule, place, || error.to_string());
}

/// Returns true if the ICRC is valid. A packet with a wrong ICRC is not checked further.
pub(super) fn is_whole(seen: &Seen<'_>, place: Place, out: &mut Findings) -> bool {
    let Icrc::Wrong { expected, found } = seen.icrc else { return true };
    let is_multicast = seen.packet.bth.dest_qp == Qpn::MULTICAST;
    if seen.carrier == Carrier::InfiniBand && is_multicast {
        let rule = RuleId::QuirkMulticast;
        out.add(rule, place, || rule.rule().text.to_owned());
        return true;
    }
    out.add(RuleId::Icrc, place, || {
        format!(
            "the ICRC is {found:#010x} instead of {expected:#010x}: {} with PSN {:#08x} was \
             damaged on the way, and its receiver drops it",
            seen.packet.info.name,
            seen.packet.bth.psn.value()
        )
    });
    false
}

/// Checks the fields that need no other packet.
pub(super) fn fields(seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let packet = &seen.packet;
    let (bth, info) = (&packet.bth, packet.info);
    let len = packet.payload.len();
    if info.operation != Operation::Cnp && !(len + usize::from(bth.pad)).is_multiple_of(4) {
        out.add(RuleId::Pad, place, || {
            format!("{len} bytes of payload and {} of pad are not a multiple of 4", bth.pad)
        });
    }
    let is_fixed = matches!(info.payload, PayloadRule::None | PayloadRule::Exactly(_));
    if is_fixed && info.operation != Operation::Cnp && !info.payload.allows(len, 0) {
        out.add(RuleId::Payload, place, || format!("{} with {len} bytes of payload", info.name));
    }
    let is_connected = !matches!(info.transport, Transport::Ud | Transport::Cnp);
    let qpn = bth.dest_qp;
    if is_connected && (qpn.value() < 2 || qpn == Qpn::MULTICAST) {
        out.add(RuleId::QpNumber, place, || format!("{} to QP {qpn}", info.name));
    }
    if bth.pkey.partition() == 0 {
        out.add(RuleId::Pkey, place, || format!("P_Key {:#06x} names no partition", bth.pkey.0));
    }
    let is_unreliable = matches!(info.transport, Transport::Uc | Transport::Ud);
    if is_unreliable && bth.ack_req {
        out.add(RuleId::AckRequestIgnored, place, || {
            format!("{} requests an acknowledgement", info.name)
        });
    }
    let is_cnp = info.operation == Operation::Cnp;
    if bth.fecn || (bth.becn && !is_cnp) {
        out.add(RuleId::CongestionBits, place, || {
            format!(
                "{} with FECN {} and BECN {}",
                info.name,
                u8::from(bth.fecn),
                u8::from(bth.becn)
            )
        });
    }
    if packet.udp.checksum != 0 && seen.carrier == Carrier::RoceV2 && !seen.is_cut {
        udp_checksum(packet, place, out);
    }
    if seen.src().is_multicast() || seen.src().is_unspecified() {
        out.add(RuleId::Source, place, || {
            format!("the source address {} is not that of a host", seen.src())
        });
    }
}

/// Checks a UDP checksum. A capture at the sender may show the sum of the pseudo-header only: the
/// network adapter completes it.
fn udp_checksum(packet: &Packet<'_>, place: Place, out: &mut Findings) {
    const PROTOCOL: u64 = 17;
    let mut frame = vec![0; packet.frame_len()];
    if packet.emit(&mut frame).is_err() {
        return;
    }
    let ip = frame.len().min(EthernetHeader::LEN + packet.vlan.map_or(0, |_| VlanTag::LEN));
    let udp = ip + packet.ip.header_len();
    let len = usize::from(packet.udp.length);
    let addresses = match packet.ip {
        IpHeader::V4(_) => ip + 12..ip + 20,
        IpHeader::V6(_) => ip + 8..ip + 40,
    };
    let (Some(addresses), Some(datagram)) = (frame.get(addresses), frame.get(udp..udp + len))
    else {
        return;
    };
    let words = |bytes: &[u8]| -> u64 {
        let word = |pair: &[u8]| {
            u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
        };
        bytes.chunks(2).map(word).sum()
    };
    let fold = |mut sum: u64| {
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    };
    let pseudo = words(addresses) + PROTOCOL + u64::from(packet.udp.length);
    let found = packet.udp.checksum;
    let is_partial = fold(pseudo) == u64::from(found);
    if fold(pseudo + words(datagram)) != 0xffff && !is_partial {
        out.add(RuleId::UdpChecksum, place, || format!("the UDP checksum {found:#06x} is wrong"));
    }
}

/// Checks the reserved bits. Huawei endpoints set some of them in requests.
pub(super) fn reserved(channel: &mut Channel, seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let (bth, ext) = (&seen.packet.bth, &seen.packet.ext);
    let rest = [
        ("DETH", ext.deth.map_or(0, |deth| u32::from(deth.reserved))),
        ("XRCETH", ext.xrceth.map_or(0, |xrceth| u32::from(xrceth.reserved))),
        ("FETH", ext.feth.map_or(0, |feth| feth.reserved)),
    ];
    for (header, value) in rest.into_iter().filter(|&(_, value)| value != 0) {
        out.add(RuleId::Reserved, place, || {
            format!("reserved bits of the {header} are {value:#x}")
        });
    }
    if bth.reserved6 == 0 && bth.reserved7 == 0 {
        return;
    }
    let known = super::vendor_quirks::has(channel, RuleId::QuirkId)
        && super::vendor_quirks::has(channel, RuleId::QuirkPort);
    if known {
        return super::vendor_quirks::report(channel, RuleId::QuirkReserved, place, out);
    }
    out.add(RuleId::Reserved, place, || {
        format!("reserved bits of the BTH are {:#04x} and {:#04x}", bth.reserved6, bth.reserved7)
    });
}

/// Checks the fields that are the same in all packets of one side of a flow.
pub(super) fn constants(channel: &mut Channel, seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let packet = &seen.packet;
    let pkey = packet.bth.pkey.0;
    if let Some(known) = channel.pkey.replace(pkey)
        && known & 0x7fff != pkey & 0x7fff
        && pkey & 0x7fff != 0
    {
        channel.pkey = Some(known);
        out.add(RuleId::Pkey, place, || {
            format!("P_Key {pkey:#06x} in a connection with P_Key {known:#06x}")
        });
    }
    let side = usize::from(packet.info.is_response());
    membership(channel, side, pkey, place, out);
    if let Some(agreed) = channel.agreed.pkey
        && agreed & 0x7fff != pkey & 0x7fff
    {
        out.add(RuleId::CmPkey, place, || {
            format!("P_Key {pkey:#06x}, but the REQ of the connection has {agreed:#06x}")
        });
    }
    path(channel, side, seen, place, out);
    let ecn = packet.ip.ecn();
    let ect = ecn != Ecn::NotEct;
    if ecn != Ecn::Ce && seen.carrier == Carrier::RoceV2 {
        let known = *channel.ect[side].get_or_insert(ect);
        if known != ect {
            let word = |ect| if ect { "ECT" } else { "not ECT" };
            out.add(RuleId::Ect, place, || {
                format!("{}, but other packets of the flow are {}", word(ect), word(known))
            });
        }
    }
    if side == 1 || seen.carrier != Carrier::RoceV2 {
        return;
    }
    let port = packet.udp.src_port;
    let known = *channel.source_port.get_or_insert(port);
    if known != port {
        channel.source_port = Some(port);
        out.add(RuleId::Entropy, place, || {
            format!(
                "UDP source port {port}, after {known}: packets from here on may take another path \
                 and overtake earlier ones"
            )
        });
    }
    let dscp = packet.ip.traffic_class() >> 2;
    let known = *channel.dscp.get_or_insert(dscp);
    if known != dscp {
        channel.dscp = Some(dscp);
        out.add(RuleId::Class, place, || {
            format!(
                "DSCP {dscp}, after {known}: the packet may use another queue than earlier ones"
            )
        });
    }
}

/// Checks that at least one end of a flow is a full member of its partition, and that no end
/// changes its membership. Bit 15 of a P_Key is 1 for a full member.
fn membership(channel: &mut Channel, side: usize, pkey: u16, place: Place, out: &mut Findings) {
    let is_full = pkey & 0x8000 != 0;
    let before = channel.is_full_member[side].replace(is_full);
    if before == Some(is_full) {
        return;
    }
    if before.is_some() {
        out.add(RuleId::PkeyMember, place, || {
            format!("P_Key {pkey:#06x}: the membership of the sender has changed")
        });
    } else if !is_full && channel.is_full_member[1 - side] == Some(false) {
        out.add(RuleId::PkeyMember, place, || {
            format!("P_Key {pkey:#06x}: both ends are limited members, which may not communicate")
        });
    }
}

/// Checks the fields that choose the path of a packet and that its sender keeps, but that switches
/// and routers may change.
fn path(channel: &mut Channel, side: usize, seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let packet = &seen.packet;
    let new = Path {
        macs: (packet.ethernet.src, packet.ethernet.dst),
        vlan: packet.vlan.map(|tag| (tag.id, tag.pcp)),
        flow_label: match packet.ip {
            IpHeader::V4(_) => 0,
            IpHeader::V6(ip) => ip.flow_label,
        },
        source_port: packet.udp.src_port,
        dscp: packet.ip.traffic_class() >> 2,
    };
    let Some(old) = channel.path[side].replace(new).filter(|old| *old != new) else { return };
    if old.macs != new.macs {
        out.add(RuleId::Mac, place, || {
            format!(
                "Ethernet addresses {} to {}, after {} to {}",
                new.macs.0, new.macs.1, old.macs.0, old.macs.1
            )
        });
    }
    if old.vlan != new.vlan {
        let name = |vlan: Option<(u16, u8)>| {
            vlan.map_or("no VLAN".to_owned(), |(id, pcp)| format!("VLAN {id} with priority {pcp}"))
        };
        out.add(RuleId::Vlan, place, || format!("{}, after {}", name(new.vlan), name(old.vlan)));
    }
    if old.flow_label != new.flow_label {
        out.add(RuleId::FlowLabel, place, || {
            format!("IPv6 flow label {:#x}, after {:#x}", new.flow_label, old.flow_label)
        });
    }
    if side == 1 && (old.source_port, old.dscp) != (new.source_port, new.dscp) {
        out.add(RuleId::AnswerPath, place, || {
            format!(
                "UDP source port {} and DSCP {}, after {} and {}",
                new.source_port, new.dscp, old.source_port, old.dscp
            )
        });
    }
}
