//! The receiving end of XRC: each request names a shared receive queue, whose protection domain and
//! completion queue are used. The QP has neither of its own, and no receives of its own.

use std::sync::Arc;

use feroce_wire::PacketView;

use super::connected::Qp;
use super::env::Env;
use super::responder::Verdict;

impl Qp {
    /// Handles a request packet of XRC.
    pub(super) fn handle_xrc_request(
        &mut self,
        packet: &PacketView<'_>,
        env: &mut Env<'_>,
    ) -> Verdict {
        let Self { conn, responder, .. } = self;
        let domain = responder.rq.xrc_domain();
        let named = packet.ext().xrceth().and_then(|xrc| env.srqs.get(&xrc.srqn));
        let srq = named.filter(|srq| srq.xrc().is_some_and(|(id, _)| Some(id) == domain));
        match packet.bth().psn.offset_from(responder.epsn) {
            0 if packet.info.position.starts_message() && !responder.rq.holds_receive() => {
                let Some((srq, (_, cq))) = srq.and_then(|srq| Some((srq, srq.xrc()?))) else {
                    return responder.reject_srq(packet, conn, env);
                };
                conn.pd = srq.pd();
                conn.recv_cq = Arc::clone(cq);
                responder.rq.select(srq);
            }
            // All packets of a message must name the same queue.
            0 if srq.map(|srq| srq.id()) != responder.rq.selected() => {
                return responder.reject_srq(packet, conn, env);
            }
            behind if behind < 0 => {
                // A duplicate READ reads memory of the protection domain that it read before. The
                // message in progress keeps its own.
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
