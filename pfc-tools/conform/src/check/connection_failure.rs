//! The reason why a connection failed, determined after the last packet.

use super::findings::{Findings, Place};
use super::requester::hex;
use crate::flow::Channel;
use crate::flow::figures::duration;
use crate::flow::window::Sent;
use crate::rules::RuleId;

/// A connection counts as given up if the capture ends after more than this many transmissions of a
/// request without a response.
const REPEATED: u16 = 3;

/// Reports why a flow failed, if it did.
pub(super) fn end(channel: &Channel, flow: usize, out: &mut Findings) {
    super::requester::timed_out(&channel.pending, u32::try_from(flow).ok(), out);
    if let Some((before, _)) = &channel.before_jump {
        end(before, flow, out);
    }
    if channel.failed.is_some() || !channel.is_reliable() {
        return;
    }
    let unheard = channel.unheard.filter(|&(_, times, ..)| times >= REPEATED);
    if let Some((psn, times, packet, at)) = unheard {
        let last = Place { packet, at, flow: u32::try_from(flow).ok() };
        out.add(RuleId::AnswerLost, last, || {
            format!(
                "PSN {} was retransmitted {times} times although each copy was answered, and no new \
                 request follows: the answers pass this capture point and are lost on the way to \
                 the requester",
                hex(psn)
            )
        });
        return;
    }
    let Some(&oldest) = channel.window.unacked().find(|sent| !sent.is_missing()) else { return };
    let place =
        |sent: &Sent| Place { packet: sent.last, at: sent.last_at, flow: u32::try_from(flow).ok() };
    if let Some((by, Some(expected))) = channel.mismatch
        && oldest.times > 1
        && channel.window.find(expected).is_none()
    {
        out.add(RuleId::PsnMismatch, place(&oldest), || {
            format!(
                "the responder expects PSN {} (NAK in packet {}), but the requester starts with PSN \
                 {}, which it sent {} times: the two sides do not start with the same PSN",
                hex(expected),
                by.number,
                hex(oldest.psn),
                oldest.times
            )
        });
        return;
    }
    if let Some((by, None)) = channel.mismatch {
        out.add(RuleId::PsnMismatch, place(&oldest), || {
            format!(
                "the responder treated all {} transmissions of PSN {} as duplicates (first \
                 response that shows this: packet {}): it expects a \
                 later PSN than the requester starts with",
                oldest.times,
                hex(oldest.psn),
                by.number
            )
        });
        return;
    }
    if let Some(rnr) = channel.rnr
        && rnr.psn == oldest.psn
        && rnr.is_open
    {
        let allowed = channel.agreed.rnr_retry_count;
        if rnr.times >= 3 && allowed.is_none_or(|allowed| allowed < 7) {
            let at = Place { packet: rnr.packet, at: rnr.at, flow: u32::try_from(flow).ok() };
            out.add(RuleId::RnrExceeded, at, || {
                format!(
                    "no receive was ever posted for PSN {} (first packet {}): this is RNR NAK {} \
                     for it, and the requester does not try again",
                    hex(oldest.psn),
                    oldest.first.number,
                    rnr.times
                )
            });
        }
        return;
    }
    if oldest.unanswered > REPEATED {
        let silent = oldest.last_at;
        let since = channel.figures.last_at.saturating_sub(silent);
        let more =
            if since > 0 { format!(" within another {}", duration(since)) } else { String::new() };
        out.add(RuleId::RetryExceeded, place(&oldest), || {
            format!(
                "PSN {} was sent {} times (first in packet {}, last in packet {}) without any \
                 response{more}: the responder's QP is gone or unreachable. The requester gives up \
                 (retry exceeded)",
                hex(oldest.psn),
                oldest.times,
                oldest.first.number,
                oldest.last.number
            )
        });
    }
}
