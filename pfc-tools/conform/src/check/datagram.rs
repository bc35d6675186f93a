//! The rules of unreliable datagrams.

use feroce_wire::{Qkey, Qpn};

use super::findings::{Findings, Place};
use crate::flow::Channel;
use crate::packet::{Carrier, Seen};
use crate::rules::RuleId;

/// The longest payload of a datagram, in bytes: the largest path MTU.
const LONGEST: usize = 4096;

/// Checks a datagram of a flow.
pub(super) fn take(channel: &mut Channel, seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let packet = &seen.packet;
    let qpn = packet.bth.dest_qp;
    let len = packet.payload.len();
    channel.figures.seen(seen.at);
    channel.figures.requests += 1;
    channel.figures.messages += 1;
    channel.figures.request_bytes += len as u64;
    if len > LONGEST {
        out.add(RuleId::UdSize, place, || format!("a datagram of {len} bytes"));
    }
    // On InfiniBand the GID names the multicast group.
    let is_group = seen.dst().is_multicast();
    if is_group != (qpn == Qpn::MULTICAST) && seen.carrier != Carrier::InfiniBand {
        out.add(RuleId::Multicast, place, || format!("a datagram for {} to QP {qpn}", seen.dst()));
    }
    let Some(deth) = packet.ext.deth else { return };
    let source = deth.src_qp;
    let is_wrong = source == Qpn::MULTICAST
        || (qpn == Qpn::GSI && source != Qpn::GSI)
        || (source.value() == 0 && qpn.value() != 0);
    if is_wrong {
        out.add(RuleId::UdSource, place, || format!("a datagram from QP {source} to QP {qpn}"));
    }
    if qpn.value() == 0 {
        return;
    }
    let first = if qpn == Qpn::GSI { Qkey::GSI.0 } else { deth.qkey.0 };
    let expected = *channel.qkey.get_or_insert(first);
    if expected != deth.qkey.0 {
        out.add(RuleId::Qkey, place, || {
            format!(
                "Q_Key {:#010x} in a datagram to QP {qpn}, whose Q_Key is {expected:#010x}",
                deth.qkey.0
            )
        });
    }
}
