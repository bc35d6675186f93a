//! `ibv_post_send` and `ibv_post_recv`.

use std::ffi::c_int;

use feroce_engine::device::{Destination, PostBatch, PostError, QueuePair};
use feroce_engine::qp::Service;
use feroce_engine::verbs::{
    Data, LocalOp, MAX_SGE, RecvRequest, RemoteAddr, SendOp, SendRequest, Sge,
};
use feroce_wire::{Key, Qkey, Qpn};

use crate::abi::{
    IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE,
    IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_qp,
    ibv_recv_wr, ibv_send_wr, ibv_sge, send_wr_bind_mw, send_wr_ud,
};
use crate::address::Ah;
use crate::convert::{bytes_at, send_flags, sge_of};
use crate::qp::Qp;
use crate::{batch, errno, object, window};

const NO_SGE: Sge = Sge { addr: 0, length: 0, lkey: Key(0) };

/// Returns the operation of a work request.
///
/// # Safety
/// The fields that the opcode uses are filled in, and objects in them are live.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, c_int> {
    // The program fills in only the fields that the opcode uses: no other one may be read, not even
    // to copy the structure around it.
    let remote = || {
        // SAFETY: called for an RDMA opcode, which uses these fields.
        let (addr, rkey) = unsafe { (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) };
        RemoteAddr { addr, rkey: Key(rkey) }
    };
    let atomic = || {
        // SAFETY: called for an atomic opcode, which uses these fields.
        let (addr, rkey) = unsafe { (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey) };
        // SAFETY: as above.
        (RemoteAddr { addr, rkey: Key(rkey) }, unsafe { wr.wr.atomic.compare_add })
    };
    let immediate = || u32::from_be(wr.imm_data);
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendImm(immediate()),
        IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate(Key(wr.imm_data)),
        IBV_WR_RDMA_WRITE => SendOp::Write(remote()),
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(remote(), immediate()),
        IBV_WR_RDMA_READ => SendOp::Read(remote()),
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            let (remote, compare) = atomic();
            // SAFETY: this opcode uses the field.
            SendOp::CompareSwap { remote, compare, swap: unsafe { wr.wr.atomic.swap } }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let (remote, add) = atomic();
            SendOp::FetchAdd { remote, add }
        }
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite(remote()),
        IBV_WR_LOCAL_INV => SendOp::Local(LocalOp::Invalidate(Key(wr.imm_data))),
        IBV_WR_BIND_MW => {
            let send_wr_bind_mw { mw, rkey, bind_info } = wr.bind_mw;
            // SAFETY: the window and region of a bind request are null or live.
            SendOp::Local(LocalOp::Bind(unsafe { window::bind_type_2(mw, rkey, &bind_info) }?))
        }
        _ => return Err(libc::EINVAL),
    })
}

/// Returns the scatter/gather list of a work request. It need not be aligned: libiscsi has lists in
/// packed structures.
///
/// # Safety
/// `list` points to `count` entries, which stay while the result is used.
unsafe fn list(
    list: *const ibv_sge,
    count: c_int,
) -> Result<impl ExactSizeIterator<Item = ibv_sge>, c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_SGE);
    let count = count.ok_or(libc::EINVAL)?;
    // SAFETY: `list` points to `count` entries.
    Ok((0..count).map(move |index| unsafe { list.add(index).read_unaligned() }))
}

/// Posts a request to the send queue, as part of `posts`.
///
/// # Safety
/// The address handle in `to` is null or live.
#[inline]
pub unsafe fn submit(
    posts: &mut PostBatch<'_>,
    request: &SendRequest<'_>,
    to: batch::Destination,
) -> Result<(), PostError> {
    match to {
        batch::Destination::Peer => posts.post_send(request),
        batch::Destination::Srq(number) => posts.post_send_xrc(request, number),
        batch::Destination::Datagram(to) => {
            // SAFETY: the address handle is null or live.
            posts.post_send_to(request, &unsafe { destination(&to) }?)
        }
    }
}

/// Returns the error that posting the request would return.
///
/// # Safety
/// The address handle in `to` is null or live.
pub unsafe fn check(
    qp: &QueuePair,
    request: &SendRequest<'_>,
    to: batch::Destination,
) -> Result<(), PostError> {
    match to {
        batch::Destination::Peer => qp.check_send(request, None),
        batch::Destination::Srq(number) => qp.check_send(request, Some(number)),
        batch::Destination::Datagram(to) => {
            // SAFETY: the address handle is null or live.
            qp.check_send_to(request, &unsafe { destination(&to) }?)
        }
    }
}

/// # Safety
/// The address handle is null or live.
#[inline]
unsafe fn destination<'a>(to: &send_wr_ud) -> Result<Destination<'a>, PostError> {
    if to.ah.is_null() {
        return Err(PostError::Destination);
    }
    // SAFETY: the address handle is not null, so it is live.
    let ah = unsafe { &object::borrow::<Ah>(to.ah).handle };
    Ok(Destination { ah, remote_qpn: Qpn::masked(to.remote_qpn), qkey: Qkey(to.remote_qkey) })
}

/// Posts one request to a QP of `service`, as part of `posts`.
///
/// # Safety
/// The program filled the request in as `ibv_post_send` requires; inline data is readable.
#[inline]
unsafe fn send(posts: &mut PostBatch<'_>, service: Service, wr: &ibv_send_wr) -> Result<(), c_int> {
    // SAFETY: the program filled in the fields of the opcode, and `sg_list` has `num_sge` entries.
    let (op, list) = unsafe { (operation(wr)?, list(wr.sg_list, wr.num_sge)?) };
    let (wr_id, flags) = (wr.wr_id, send_flags(wr.send_flags));
    let to = match service {
        // SAFETY: the union field is plain numbers and a pointer.
        Service::Ud => batch::Destination::Datagram(unsafe { wr.wr.ud }),
        // `qp_type` is an eight-byte union with a 32-bit SRQ number
        #[allow(clippy::cast_possible_truncation)]
        Service::XrcIni => batch::Destination::Srq(wr.qp_type as u32),
        _ => batch::Destination::Peer,
    };
    let mut parts: [&[u8]; MAX_SGE] = [&[]; MAX_SGE];
    let mut sges = [NO_SGE; MAX_SGE];
    let count = list.len();
    let data = if wr.send_flags & IBV_SEND_INLINE != 0 {
        for (part, sge) in parts.iter_mut().zip(list) {
            let from = std::ptr::with_exposed_provenance(address(&sge));
            // SAFETY: the program keeps inline data readable until the call returns.
            *part = unsafe { bytes_at(from, sge.length as usize) };
        }
        Data::Inline(&parts[..count])
    } else {
        for (to, from) in sges.iter_mut().zip(list) {
            *to = sge_of(&from);
        }
        Data::Sges(&sges[..count])
    };
    // SAFETY: the program passes a live address handle with a datagram.
    let posted = unsafe { submit(posts, &SendRequest { wr_id, op, data, flags }, to) };
    posted.map_err(errno::of_post)?;
    if let SendOp::Local(LocalOp::Bind(bind)) = op {
        // As irdma does. With mlx5 and rxe, the program writes the key that it chose.
        // SAFETY: the window of a bind request is live, and the program does not use it meanwhile.
        unsafe { (*wr.bind_mw.mw).rkey = bind.rkey.value() };
    }
    Ok(())
}

/// Returns the address of an entry, which programs write as 64 bits.
fn address(sge: &ibv_sge) -> usize {
    usize::try_from(sge.addr).unwrap_or(usize::MAX)
}

/// `ibv_post_send`
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program passes a live QP.
    let live = unsafe { object::borrow::<Qp>(qp) };
    let mut next = first;
    let done = live.shared.check().and_then(|()| {
        live.with(|held| {
            let service = held.qp.service();
            let mut posts = held.qp.batch();
            // SAFETY: the program passes a list of requests that ends with null.
            while let Some(wr) = unsafe { next.as_ref() } {
                // SAFETY: the program filled the request in as `ibv_post_send` requires.
                unsafe { send(&mut posts, service, wr)? };
                next = wr.next;
            }
            Ok(())
        })
    });
    if done.is_err() {
        // SAFETY: the program passes a writable pointer for the first request that was not posted.
        unsafe { *bad = next };
    }
    object::code(done)
}

/// Posts a list of receives with `post`, unless `allowed` is an error.
///
/// # Safety
/// `first` begins a list of requests that ends with null; `bad` is writable.
pub unsafe fn post_receives(
    allowed: Result<(), c_int>,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(&RecvRequest<'_>) -> Result<(), c_int>,
) -> c_int {
    let mut next = first;
    let done = allowed.and_then(|()| {
        // SAFETY: the list ends with null.
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: `sg_list` of each request has `num_sge` entries.
            let list = unsafe { list(wr.sg_list, wr.num_sge)? };
            let (mut sges, count) = ([NO_SGE; MAX_SGE], list.len());
            for (to, from) in sges.iter_mut().zip(list) {
                *to = sge_of(&from);
            }
            post(&RecvRequest { wr_id: wr.wr_id, sges: &sges[..count] })?;
            next = wr.next;
        }
        Ok(())
    });
    if done.is_err() {
        // SAFETY: `bad` is writable.
        unsafe { *bad = next };
    }
    object::code(done)
}

/// `ibv_post_recv`
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a live QP, a list of requests that ends with null, and a writable
    // pointer for the first request that was not posted.
    unsafe {
        let live = object::borrow::<Qp>(qp);
        live.with(|held| {
            let mut posts = held.qp.batch();
            post_receives(live.shared.check(), first, bad, |request| {
                posts.post_recv(request).map_err(errno::of_post)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    /// Fields that the opcode does not use need no value. (Miri reports a read of one.)
    #[test]
    fn only_the_fields_of_the_opcode_are_read() {
        let mut place = MaybeUninit::<ibv_send_wr>::uninit();
        let wr = place.as_mut_ptr(); // Copied into the closure.
        let decode = move |opcode| {
            // SAFETY: the test writes the fields that the opcode uses, before this call.
            let op = unsafe {
                (&raw mut (*wr).opcode).write(opcode);
                operation(&*wr)
            };
            op.ok()
        };
        assert_eq!(decode(IBV_WR_SEND), Some(SendOp::Send));
        // SAFETY: the fields are inside `place`.
        unsafe {
            (&raw mut (*wr).wr.rdma.remote_addr).write(0x1000);
            (&raw mut (*wr).wr.rdma.rkey).write(7);
        }
        let remote = RemoteAddr { addr: 0x1000, rkey: Key(7) };
        assert_eq!(decode(IBV_WR_RDMA_WRITE), Some(SendOp::Write(remote)));
        assert_eq!(decode(IBV_WR_RDMA_READ), Some(SendOp::Read(remote)));
        // SAFETY: the fields are inside `place`.
        unsafe {
            (&raw mut (*wr).wr.atomic.compare_add).write(3);
            (&raw mut (*wr).wr.atomic.rkey).write(8);
        }
        let remote = RemoteAddr { rkey: Key(8), ..remote };
        let expected = SendOp::FetchAdd { remote, add: 3 };
        assert_eq!(decode(IBV_WR_ATOMIC_FETCH_AND_ADD), Some(expected));
    }

    #[test]
    fn a_list_need_not_be_aligned() {
        let mut memory = [0_u64; 8];
        let entry = |lkey| ibv_sge { addr: 0x1000, length: 16, lkey };
        // SAFETY: two entries of 16 bytes fit behind byte 4 of 64 bytes.
        let listed: Vec<u32> = unsafe {
            let place = memory.as_mut_ptr().byte_add(4).cast::<ibv_sge>();
            place.write_unaligned(entry(7));
            place.add(1).write_unaligned(entry(8));
            list(place, 2).expect("a short list").map(|sge| sge.lkey).collect()
        };
        assert_eq!(listed, [7, 8]);
        // SAFETY: nothing is read.
        let refused = unsafe { list(std::ptr::null(), -1).err() };
        assert_eq!(refused, Some(libc::EINVAL));
    }
}
