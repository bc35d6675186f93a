//! The rules of congestion notification: marks, and CNPs against them.

use feroce_wire::{Ecn, cnp};

use super::figures::duration;
use super::findings::{Findings, Place};
use crate::flow::Channel;
use crate::packet::Seen;
use crate::rules::RuleId;

/// The shortest time between CNPs for a QP that is usual: a ConnectX's default, in nanoseconds.
const INTERVAL: u64 = 4_000;
/// For how long a mark may stay without a CNP before that is told, in nanoseconds.
const PATIENCE: u64 = 10_000_000;

/// A packet of a flow, which may be marked: of its requests (0) or its answers (1).
pub(super) fn data(channel: &mut Channel, side: usize, seen: &Seen<'_>, place: Place) {
    if seen.packet.ip.ecn() == Ecn::Ce {
        let mark = &mut channel.marks[side];
        mark.marked += 1;
        mark.first.get_or_insert((place.packet, seen.at));
    }
}

/// The format of a CNP.
pub(super) fn format(seen: &Seen<'_>, place: Place, out: &mut Findings) {
    let packet = &seen.packet;
    let bth = &packet.bth;
    let is_zero = packet.payload.slices().into_iter().flatten().all(|&byte| byte == 0);
    let checks = [
        (bth.becn, "BECN is 0"),
        (bth.psn.value() == 0, "the PSN is not 0"),
        (!bth.ack_req, "an acknowledgement is asked for"),
        (bth.pad == 0, "there is pad"),
        (packet.payload.len() == cnp::RESERVED_LEN, "what is reserved has not 16 bytes"),
        (is_zero || seen.is_cut, "what is reserved is not 0"),
    ];
    for (_, why) in checks.into_iter().filter(|(holds, _)| !holds) {
        out.add(RuleId::CnpFormat, place, || format!("a CNP of which {why}"));
    }
}

/// A CNP against those who send the requests (0) or the answers (1) of a flow.
pub(super) fn notified(
    channel: &mut Channel,
    side: usize,
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
                format!("a CNP {} after the last one for the same QP", duration(since))
            });
        }
    }
    let sent = channel.figures.requests + channel.figures.answers;
    if mark.marked == 0 && sent > 0 {
        out.add(RuleId::CnpUnasked, place, || {
            "a CNP, though no packet of the flow was marked when it passed here: it was marked further on, or not at all".to_owned()
        });
    }
}

/// Marks that nobody has answered.
pub(super) fn end(channel: &Channel, flow: usize, out: &mut Findings) {
    let hears = [channel.figures.answers > 0, channel.figures.requests > 0];
    for (side, mark) in channel.marks.iter().enumerate() {
        let Some((packet, at)) = mark.first.filter(|_| mark.cnps == 0 && hears[side]) else {
            continue;
        };
        if channel.figures.last_at.saturating_sub(at) < PATIENCE {
            continue;
        }
        let place = Place { packet, at, flow: u32::try_from(flow).ok() };
        out.add(RuleId::CnpMissing, place, || {
            format!(
                "{} packets are marked (CE) from this one on, and no CNP answers them",
                mark.marked
            )
        });
    }
}
