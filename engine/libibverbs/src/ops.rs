//! Opening and closing a device. A new context gets the functions that `verbs.h` calls through it.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use crate::abi::{EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::channel::Channel;
use crate::context::{Context, Shared};
use crate::device::{self, DeviceEntry};
use crate::engine::Engine;
use crate::{
    cq, cq_ex, create_qp, device_memory, domain, errno, fork, memory, object, post, query, srq,
    window, xrc,
};

/// Opens `entry` and creates a context with all its functions.
fn open(entry: &'static DeviceEntry) -> Result<Arc<Context>, c_int> {
    let engine = Engine::open(entry)?;
    let events = Arc::new(Channel::new()?);
    engine.add_context(&events);
    let shared = Shared { engine, events, entry, generation: fork::generation() };
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut abi: verbs_context = unsafe { std::mem::zeroed() };
    set_verbs_functions(&mut abi);
    set_context_functions(&mut abi.context.ops);
    abi.sz = size_of::<verbs_context>();
    abi.context.device = entry.abi();
    abi.context.cmd_fd = command_fd()?;
    abi.context.async_fd = shared.events.fd();
    abi.context.num_comp_vectors = cq::VECTORS.cast_signed();
    abi.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    abi.context.abi_compat = std::ptr::without_provenance_mut(EXTENDED);
    Ok(Context::new(abi, shared))
}

/// Sets the functions of the extended context.
fn set_verbs_functions(abi: &mut verbs_context) {
    abi.query_port = Some(query::query_port);
    abi.query_device_ex = Some(query::query_device_ex);
    abi.create_cq_ex = Some(cq_ex::create_cq_ex);
    abi.create_qp_ex = Some(create_qp::create_qp_ex);
    abi.open_qp = Some(create_qp::open_qp);
    abi.create_srq_ex = Some(srq::create_srq_ex);
    abi.get_srq_num = Some(srq::get_srq_num);
    abi.open_xrcd = Some(xrc::open_xrcd);
    abi.close_xrcd = Some(xrc::close_xrcd);
    abi.advise_mr = Some(memory::advise_mr);
    abi.alloc_null_mr = Some(memory::alloc_null_mr);
    abi.alloc_dm = Some(device_memory::alloc_dm);
    abi.free_dm = Some(device_memory::free_dm);
    abi.reg_dm_mr = Some(device_memory::reg_dm_mr);
    abi.alloc_td = Some(domain::alloc_td);
    abi.dealloc_td = Some(domain::dealloc_td);
    abi.alloc_parent_domain = Some(domain::alloc_parent_domain);
    abi.query_rt_values = Some(query::query_rt_values);
    abi.modify_cq = Some(cq::modify_cq);
}

/// Sets the functions of the original context.
fn set_context_functions(ops: &mut ibv_context_ops) {
    ops.alloc_mw = Some(window::alloc_mw);
    ops.dealloc_mw = Some(window::dealloc_mw);
    ops.bind_mw = Some(window::bind_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(srq::post_srq_recv);
}

/// Opens the descriptor for `cmd_fd`, which some programs duplicate. No command can be sent through
/// it; `ibv_import_device`, which would use it, fails.
fn command_fd() -> Result<c_int, c_int> {
    let file = std::fs::File::open("/dev/null");
    file.map(IntoRawFd::into_raw_fd).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

const _: () = assert!(size_of::<ibv_context_ops>() == 32 * size_of::<usize>());

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    object::give_or_fail(device::entry(device).ok_or(libc::EINVAL).and_then(open))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let destroyed = match object::destroy::<Context>(context, |_| Ok(())) {
        Ok(destroyed) => destroyed,
        Err(code) => return object::code(Err(code)),
    };
    let context = destroyed.finish();
    // SAFETY: the descriptor was opened with the context, and only the context owns it.
    unsafe { libc::close((*context.abi.get()).context.cmd_fd) };
    if context.shared.check().is_err() {
        // The engine belongs to the parent process. Its threads do not exist here, so dropping it
        // would wait for them forever.
        std::mem::forget(context);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    // Contexts belong to one process: there is no kernel object that two processes could share.
    errno::fail(libc::EOPNOTSUPP)
}
