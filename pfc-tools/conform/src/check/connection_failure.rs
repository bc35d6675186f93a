//! The reason why a connection failed, determined after the last packet.

use super::findings::{Findings, Place, hex};
use crate::flow::figures::duration;
use crate::flow::window::Sent;
use crate::flow::{Channel, Pending};
use crate::rules::RuleId;

/// A connection counts as given up if the capture ends after more than this many transmissions of a
/// request without a response.
const REPEATED: u16 = 3;

/// Reports why a flow failed, if it did.
pub(super) fn end(channel: &Channel, flow: usize, out: &mut Findings) {
    timed_out(&channel.pending, u32::try_from(flow).ok(), out);
    if let Some((before, _)) = &channel.before_jump {
        end(before, flow, out);
    }
    if channel.failed.is_some() || !channel.is_reliable() {
        return;
    }
    if answers_are_lost(channel, flow, out) {
        return;
    }
    let Some(&oldest) = channel.window.unacked().find(|sent| !sent.is_missing()) else { return };
    let place =
        |sent: &Sent| Place { packet: sent.last, at: sent.last_at, flow: u32::try_from(flow).ok() };
    if psns_differ(channel, &oldest, place(&oldest), out) {
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

/// Reports a request that is retransmitted although its responses were captured. Returns true if
/// so.
fn answers_are_lost(channel: &Channel, flow: usize, out: &mut Findings) -> bool {
    let unheard = channel.unheard.filter(|&(_, times, ..)| times >= REPEATED);
    let Some((psn, times, packet, at)) = unheard else { return false };
    let last = Place { packet, at, flow: u32::try_from(flow).ok() };
    out.add(RuleId::AnswerLost, last, || {
        format!(
            "PSN {} was retransmitted {times} times although each copy got a response, and no new \
             request follows: the responses are lost between this capture point and the requester",
            hex(psn)
        )
    });
    true
}

/// Reports that the two sides start with different PSNs. Returns true if so.
fn psns_differ(channel: &Channel, oldest: &Sent, place: Place, out: &mut Findings) -> bool {
    let Some((by, expected)) = channel.mismatch else { return false };
    match expected {
        None => out.add(RuleId::PsnMismatch, place, || {
            format!(
                "the responder treated all {} transmissions of PSN {} as duplicates (first \
                 response that shows this: packet {}): it expects a later PSN than the requester \
                 starts with",
                oldest.times,
                hex(oldest.psn),
                by.number
            )
        }),
        Some(psn) if oldest.times > 1 && channel.window.find(psn).is_none() => {
            out.add(RuleId::PsnMismatch, place, || {
                format!(
                    "the responder expects PSN {} (NAK in packet {}), but the requester starts \
                     with PSN {}, which it sent {} times",
                    hex(psn),
                    by.number,
                    hex(oldest.psn),
                    oldest.times
                )
            });
        }
        Some(_) => return false,
    }
    true
}

/// Reports retransmissions that were needed.
pub(super) fn timed_out(pending: &[Pending], flow: Option<u32>, out: &mut Findings) {
    for &Pending { psn, packet, at, since, before } in pending {
        out.add(RuleId::Timeout, Place { packet, at, flow }, || {
            format!(
                "PSN {} is retransmitted {} after packet {}, which got no response",
                hex(psn),
                duration(since),
                before.number
            )
        });
    }
}
