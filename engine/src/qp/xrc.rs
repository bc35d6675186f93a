//! The receiving end of the extended reliable connection service: each request names a shared receive queue, whose
//! protection domain and completion queue count for it. The QP has neither, and no receives of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use feroce_wire::Packet;

use super::responder::Verdict;
use super::{Env, Qp};
use crate::verbs::SrqRing;

/// The shared receive queues of XRC domains, by number. Each core has a table of its own, which control calls
/// change under its token.
pub type SrqTable = BTreeMap<u32, Arc<SrqRing>>;

impl Qp {
    /// Takes a request.
    pub(super) fn handle_xrc_request(&mut self, packet: &Packet<'_>, env: &mut Env<'_>) -> Verdict {
        let Self { conn, responder, .. } = self;
        let domain = responder.rq.xrc_domain();
        let named = packet.ext.xrceth.and_then(|xrc| env.srqs.get(&xrc.srqn));
        let srq = named.filter(|srq| srq.xrc().is_some_and(|(id, _)| Some(id) == domain));
        match packet.bth.psn.offset_from(responder.epsn) {
            0 if packet.info.position.starts_message() && !responder.rq.holds_one() => {
                let Some((srq, (_, cq))) = srq.and_then(|srq| Some((srq, srq.xrc()?))) else {
                    return responder.refuse_queue(packet, conn, env);
                };
                conn.pd = srq.pd();
                conn.recv_cq = Arc::clone(cq);
                responder.rq.select(srq);
            }
            // All packets of a message name the same queue.
            0 if srq.map(|srq| srq.id()) != responder.rq.selected() => {
                return responder.refuse_queue(packet, conn, env);
            }
            behind if behind < 0 => {
                // A READ that comes again reads memory of the domain it read before; the message under way
                // has its own.
                let kept = conn.pd;
                conn.pd = srq.map_or(kept, |srq| srq.pd());
                let verdict = responder.handle_request(packet, conn, env);
                conn.pd = kept;
                return verdict;
            }
            _ => {}
        }
        responder.handle_request(packet, conn, env)
    }
}
