//! Why connections have failed, when all packets have been seen.

use super::figures::duration;
use super::findings::{Findings, Place};
use super::requester::hex;
use crate::flow::Channel;
use crate::flow::window::Sent;
use crate::rules::RuleId;

/// How often a request must have been repeated without an answer at the end of a capture for its connection to be given up.
const REPEATED: u16 = 3;

/// What has become of a flow.
pub(super) fn end(channel: &Channel, flow: usize, out: &mut Findings) {
    super::requester::timed_out(&channel.pending, u32::try_from(flow).ok(), out);
    if channel.failed.is_some() || !channel.is_reliable() {
        return;
    }
    let Some(&oldest) = channel.window.unacked().find(|sent| !sent.is_missing()) else { return };
    let place =
        |sent: &Sent| Place { packet: sent.last, at: sent.last_at, flow: u32::try_from(flow).ok() };
    if let Some(by) = channel.mismatch {
        out.add(RuleId::PsnMismatch, place(&oldest), || {
            format!("PSN {} was sent {} times, and each time taken for a duplicate (packet {} is the first answer that says so): the responder expects a later PSN than the requester begins with", hex(oldest.psn), oldest.times, by.number)
        });
        return;
    }
    if let Some(rnr) = channel.rnr
        && rnr.psn == oldest.psn
        && rnr.is_open
    {
        let allowed = channel.agreed.rnr_retry_count;
        if rnr.times >= 3
            && allowed.is_none_or(|allowed| allowed < 7)
            && rnr.at == channel.figures.last_at
        {
            let at = Place { packet: rnr.packet, at: rnr.at, flow: u32::try_from(flow).ok() };
            out.add(RuleId::RnrExceeded, at, || {
                format!("no receive was ever posted for PSN {} (first packet {}): this is RNR NAK {} for it, and the requester does not try again", hex(oldest.psn), oldest.first.number, rnr.times)
            });
        }
        return;
    }
    if oldest.unanswered > REPEATED {
        let silent = oldest.last_at;
        let since = channel.figures.last_at.saturating_sub(silent);
        let more = if since > 0 {
            format!(", and for another {}", duration(since))
        } else {
            String::new()
        };
        out.add(RuleId::RetryExceeded, place(&oldest), || {
            format!("PSN {} was sent {} times, first in packet {} and for the last time in packet {}, without any answer{more}: the responder's QP is gone, or unreachable. The requester gives up (retry exceeded)", hex(oldest.psn), oldest.times, oldest.first.number, oldest.last.number)
        });
    }
}
