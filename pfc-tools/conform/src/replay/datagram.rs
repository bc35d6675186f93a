//! Datagrams: the engine must receive the captured datagrams as sent, and must send the same
//! packets for the same parameters.

use feroce_engine::device::Destination;
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::time::Instant;
use feroce_engine::verbs::{Data, Extra, RecvRequest, SendFlags, SendOp, SendRequest};
use feroce_wire::{Packet, Qpn};

use super::compare::compare;
use super::compare_responses::text;
use super::lanes::{Captured, Lane};
use super::rig::{Rig, Unplayable, path, unplayable};
use super::{Difference, Outcome};
use crate::device_pair::drain;
use crate::party::Party;

/// Bytes of the GRH before a received datagram.
const GRH: usize = 40;
/// The longest datagram, in bytes.
const LONGEST: usize = 4096;

fn deth(packet: &Packet<'_>) -> Result<feroce_wire::Deth, Unplayable> {
    packet.ext.deth.ok_or_else(|| Unplayable("a datagram without a DETH".to_owned()))
}

/// Plays the receiver. For a multicast group, plays one member with an arbitrary address.
///
/// # Errors
/// If the engine refuses.
pub fn receive(lane: &Lane, frames: &[Captured]) -> Result<Outcome, Unplayable> {
    let first = frames[lane.requests[0]].packet();
    let is_group = first.bth.dest_qp == Qpn::MULTICAST;
    let mut own = lane.responder;
    if is_group {
        // The capture does not show the members' own addresses: any address except the sender's
        // will do.
        own = Party { ip: other_address(lane.requester.ip), qpn: super::lanes::UNKNOWN_QPN, ..own };
    }
    let mut rig = Rig::new(lane, &own, &lane.requester, 2 * LONGEST)?;
    rig.allow(usize::MAX >> 1);
    let mut qp = rig.pd.create_qp(&rig.init(lane, &own)).map_err(unplayable("a QP"))?;
    qp.activate(deth(&first)?.qkey, feroce_wire::Psn::new(0)).map_err(unplayable("a UD QP"))?;
    if is_group {
        let joined = qp.attach_multicast(Gid::from(lane.responder.ip));
        joined.map_err(unplayable("join the group"))?;
    }
    let buffer = rig.pd.alloc_buffer(GRH + LONGEST, Access::LOCAL_WRITE);
    let buffer = buffer.map_err(unplayable("register memory"))?;
    let mut outcome = Outcome::default();
    for &index in &lane.requests {
        let (frame, packet) = (&frames[index], frames[index].packet());
        let length = u32::try_from(buffer.len()).expect("short");
        let sges = [buffer.region().sge(0, length)];
        let posted = qp.post_recv(&RecvRequest { wr_id: 0, sges: &sges });
        posted.map_err(unplayable("post a receive"))?;
        rig.now = Instant::ZERO + frame.at;
        rig.give(&frame.bytes);
        let responses = rig.turn();
        outcome.fed += 1;
        let mut differs = |sentence: String| {
            outcome.differences.push(Difference { packet: Some(frame.number), sentence });
        };
        for response in &responses {
            differs(format!("the engine responds to a datagram: {}", text(response)));
        }
        let done = drain(&rig.cq);
        let [done] = done.as_slice() else {
            differs("the datagram was not received".to_owned());
            continue;
        };
        let payload = packet.payload.slices().concat();
        let mut held = vec![0; payload.len()];
        buffer.read(GRH, &mut held);
        let extra = packet.ext.imm.map_or(Extra::None, |imm| Extra::Immediate(imm.0));
        let source = done.datagram.map(|source| source.src_qp);
        let length = done.byte_len as usize == GRH + payload.len();
        if held != payload
            || done.extra != extra
            || source != Some(deth(&packet)?.src_qp)
            || !length
        {
            differs("the received data is not that of the datagram".to_owned());
        }
        outcome.compared += 1;
        outcome.messages += 1;
        outcome.bytes_checked += payload.len() as u64;
    }
    Ok(outcome)
}

/// Returns an address of the same family other than `ip`.
fn other_address(ip: std::net::IpAddr) -> std::net::IpAddr {
    match ip {
        std::net::IpAddr::V4(ip) => std::net::Ipv4Addr::from(u32::from(ip) ^ 1).into(),
        std::net::IpAddr::V6(ip) => std::net::Ipv6Addr::from(u128::from(ip) ^ 1).into(),
    }
}

/// Plays the sender.
///
/// # Errors
/// If the engine refuses.
pub fn send(lane: &Lane, frames: &[Captured]) -> Result<Outcome, Unplayable> {
    let first = frames[lane.requests[0]].packet();
    let key = deth(&first)?.qkey;
    let mut rig = Rig::new(lane, &lane.requester, &lane.responder, LONGEST)?;
    rig.allow(usize::MAX >> 1);
    let init = rig.init(lane, &lane.requester);
    let mut qp = rig.pd.create_qp(&init).map_err(unplayable("a QP"))?;
    qp.activate(key, first.bth.psn).map_err(unplayable("a UD QP"))?;
    let buffer = rig.pd.alloc_buffer(LONGEST, Access::LOCAL_WRITE);
    let buffer = buffer.map_err(unplayable("register memory"))?;
    let ah = rig.pd.create_ah(&path(&lane.responder, Some(&first)));
    let ah = ah.map_err(unplayable("a path"))?;
    let mut outcome = Outcome::default();
    for &index in &lane.requests {
        let (frame, packet) = (&frames[index], frames[index].packet());
        let payload = packet.payload.slices().concat();
        buffer.write(0, &payload);
        let op = packet.ext.imm.map_or(SendOp::Send, |imm| SendOp::SendImm(imm.0));
        let length = u32::try_from(payload.len()).map_err(unplayable("a datagram"))?;
        let sges = [buffer.region().sge(0, length)];
        let sges = &sges[..usize::from(length > 0)];
        let flags = if packet.bth.solicited { SendFlags::SOLICITED } else { SendFlags::NONE };
        let request = SendRequest { wr_id: 0, op, data: Data::Sges(sges), flags };
        let qkey = deth(&packet)?.qkey;
        let to = Destination { ah: &ah, remote_qpn: packet.bth.dest_qp, qkey };
        qp.post_send_to(&request, &to).map_err(unplayable("post a datagram"))?;
        let number = frame.number;
        let sentence = match rig.turn().as_slice() {
            [ours] => compare(ours, &frame.bytes, number, false, &mut outcome.tolerances),
            sent => Some(format!("{} packets instead of one", sent.len())),
        };
        let packet = Some(number);
        outcome.differences.extend(sentence.map(|sentence| Difference { packet, sentence }));
        outcome.compared += 1;
        outcome.bytes_checked += payload.len() as u64;
    }
    Ok(outcome)
}
