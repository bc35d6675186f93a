//! Known deviations of certain vendors' endpoints ("quirks"), each reported once per flow.

use feroce_wire::IpHeader;

use super::findings::{Findings, Place};
use crate::flow::Channel;
use crate::packet::{Carrier, Seen};
use crate::rules::RuleId;

/// Reports a quirk, unless it has already been reported for this flow.
pub(super) fn report(channel: &mut Channel, rule: RuleId, place: Place, out: &mut Findings) {
    let bit = 1 << (rule as u32 - RuleId::QuirkMigReq as u32);
    if channel.quirks & bit == 0 {
        channel.quirks |= bit;
        out.add(rule, place, || rule.rule().text.to_owned());
    }
}

/// Returns true if the quirk has been reported for this flow.
pub(super) fn has(channel: &Channel, rule: RuleId) -> bool {
    channel.quirks & (1 << (rule as u32 - RuleId::QuirkMigReq as u32)) != 0
}

/// Checks a packet for the quirks that a single packet shows.
pub(super) fn check_packet(
    channel: &mut Channel,
    seen: &Seen<'_>,
    place: Place,
    out: &mut Findings,
) {
    let packet = &seen.packet;
    if !packet.bth.mig_req {
        channel.mig_req_0 = true;
        report(channel, RuleId::QuirkMigReq, place, out);
    }
    if seen.carrier != Carrier::RoceV2 {
        return;
    }
    if packet.udp.src_port < 0xc000 {
        report(channel, RuleId::QuirkPort, place, out);
    }
    if let IpHeader::V4(ip) = packet.ip
        && ip.identification == 0
    {
        report(channel, RuleId::QuirkId, place, out);
    }
}
