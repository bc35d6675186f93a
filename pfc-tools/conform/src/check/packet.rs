//! The rules that a packet must satisfy by itself, and its fields that must be the same in all
//! packets of its flow.

use feroce_wire::{Ecn, Operation, ParseError, PayloadRule, Qpn, Transport};

use super::findings::{Findings, Place};
use crate::flow::Channel;
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
    if seen.src().is_multicast() || seen.src().is_unspecified() {
        out.add(RuleId::Source, place, || {
            format!("the source address {} is not that of a host", seen.src())
        });
    }
}

/// Checks the reserved bits. Huawei endpoints set some of them in requests.
pub(super) fn reserved(channel: &mut Channel, seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let bth = &seen.packet.bth;
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
