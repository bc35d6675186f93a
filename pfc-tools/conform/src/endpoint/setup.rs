//! Connects the two ends of a plan, and prepares their requests.

use feroce_engine::device::Endpoint;
use feroce_engine::verbs::RemoteAddr;
use feroce_wire::{Key, PathMtu, Psn};

use super::Failure;
use super::end::{End, Posting};
use super::model::{self, Model};
use super::plan::{Family, Op, Plan, REQUESTER, RESPONDER};

/// The number of the first receive; requests are numbered from 0.
pub const FIRST_RECEIVE: u64 = 1000;
/// A key XORed with this value is a key that was never issued.
const WRONG: u32 = 0x55;

/// Prepares both ends for `plan` and connects them. Returns their addresses.
///
/// # Errors
/// The error of a stack.
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

/// Returns the expected memory contents and the requests with all numbers, for a responder whose
/// regions have the addresses and keys `keys`.
///
/// # Panics
/// If the plan has a SEND with invalidate but no window.
pub fn requests_of(plan: &Plan, keys: &[RemoteAddr]) -> (Model, Vec<Posting>) {
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
