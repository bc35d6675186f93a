//! The states of queue pairs: moves them, notes what the engine does by itself, and walks queue
//! pairs without traffic through states that no traffic reaches.

use feroce_engine::device::{Path, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_wire::{FlowHeader, Pkey, Psn, Qpn, RnrTimer};

use super::super::check::Check;
use super::super::options::random_psn;
use super::super::transitions::Mover;
use super::objects::{QKEY, connect};
use super::plan::Kind;
use super::world::World;
use crate::{gid, gid_v6};
use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd};

/// Ways of a queue pair from RESET back to RESET, with their weights.
const WALKS: &[(u32, &[QpState])] = &[
    (60, &[]),
    (8, &[Reset]),
    (8, &[Error, Error, Reset]),
    (8, &[Init, Init, Reset]),
    (8, &[Init, Error, Reset]),
    (8, &[Init, Rtr, Reset]),
    (8, &[Init, Rtr, Error, Reset]),
];

impl World<'_> {
    /// Notes the state changes that the engine has made at `end` since the last look.
    pub fn look_at(&mut self, end: usize) -> Check {
        (0..self.pairs.len()).try_for_each(|pair| self.look(pair, end).map(drop))
    }

    /// Returns the state of a queue pair; `None` if it is destroyed. Notes what the engine has
    /// changed.
    pub fn look(&mut self, pair: usize, end: usize) -> Result<Option<QpState>, String> {
        let owner = &mut self.pairs[pair];
        let Some(qp) = &owner.qps[end] else { return Ok(None) };
        let now = state(qp);
        let before = std::mem::replace(&mut owner.states[end], now);
        if before != now {
            self.tally.transitions.note(qp.service(), Mover::Engine, (before, now))?;
        }
        Ok(Some(now))
    }

    /// Moves a queue pair, unless it is destroyed.
    pub fn modify(&mut self, pair: usize, end: usize, attributes: &QpAttributes) -> Check {
        let Some(before) = self.look(pair, end)? else { return Ok(()) };
        let owner = &mut self.pairs[pair];
        let qp = owner.qps[end].as_mut().expect("not destroyed");
        qp.modify(attributes).map_err(|error| format!("pair {pair}, end {end}: {error}"))?;
        let now = state(qp);
        if attributes.state != Some(now) {
            return Err(format!("pair {pair}, end {end}: in {now:?} after {attributes:?}"));
        }
        owner.states[end] = now;
        self.tally.transitions.note(qp.service(), Mover::Program, (before, now))
    }

    /// Moves a queue pair to `state`, which takes no attributes.
    pub fn move_to(&mut self, pair: usize, end: usize, state: QpState) -> Check {
        self.modify(pair, end, &QpAttributes { state: Some(state), ..QpAttributes::default() })
    }

    /// Walks a queue pair in RESET along a random one of [`WALKS`].
    pub fn walk(&mut self, pair: usize, end: usize) -> Check {
        for &to in self.random.weighted(WALKS) {
            let owner = &self.pairs[pair];
            let qp = owner.qps[end].as_ref().expect("not destroyed");
            let attributes = match to {
                Init => init(qp.service()),
                Rtr => self.rtr(qp, (owner.qpns[1 - end], 1 - end)),
                _ => QpAttributes { state: Some(to), ..QpAttributes::default() },
            };
            self.modify(pair, end, &attributes)?;
        }
        Ok(())
    }

    /// The attributes for RTR, with the peer of this number and end.
    fn rtr(&self, qp: &QueuePair, (dest_qp, peer): (Qpn, usize)) -> QpAttributes {
        let state = Some(Rtr);
        if qp.service() == Service::Ud {
            return QpAttributes { state, ..QpAttributes::default() };
        }
        let has_responder = matches!(qp.service(), Service::Rc | Service::XrcTgt);
        QpAttributes {
            state,
            flow: Some(flow(qp, self.plan.v6, (dest_qp, peer))),
            path_mtu: Some(self.plan.mtu),
            dest_qp: Some(dest_qp),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: has_responder.then_some(1),
            min_rnr_timer: RnrTimer::new(5).filter(|_| has_responder),
            ..QpAttributes::default()
        }
    }

    /// Moves both queue pairs of a reliable connection to SQD, gives them the addresses of the
    /// other IP version, as a program does whose path migrates, and moves them back to RTS. Packets
    /// that are under way have the old addresses, so they are lost.
    pub fn migrate(&mut self, pair: usize) -> Check {
        let states = [self.look(pair, 0)?, self.look(pair, 1)?];
        if !self.pairs[pair].kind.is_reliable() || states != [Some(Rts); 2] {
            return Ok(());
        }
        (0..2).try_for_each(|end| self.move_to(pair, end, Sqd))?;
        self.check_frames()?; // They have the old addresses.
        self.has_lost_frames = true;
        let owner = &mut self.pairs[pair];
        let connection = owner.connection.as_mut().expect("of a reliable service");
        connection.v6 = !connection.v6;
        let (qpns, v6) = (connection.qpns, connection.v6);
        self.wire_rules.migrate(qpns, v6);
        for end in 0..2 {
            let qp = self.pairs[pair].qps[end].as_ref().expect("not destroyed");
            let flow = Some(flow(qp, v6, (qpns[1 - end], 1 - end)));
            self.modify(pair, end, &QpAttributes { state: Some(Sqd), flow, ..Default::default() })?;
        }
        self.tally.count(self.pairs[pair].kind.name(), "path migrated");
        (0..2).try_for_each(|end| self.move_to(pair, end, Rts))
    }

    /// Connects the queue pairs of a pair, which are in RESET, or makes them ready for datagrams.
    pub fn connect(&mut self, pair: usize) {
        let owner = &mut self.pairs[pair];
        let psns = [0, 1].map(|_| random_psn(&mut self.random));
        let mut qps = owner.qps.each_mut().map(|qp| qp.take().expect("neither is gone"));
        match owner.kind {
            Kind::Ud => {
                for (qp, psn) in qps.iter_mut().zip(psns) {
                    qp.activate(QKEY, psn).expect("in RESET");
                }
            }
            _ => owner.connection = connect(&mut qps, psns, &self.plan, &self.plan.pairs[pair]),
        }
        owner.qps = qps.map(Some);
        self.note_connected(pair);
    }

    /// Notes that the queue pairs of a pair are in RTS, and were in RESET.
    pub fn note_connected(&mut self, pair: usize) {
        let owner = &mut self.pairs[pair];
        if let Some(connection) = &owner.connection {
            self.wire_rules.add(connection);
            self.tally.count(
                owner.kind.name(),
                match connection.selective_repeat {
                    true => "repeats only what is lost",
                    false => "goes back to what is lost",
                },
            );
        }
        for (qp, seen) in owner.qps.iter().flatten().zip(&mut owner.states) {
            *seen = state(qp);
            assert_eq!(*seen, QpState::Rts, "connected");
            self.tally.transitions.note_connected(qp.service());
        }
    }
}

fn state(qp: &QueuePair) -> QpState {
    qp.query().state.expect("a queue pair has a state")
}

/// The headers of the packets of `qp` to the peer with this number and end.
fn flow(qp: &QueuePair, v6: bool, (dest_qp, peer): (Qpn, usize)) -> FlowHeader {
    let peer = if v6 { gid_v6(peer) } else { gid(peer) };
    qp.resolve(&Path::new(peer, u32::from(v6)), dest_qp).expect("a path")
}

fn init(service: Service) -> QpAttributes {
    let is_datagram = service == Service::Ud;
    QpAttributes {
        state: Some(Init),
        pkey: Some(Pkey::DEFAULT),
        port: Some(1),
        access: (!is_datagram).then_some(Access::REMOTE_WRITE),
        qkey: is_datagram.then_some(QKEY),
        ..QpAttributes::default()
    }
}
