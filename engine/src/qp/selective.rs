//! Selective repeat, on the side of the requester: only what was lost is sent again.
//!
//! The [responder](super::responder) holds packets behind a gap and says in its NAK which ones
//! ([`Sack`]). The [scoreboard](super::scoreboard) keeps this, and the responses that have arrived
//! behind a missing one; the cursor stays where it is. After a local ACK timeout, an RNR NAK or a
//! NAK without a map, the requester goes back as without selective repeat.

use feroce_wire::{AtomicAckEth, Operation, PacketView, Payload, Psn, Sack};

use super::completer::{Failed, SendSide, is_expected_read_response};
use super::connection::Connection;
use super::env::Env;
use super::requester::{Next, Outgoing, Requester};
use super::scoreboard::{SPAN, Scoreboard, Search};
use super::segment::{self, Segment};
use super::split;
use super::timer::{Timer, TimerTable};
use crate::congestion::SentRequest;
use crate::counters::Counter;
use crate::verbs::SendWqe;

impl Requester {
    /// The scoreboard, while something may be missing.
    #[inline]
    pub(super) fn active_board(&self) -> Option<&Scoreboard> {
        self.board.as_deref().filter(|board| board.is_active())
    }

    /// Returns true if packets may be lost.
    #[inline]
    pub(super) fn has_lost(&self) -> bool {
        self.board.as_ref().is_some_and(|board| board.search() != Search::Done)
    }

    /// Writes the oldest lost packet to the front of `out`.
    #[cold]
    pub(super) fn next_lost(
        &mut self,
        conn: &Connection,
        timers: &mut TimerTable,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> Option<Next> {
        let lost = self.find_lost(conn);
        let is_suspect = lost.is_none();
        let (index, psn, segment) = lost.or_else(|| self.find_suspect(conn))?;
        let wqe = self.sq.posted(index).expect("between head and fresh");
        let packet = Outgoing { psn, segment, ack_req: true };
        let carries_data = !wqe.op.needs_responder_resource();
        Some(match Self::write_packet(wqe, packet, conn, env, out) {
            Ok(len) => {
                env.counters.count(Counter::RetransmittedPackets);
                self.ack_timer.start(timers, env.now);
                if let (false, Some(board)) = (is_suspect, self.board.as_mut()) {
                    board.mark_sent(self.una, psn, psn.add(segment.psn_count), self.sent_end);
                }
                let sent = SentRequest {
                    psn,
                    carries_data,
                    ack_requested: true,
                    is_retransmit: true,
                    follows_loss: carries_data,
                };
                Next::Packet(len, sent)
            }
            Err(status) if index == self.sq.head() => Next::Failed(status),
            // It is still lost, and the search comes back when older packets are acknowledged.
            Err(_) => Next::Blocked,
        })
    }

    /// Finds the next lost packet.
    fn find_lost(&mut self, conn: &Connection) -> Option<(u32, Psn, Segment)> {
        let board = self.board.as_mut()?;
        let (mut index, mut psn) = match board.search() {
            Search::Start => (self.sq.head(), self.una),
            Search::At(index, psn) => (index, psn),
            Search::Done => return None,
        };
        // Beyond the span, the board does not know what was stored or sent again.
        let end = earlier(earlier(board.end(), self.cursor_psn), self.una.add(SPAN));
        while psn.is_before(end) && index != self.fresh_wqe {
            let wqe = self.sq.get(index).expect("between head and fresh");
            if !psn.is_before(wqe.end_psn()) {
                index = index.wrapping_add(1);
                continue;
            }
            let look = Look { board, una: self.una, end, wqe, mtu: conn.mtu };
            let (lost, next) = look.at(psn);
            if let Some(segment) = lost {
                board.set_search(Search::At(index, next));
                return Some((index, psn, segment));
            }
            psn = next;
        }
        board.set_search(Search::Done);
        None
    }

    /// The packet that is sent again because it may be the last of many that are lost.
    fn find_suspect(&mut self, conn: &Connection) -> Option<(u32, Psn, Segment)> {
        let board = self.board.as_mut()?;
        let psn = board.take_suspect()?;
        let executed = board.executed();
        let index = self.request_of(psn);
        let wqe = self.sq.get(index).filter(|_| psn.is_before(self.cursor_psn))?;
        let message = split::message_of(wqe, wqe.first_psn.distance_to(psn));
        let start = wqe.first_psn.add(message.start);
        let is_unexecuted_read = wqe.op.needs_responder_resource() && !start.is_before(executed);
        let psn = if is_unexecuted_read { start } else { psn };
        Some((index, psn, segment::segment(wqe, psn, conn.mtu)))
    }
}

/// A look at the packets of one request.
struct Look<'a> {
    board: &'a Scoreboard,
    una: Psn,
    /// The search ends here.
    end: Psn,
    wqe: &'a SendWqe,
    mtu: usize,
}

impl Look<'_> {
    /// The packet to send again for `psn`, if it is lost, and the PSN to look at next.
    fn at(&self, psn: Psn) -> (Option<Segment>, Psn) {
        let (board, wqe) = (self.board, self.wqe);
        if !wqe.op.needs_responder_resource() {
            if psn.is_before(board.executed()) {
                return (None, earlier(board.executed(), wqe.end_psn()));
            }
            return (self.lost_request(psn), psn.next());
        }
        let message = split::message_of(wqe, wqe.first_psn.distance_to(psn));
        let (start, end) = (wqe.first_psn.add(message.start), wqe.first_psn.add(message.end));
        if !start.is_before(board.executed()) {
            return (self.lost_request(psn), end);
        }
        self.at_response(psn, end)
    }

    /// The request packet `psn`, if it is lost.
    fn lost_request(&self, psn: Psn) -> Option<Segment> {
        let is_lost = !self.board.is_received(psn) && self.is_lost(psn, self.board.end());
        is_lost.then(|| segment::segment(self.wqe, psn, self.mtu))
    }

    /// As [`Look::at`], for the response `psn` of a message that ends at `end` and was executed.
    fn at_response(&self, psn: Psn, end: Psn) -> (Option<Segment>, Psn) {
        let executed = self.board.executed();
        if !psn.is_before(executed) {
            return (None, end);
        }
        let known = earlier(earlier(executed, end), self.end);
        let mut next = psn;
        while next.is_before(known) && self.is_response_lost(next) {
            next = next.next();
        }
        if next == psn {
            return (None, psn.next());
        }
        let whole = segment::segment(self.wqe, psn, self.mtu);
        (Some(segment::shortened(whole, psn.distance_to(next), self.mtu)), next)
    }

    fn is_response_lost(&self, psn: Psn) -> bool {
        let distance = self.una.distance_to(psn);
        !self.board.is_stored(psn, distance) && self.is_lost(psn, self.board.executed())
    }

    fn is_lost(&self, psn: Psn, end: Psn) -> bool {
        self.board.is_lost(psn, self.una.distance_to(psn), end)
    }
}

fn earlier(a: Psn, b: Psn) -> Psn {
    if b.is_before(a) { b } else { a }
}

impl SendSide<'_, '_> {
    /// The peer expects `psn`, and has received the packets of `sack` behind it.
    pub(super) fn handle_selective_nak(&mut self, psn: Psn, sack: Sack) -> Result<(), Failed> {
        self.env.counters.count(Counter::PacketSeqErr);
        self.acknowledge_selectively(psn);
        // A map of packets that the cursor has not reached is older than a timeout, or forged.
        let ahead = psn.distance_to(self.requester.cursor_psn);
        let is_sent = psn.is_before(self.requester.cursor_psn) && sack.last() < ahead;
        if is_sent && !self.timers.is_running(Timer::Rnr) {
            self.board().set_sack(psn, sack);
        }
        Ok(())
    }

    /// The scoreboard, active.
    fn board(&mut self) -> &mut Scoreboard {
        let una = self.requester.una;
        let board = self.requester.board.get_or_insert_with(|| Box::new(Scoreboard::new()));
        board.activate(una);
        board
    }

    /// Acknowledges everything before `to`, as far as responses have arrived. Returns true if all
    /// have.
    pub(super) fn acknowledge_selectively(&mut self, to: Psn) -> bool {
        let done = self.first_awaiting_response(to);
        self.acknowledge_up_to(done);
        let is_active = self.requester.active_board().is_some();
        if done == to && !is_active {
            return true;
        }
        self.env.lost_responses |= done != to && !is_active;
        self.board();
        self.acknowledge_stored(to);
        !self.requester.una.is_before(to)
    }

    /// Acknowledges what has arrived behind a packet that was missing. The peer has executed all
    /// request packets before `to`.
    pub(super) fn acknowledge_stored(&mut self, to: Psn) {
        let board = self.requester.board.as_mut().filter(|board| board.is_active());
        let Some(board) = board else { return };
        board.set_executed(to);
        let executed = board.executed();
        let done = self.first_awaiting_response(executed);
        self.acknowledge_up_to(done);
    }

    /// Stores the response `psn`, which arrived although responses before it are missing.
    pub(super) fn store_ahead(&mut self, packet: &PacketView<'_>, psn: Psn) -> Result<(), Failed> {
        let distance = self.requester.una.distance_to(psn);
        if distance >= SPAN || self.board().is_stored(psn, distance) {
            // A response beyond the span is dropped, and requested again later.
            self.board().set_executed(psn.next());
            return Ok(());
        }
        let index = self.requester.request_of(psn);
        let Some(&wqe) = self.requester.sq.get(index) else { return Ok(()) };
        self.update_credits(packet);
        match (packet.info.operation, packet.ext().atomic_ack()) {
            (Operation::AtomicAcknowledge, Some(AtomicAckEth { original }))
                if wqe.op.is_atomic() =>
            {
                let value = original.to_ne_bytes();
                self.store_response(index, &wqe, 0, Payload { first: &value, second: &[] })?;
            }
            (Operation::ReadResponse, _)
                if is_expected_read_response(packet, &wqe, psn, self.conn) =>
            {
                let offset = u64::from(wqe.first_psn.distance_to(psn)) * self.conn.mtu as u64;
                self.store_response(index, &wqe, offset, packet.payload)?;
            }
            _ => return self.fail_with_bad_response(),
        }
        self.mark_stored(&wqe, psn);
        self.board().set_executed(psn.next());
        Ok(())
    }

    fn mark_stored(&mut self, wqe: &SendWqe, psn: Psn) {
        let una = self.requester.una;
        let board = self.board();
        board.set_stored(psn);
        let message = split::message_of(wqe, wqe.first_psn.distance_to(psn));
        let has = |index: u32| {
            let psn = wqe.first_psn.add(index);
            board.is_stored(psn, una.distance_to(psn))
        };
        // All PSNs before the oldest unacknowledged one appear to be far ahead, and not stored.
        if message.clone().all(has) {
            board.set_complete(wqe.first_psn.add(message.end - 1));
        }
    }
}
