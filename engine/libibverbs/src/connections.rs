//! The RDMA CM endpoint of this process, which `librdmacm.so.1` calls. The interface between the
//! two libraries is `connections` of `feroce_verbs_abi`.

mod convert;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, mpsc};

use feroce_engine::cm::{
    CmConfig, CmError, CmId, DeviceKey, Ece, Endpoint, Event, Path, QpKind, is_any,
};
use feroce_engine::device::{AttachError, ConnectionManager};
use feroce_engine::net::Gid;
use feroce_engine::time::{Duration, Instant};
use feroce_wire::cm::{PortSpace, RejectReason};

use crate::abi::connections::{
    self as contract, CmAddress, CmEce, CmEvent, CmNumber, CmParameters, CmQp, CmSink, CmView,
    option, stage,
};
use crate::abi::{self, ibv_context};
use crate::engine::{Engine, refusal_of};
use crate::process::PerProcess;
use crate::{context, errno, fork, log};
use convert::{kind_of, parameters, parameters_of, qp_view, status_of, view_of_path, with_scope};

/// The connection manager and the engines of the devices attached to it.
struct Connections {
    manager: ConnectionManager,
    /// Engines by device index. They stay open until the process ends.
    engines: Mutex<BTreeMap<u32, Arc<Engine>>>,
}

static CONNECTIONS: PerProcess<OnceLock<Connections>> = PerProcess::new(OnceLock::new);

/// Longest time that process exit waits for final CM messages (such as DREQ) to be sent.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// Longest time that process exit waits for a lock. A signal handler that calls `exit` may have
/// interrupted a thread that holds one, such as a core's while it polls; it is never released.
const EXIT_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time that a call waits for its last message to be sent. MADs to an unresolved neighbour
/// take longer.
const SEND_TIMEOUT: Duration = Duration::from_millis(20);

/// Default first port that needs no privilege; `ip_unprivileged_port_start` overrides it.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

impl Connections {
    /// Returns the connection manager of this process and creates it on the first call.
    fn get_or_start(sink: CmSink) -> Result<&'static Self, c_int> {
        let place = CONNECTIONS.get();
        match place.get() {
            Some(connections) => Ok(connections),
            None => {
                let made = Self::start(sink)?;
                // If two threads race, one manager is dropped; it has no threads yet.
                Ok(place.get_or_init(|| made))
            }
        }
    }

    /// Returns the connection manager of this process. A process without one can only hold
    /// identifiers inherited from its parent, so the call fails as in a forked child.
    fn get() -> Result<&'static Self, c_int> {
        CONNECTIONS.get().get().ok_or_else(fork::refuse)
    }

    fn start(sink: CmSink) -> Result<Self, c_int> {
        extern "C" fn close_at_exit() {
            // A forked child that never used the CM has nothing to close.
            if let Some(connections) = CONNECTIONS.get().get() {
                connections.close_without_deadlock();
            }
        }
        static AT_EXIT: Once = Once::new();
        let deliver = move |event| deliver(sink, &event);
        let manager = ConnectionManager::new(CmConfig::default(), Box::new(deliver));
        let manager = manager.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        AT_EXIT.call_once(|| {
            // SAFETY: the library is linked with `NODELETE`, so the function stays mapped until
            // exit.
            unsafe { libc::atexit(close_at_exit) };
        });
        Ok(Self { manager, engines: Mutex::default() })
    }

    /// Closes all connections, in another thread: this one may already hold a lock that closing
    /// takes. Without a device there are none, and no thread is started: a forked child that could
    /// open no device ends as if it had never used the CM.
    fn close_without_deadlock(&'static self) {
        if self.engines.try_lock().is_ok_and(|engines| engines.is_empty()) {
            return;
        }
        let (closed, result) = mpsc::channel();
        let close = move || {
            self.manager.close(EXIT_TIMEOUT);
            let _ = closed.send(()); // No one waits any more if it took too long.
        };
        match feroce_threads::spawn("feroce-exit", close) {
            Ok(_) => _ = result.recv_timeout(EXIT_TIMEOUT + EXIT_LOCK_TIMEOUT),
            Err(_) => self.manager.close(EXIT_TIMEOUT), // No thread can be started.
        }
    }

    fn engines(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Engine>>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attach(&self, index: u32, engine: &Arc<Engine>) -> Result<(), c_int> {
        let mut engines = self.engines();
        if engines.contains_key(&index) {
            return Ok(());
        }
        let attached = self.manager.attach(DeviceKey(index), &engine.device);
        attached.map_err(|error| {
            log::print(&format!("no connections through feroce{index}: {error}"));
            match error {
                AttachError::Device(error) => errno::of_device(&error),
                AttachError::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
            }
        })?;
        engines.insert(index, Arc::clone(engine));
        Ok(())
    }

    /// Returns the device index and GID index of a local address.
    fn device_of(&self, ip: IpAddr) -> Option<(u32, u32)> {
        let gid = Gid::from(ip);
        self.engines().iter().find_map(|(device, engine)| {
            let gids = engine.device.gids();
            gids.into_iter().find(|(_, entry)| entry.gid == gid).map(|(at, _)| (*device, at))
        })
    }

    /// Returns the GID index of the path's local address on the path's device. Other devices may
    /// have the same link-local address.
    fn gid_index_of(&self, path: &Path) -> Option<u32> {
        let gid = Gid::from(path.local);
        let engines = self.engines();
        let mut gids = engines.get(&path.device.0)?.device.gids().into_iter();
        gids.find(|(_, entry)| entry.gid == gid).map(|(at, _)| at)
    }

    /// Returns a local address of the same family. It replaces the unspecified address as
    /// destination.
    fn any_address(&self, like: IpAddr) -> Option<IpAddr> {
        let engines = self.engines();
        let gids = engines.values().flat_map(|engine| engine.device.gids());
        let mut ips = gids.map(|(_, entry)| entry.gid.ip());
        ips.find(|ip| ip.is_ipv4() == like.is_ipv4())
    }

    /// Returns the interface index (scope id) for the path's link-local source address, or 0.
    fn scope_of(&self, path: &Path) -> u32 {
        let engines = self.engines();
        let gids = engines.get(&path.device.0).map(|engine| engine.device.gids());
        let own = Gid::from(path.local);
        let entry = gids.into_iter().flatten().find(|(_, entry)| entry.gid == own);
        entry.map_or(0, |(_, entry)| entry.interface)
    }

    /// Runs a command on an identifier.
    fn with<R>(
        &self,
        id: CmNumber,
        act: impl FnOnce(&mut Endpoint, CmId, Instant) -> Result<R, CmError>,
    ) -> Result<R, c_int> {
        let id = id_of(id)?;
        self.manager.with(|endpoint, now| act(endpoint, id, now)).map_err(errno_of)
    }
}

/// Returns the 64-bit number of an identifier: the process generation in the upper half, so that a
/// forked child does not mistake it for an identifier of its own.
fn number_of(id: CmId) -> CmNumber {
    u64::from(fork::generation()) << 32 | u64::from(id.number())
}

/// Returns the identifier with this number.
///
/// # Errors
/// EIO if the identifier belongs to another process.
#[allow(clippy::cast_possible_truncation)] // splits the number into its halves
fn id_of(number: CmNumber) -> Result<CmId, c_int> {
    fork::check((number >> 32) as u32)?;
    Ok(CmId::from_number(number as u32))
}

/// Maps a CM error to the error number that the kernel's `rdma_ucm` returns.
fn errno_of(error: CmError) -> c_int {
    match error {
        CmError::Unknown => libc::ENOENT,
        CmError::State | CmError::PrivateData { .. } | CmError::Family => libc::EINVAL,
        CmError::IsConnected => libc::EISCONN,
        CmError::AddressInUse => libc::EADDRINUSE,
        CmError::AddressNotAvailable => libc::EADDRNOTAVAIL,
        CmError::NoDevice => libc::ENODEV,
    }
}

fn deliver(sink: CmSink, event: &Event) {
    let result = CmEvent {
        id: number_of(event.id),
        listener: event.listener.map_or(0, number_of),
        kind: kind_of(event.kind),
        status: status_of(event.status),
        parameters: parameters_of(&event.parameters),
        data: event.private_data.as_ptr(),
        data_len: event.private_data.len(),
    };
    // SAFETY: `sink` is librdmacm's function, and librdmacm is never unloaded; the event and its
    // data outlive the call.
    unsafe { sink(&raw const result) };
}

/// Returns the private data that the program passed.
///
/// # Safety
/// `data` is null or points to `length` readable bytes.
unsafe fn bytes<'a>(data: *const c_void, length: usize) -> &'a [u8] {
    match data.is_null() {
        true => &[],
        // SAFETY: `data` is not null, so it points to `length` readable bytes.
        false => unsafe { std::slice::from_raw_parts(data.cast(), length) },
    }
}

fn code(done: Result<(), c_int>) -> c_int {
    crate::object::code(done)
}

/// Runs a command on an identifier that returns no value.
fn command(
    id: CmNumber,
    act: impl FnOnce(&mut Endpoint, CmId, Instant) -> Result<(), CmError>,
) -> c_int {
    code(Connections::get().and_then(|connections| connections.with(id, act)))
}

/// Runs a command that ends an exchange, and waits until its message is sent, as the kernel does:
/// the program may call `_exit` next.
fn last_command(
    id: CmNumber,
    act: impl FnOnce(&mut Endpoint, CmId, Instant) -> Result<(), CmError>,
) -> c_int {
    let result = command(id, act);
    if let (0, Ok(connections)) = (result, Connections::get()) {
        connections.manager.flush(SEND_TIMEOUT);
    }
    result
}

/// Checks at compile time that every function has the type that librdmacm calls it by.
macro_rules! as_in_contract {
    ($( $name:ident )*) => { $( const _: contract::$name = $name; )* };
}

as_in_contract! {
    feroce_cm_attach feroce_cm_create feroce_cm_destroy
    feroce_cm_device_of feroce_cm_bind feroce_cm_listen
    feroce_cm_take_request feroce_cm_resolve_address feroce_cm_resolve_route
    feroce_cm_connect feroce_cm_accept feroce_cm_establish
    feroce_cm_reject feroce_cm_disconnect feroce_cm_notify_established
    feroce_cm_query feroce_cm_qp_parameters feroce_cm_set_option
    feroce_cm_set_local_ece
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_attach(
    context: *mut ibv_context,
    sink: CmSink,
    index: *mut u32,
) -> c_int {
    code(context::shared(context).and_then(|shared| {
        let number = shared.entry.number();
        Connections::get_or_start(sink)?.attach(number, &shared.engine)?;
        // SAFETY: librdmacm passes a writable pointer.
        unsafe { index.write(number) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_create(
    sink: CmSink,
    space: c_uint,
    qp_type: c_uint,
    id: *mut CmNumber,
) -> c_int {
    code(Connections::get_or_start(sink).and_then(|connections| {
        let number = u16::try_from(space).map_err(|_| libc::EINVAL)?;
        let space = PortSpace::from_number(number).ok_or(libc::EINVAL)?;
        let kind = match (space, qp_type) {
            (PortSpace::Ib, abi::IBV_QPT_RC) => QpKind::Rc,
            (PortSpace::Ib, abi::IBV_QPT_UC) => QpKind::Uc,
            (PortSpace::Ib, abi::IBV_QPT_UD) => QpKind::Ud,
            (PortSpace::Ib, abi::IBV_QPT_XRC_SEND) => QpKind::XrcIni,
            (PortSpace::Ib, abi::IBV_QPT_XRC_RECV) => QpKind::XrcTgt,
            (PortSpace::Ib, _) => return Err(libc::EINVAL),
            (space, _) => QpKind::of(space),
        };
        let made = connections.manager.with(|endpoint, _| endpoint.create(space, kind));
        // SAFETY: librdmacm passes a writable pointer.
        unsafe { id.write(number_of(made)) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_destroy(id: CmNumber) -> c_int {
    last_command(id, Endpoint::destroy)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_device_of(
    address: *const CmAddress,
    index: *mut u32,
    gid_index: *mut u32,
) -> c_int {
    code(Connections::get().and_then(|connections| {
        // SAFETY: librdmacm passes a valid `CmAddress`.
        let address = unsafe { *address }.socket().ok_or(libc::EINVAL)?;
        let (device, at) = connections.device_of(address.ip()).ok_or(libc::ENODEV)?;
        // SAFETY: librdmacm passes two writable pointers.
        unsafe {
            index.write(device);
            gid_index.write(at);
        }
        Ok(())
    }))
}

/// Returns true if this thread has CAP_NET_BIND_SERVICE and may therefore bind privileged ports.
fn is_privileged() -> bool {
    const CAP_NET_BIND_SERVICE: u32 = 10;
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.unwrap_or(0) & 1 << CAP_NET_BIND_SERVICE != 0
}

/// Returns the first unprivileged port of this network namespace.
fn first_unprivileged_port() -> u16 {
    let result = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    result.ok().and_then(|result| result.trim().parse().ok()).unwrap_or(FIRST_UNPRIVILEGED_PORT)
}

/// Checks that an identifier may bind to `address`: the port is permitted and the address is a
/// local address of an attached device.
fn check_address(connections: &Connections, address: SocketAddr) -> Result<(), c_int> {
    if (1..first_unprivileged_port()).contains(&address.port()) && !is_privileged() {
        return Err(libc::EACCES);
    }
    let is_local = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    match address {
        address if is_any(address.ip()) => Ok(()),
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            Err(libc::EINVAL)
        }
        address if connections.device_of(address.ip()).is_some() => Ok(()),
        address if is_local(address.ip()) => Err(refusal_of(address.ip()).unwrap_or(libc::ENODEV)),
        _ => Err(libc::EADDRNOTAVAIL),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_bind(id: CmNumber, address: *const CmAddress) -> c_int {
    code(Connections::get().and_then(|connections| {
        // SAFETY: librdmacm passes a valid `CmAddress`.
        let address = unsafe { *address }.socket().ok_or(libc::EINVAL)?;
        check_address(connections, address)?;
        connections.with(id, |endpoint, id, _| endpoint.bind(id, address))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_listen(id: CmNumber, backlog: u32) -> c_int {
    command(id, |endpoint, id, now| endpoint.listen(id, backlog, now))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_take_request(id: CmNumber) -> c_int {
    command(id, |endpoint, id, _| endpoint.take_request(id))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_resolve_address(
    id: CmNumber,
    source: *const CmAddress,
    destination: *const CmAddress,
    timeout_ms: u32,
) -> c_int {
    code(Connections::get().and_then(|connections| {
        // SAFETY: librdmacm passes two valid `CmAddress` values.
        let (source, destination) = unsafe { ((*source).socket(), (*destination).socket()) };
        let mut destination = destination.ok_or(libc::EINVAL)?;
        if destination.ip().is_unspecified() {
            let own = connections.any_address(destination.ip()).ok_or(libc::ENODEV)?;
            destination.set_ip(own);
        }
        if let Some(source) = source {
            check_address(connections, source)?;
        }
        let bound = connections.with(id, |endpoint, id, _| {
            endpoint.resolve_address(id, source, destination)?;
            endpoint.source(id)
        })?;
        let any = match destination.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        let source = bound.map_or(any, |bound| bound.ip());
        let timeout = Duration::from_millis(timeout_ms.into());
        let started = connections.manager.start_resolve(id_of(id)?, source, destination, timeout);
        started.map_err(|_| libc::EAGAIN)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_resolve_route(id: CmNumber) -> c_int {
    // RoCE has no subnet administrator to query: the address already determines the route.
    command(id, |endpoint, id, _| {
        endpoint.resolve_route(id)?;
        endpoint.route_resolved(id, Ok(()))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_connect(
    id: CmNumber,
    local: *const CmParameters,
    data: *const c_void,
    data_len: usize,
) -> c_int {
    // SAFETY: librdmacm passes valid parameters and private data of `data_len` bytes.
    let (local, data) = unsafe { (parameters(&*local), bytes(data, data_len)) };
    command(id, |endpoint, id, now| endpoint.connect(id, &local, data, now))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_accept(
    id: CmNumber,
    local: *const CmParameters,
    data: *const c_void,
    data_len: usize,
) -> c_int {
    // SAFETY: librdmacm passes valid parameters and private data of `data_len` bytes.
    let (local, data) = unsafe { (parameters(&*local), bytes(data, data_len)) };
    command(id, |endpoint, id, now| endpoint.accept(id, &local, data, now))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_establish(id: CmNumber) -> c_int {
    command(id, |endpoint, id, _| endpoint.establish(id, &[]))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_reject(
    id: CmNumber,
    reason: u16,
    data: *const c_void,
    data_len: usize,
) -> c_int {
    // SAFETY: librdmacm passes private data of `data_len` bytes.
    let data = unsafe { bytes(data, data_len) };
    last_command(id, |endpoint, id, now| endpoint.reject(id, RejectReason(reason), data, now))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_disconnect(id: CmNumber) -> c_int {
    last_command(id, Endpoint::disconnect)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_notify_established(id: CmNumber) -> c_int {
    command(id, |endpoint, id, _| endpoint.notify_established(id))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_query(id: CmNumber, view: *mut CmView) -> c_int {
    code(Connections::get().and_then(|connections| {
        let (source, destination, path, ece) = connections.with(id, |endpoint, id, _| {
            let (source, destination) = (endpoint.source(id)?, endpoint.destination(id)?);
            Ok((source, destination, endpoint.path(id)?, endpoint.remote_ece(id)?))
        })?;
        let scope = path.map_or(0, |path| connections.scope_of(&path));
        let gid_index = path.and_then(|path| connections.gid_index_of(&path));
        let result = CmView {
            source: with_scope(source, scope).into(),
            destination: with_scope(destination, scope).into(),
            path: path.map(|path| view_of_path(&path, gid_index.unwrap_or(0))).unwrap_or_default(),
            remote_ece: CmEce { vendor_id: ece.vendor_id, options: ece.options },
        };
        // SAFETY: librdmacm passes a writable pointer.
        unsafe { view.write(result) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_qp_parameters(id: CmNumber, qp: *mut CmQp) -> c_int {
    command(id, |endpoint, id, _| {
        let result = match endpoint.qp_parameters(id) {
            Ok(known) => qp_view(&known),
            Err(_) => match endpoint.wanted_resources(id)? {
                None => CmQp { stage: stage::NOT_REQUESTED, ..CmQp::default() },
                Some(responder_resources) => {
                    CmQp { stage: stage::REQUESTED, responder_resources, ..CmQp::default() }
                }
            },
        };
        // SAFETY: librdmacm passes a writable pointer.
        unsafe { qp.write(result) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_set_option(id: CmNumber, which: c_uint, value: u32) -> c_int {
    let byte = || u8::try_from(value).map_err(|_| CmError::State);
    command(id, |endpoint, id, _| match which {
        option::TRAFFIC_CLASS => endpoint.set_traffic_class(id, byte()?),
        option::REUSE_ADDRESS => endpoint.set_reuse_address(id, value != 0),
        option::V6_ONLY => endpoint.set_v6_only(id, value != 0),
        option::ACK_TIMEOUT => endpoint.set_ack_timeout(id, byte()?),
        _ => Err(CmError::State),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn feroce_cm_set_local_ece(id: CmNumber, ece: *const CmEce) -> c_int {
    // SAFETY: librdmacm passes a valid `CmEce`.
    let CmEce { vendor_id, options } = unsafe { *ece };
    command(id, |endpoint, id, _| endpoint.set_local_ece(id, Ece { vendor_id, options }))
}

#[cfg(test)]
mod tests {
    use feroce_engine::cm::{Status, Unresolved};

    use super::*;

    #[test]
    fn error_numbers_are_the_kernels() {
        assert_eq!(errno_of(CmError::State), libc::EINVAL);
        assert_eq!(errno_of(CmError::AddressInUse), libc::EADDRINUSE);
        assert_eq!(status_of(Status::TimedOut), -libc::ETIMEDOUT);
        assert_eq!(status_of(Status::Rejected(RejectReason::CONSUMER)), 28);
        assert_eq!(status_of(Status::Unresolved(Unresolved::NoRoute)), -libc::ENETUNREACH);
    }
}
