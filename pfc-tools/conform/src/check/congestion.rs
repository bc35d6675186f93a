//! The rules of congestion notification: CE marks, and the CNPs for them.

use feroce_wire::{Ecn, cnp};

use super::findings::{Findings, Place};
use crate::flow::Channel;
use crate::flow::figures::duration;
use crate::packet::Seen;
use crate::rules::RuleId;

/// The shortest usual interval between CNPs for a QP, in nanoseconds: the default of a ConnectX.
const INTERVAL: u64 = 4_000;
/// A CE mark without a CNP is reported after this time, in nanoseconds.
const CNP_TIMEOUT: u64 = 10_000_000;

/// Counts CE marks of a packet of the requests (`side` 0) or of the responses (`side` 1) of a flow.
pub(super) fn data(channel: &mut Channel, side: usize, seen: &Seen<'_>, place: Place) {
    if seen.packet.ip.ecn() == Ecn::Ce {
        let mark = &mut channel.marks[side];
        mark.marked += 1;
        mark.first.get_or_insert((place.packet, seen.at));
    }
}

/// Checks the format of a CNP.
pub(super) fn format(seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let packet = &seen.packet;
    let bth = &packet.bth;
    let is_zero = packet.payload.slices().into_iter().flatten().all(|&byte| byte == 0);
    let checks = [
        (bth.becn, "BECN is 0"),
        (bth.psn.value() == 0, "the PSN is not 0"),
        (!bth.ack_req, "the acknowledge request bit is 1"),
        (bth.pad == 0, "the pad count is not 0"),
        (packet.payload.len() == cnp::RESERVED_LEN, "the reserved field is not 16 bytes long"),
        (is_zero || seen.is_cut, "the reserved field is not 0"),
    ];
    for (_, why) in checks.into_iter().filter(|(holds, _)| !holds) {
        out.add(RuleId::CnpFormat, place, || format!("a CNP in which {why}"));
    }
}

/// Checks the fields of a CNP that the flow decides, and its mark.
pub(super) fn fields(channel: Option<&Channel>, seen: &Seen<'_>, place: Place, out: &mut Findings) {
    if seen.packet.ip.ecn() == Ecn::Ce {
        out.add(RuleId::CnpMarked, place, || "a CNP that is marked (CE)".to_owned());
    }
    let pkey = seen.packet.bth.pkey.0;
    if let Some(known) = channel.and_then(|channel| channel.pkey)
        && known & 0x7fff != pkey & 0x7fff
    {
        out.add(RuleId::CnpPkey, place, || {
            format!("a CNP with P_Key {pkey:#06x} in a connection with P_Key {known:#06x}")
        });
    }
}

/// Checks a CNP for the sender of the requests (`side` 0) or of the responses (`side` 1) of a flow.
/// `is_captured` is true if packets of the notified direction were captured.
pub(super) fn notified(
    channel: &mut Channel,
    (side, is_captured): (usize, bool),
    seen: &Seen<'_>,
    place: Place,
    out: &mut Findings,
) {
    let mark = &mut channel.marks[side];
    mark.cnps += 1;
    if let Some(last) = mark.last_cnp.replace(seen.at) {
        let since = seen.at.saturating_sub(last);
        channel.figures.cnp_intervals.add(since);
        if since < INTERVAL {
            out.add(RuleId::CnpInterval, place, || {
                format!("a CNP {} after the previous one for the same QP", duration(since))
            });
        }
    }
    if mark.marked == 0 && is_captured {
        out.add(RuleId::CnpWithoutMark, place, || {
            "a CNP, but no packet of the flow was marked (CE) at this capture point: a later hop \
             marked it, or none did"
                .to_owned()
        });
    }
}

/// Reports CE marks without a CNP.
pub(super) fn end(channel: &Channel, flow: usize, out: &mut Findings) {
    let is_reverse_captured = [channel.figures.responses > 0, channel.figures.requests > 0];
    for (side, mark) in channel.marks.iter().enumerate() {
        let Some((packet, at)) = mark.first.filter(|_| mark.cnps == 0 && is_reverse_captured[side])
        else {
            continue;
        };
        if channel.figures.last_at.saturating_sub(at) < CNP_TIMEOUT {
            continue;
        }
        let place = Place { packet, at, flow: u32::try_from(flow).ok() };
        out.add(RuleId::CnpMissing, place, || {
            format!(
                "{} packets from this one on are marked (CE), but no CNP answers them",
                mark.marked
            )
        });
    }
}
