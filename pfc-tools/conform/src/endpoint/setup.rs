//! Connects the two ends of a plan, and prepares their requests.

use feroce_engine::device::Endpoint;
use feroce_engine::verbs::RemoteAddr;
use feroce_wire::{Key, PathMtu, Psn};

use super::Failure;
use super::end::{End, Posting};
use super::model::{self, Model};
use super::plan::{Family, Op, Plan, REQUESTER, RESPONDER};

/// Numbers of receives count from here, those of requests from 0.
pub const FIRST_RECEIVE: u64 = 1000;
/// Makes a key one that was never given.
const WRONG: u32 = 0x55;

/// Prepares both ends for `plan` and joins them; returns where each is reached.
///
/// # Errors
/// The stacks' words.
pub fn connect(
    plan: &Plan,
    family: Family,
    mtu: PathMtu,
    ends: &mut [&mut dyn End; 2],
) -> Result<[Endpoint; 2], Failure> {
    let prepare = |end: &mut dyn End, index: usize| {
        end.prepare(family, &plan.regions[index], model::seed(index), &plan.settings[index])
    };
    let addresses = [prepare(ends[REQUESTER], REQUESTER)?, prepare(ends[RESPONDER], RESPONDER)?];
    for index in [REQUESTER, RESPONDER] {
        let peer = &addresses[1 - index];
        let ahead = if index == RESPONDER { plan.psn_ahead } else { 0 };
        let rq_psn = Psn::new(peer.psn.add(ahead).value());
        ends[index].connect(peer, rq_psn, mtu, &plan.settings[index])?;
    }
    Ok(addresses)
}

/// What the memories will hold, and the requests with all their numbers, for a responder whose regions are
/// reached by `keys`.
///
/// # Panics
/// If the plan sends with invalidate, and has no window.
pub fn draw_up(plan: &Plan, keys: &[RemoteAddr]) -> (Model, Vec<Posting>) {
    let mut model = Model::new(plan);
    let window = plan.regions[RESPONDER].iter().position(|region| region.window);
    let postings = plan.requests.iter().enumerate().map(|(index, request)| {
        let operands = model.operands(index, request);
        model.apply(request, operands);
        let region = match request.op {
            Op::SendInv => window.expect("a window to invalidate"),
            _ => request.remote.region,
        };
        let RemoteAddr { addr, rkey } = keys[region];
        let rkey = if request.wrong_key { Key(rkey.value() ^ WRONG) } else { rkey };
        Posting {
            wr_id: index as u64,
            op: request.op,
            local: request.local,
            len: request.len,
            remote: RemoteAddr { addr: addr + u64::from(request.remote.offset), rkey },
            operand: operands.0,
            swap: operands.1,
            fence: request.fence,
            inline: request.inline,
        }
    });
    let postings = postings.collect();
    (model, postings)
}
