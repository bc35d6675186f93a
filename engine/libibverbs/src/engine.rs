//! Open engines: one per interface and process, shared by all contexts opened on the interface.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::net::IpAddr;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::SystemTime;

use feroce_engine::device::settings::Settings;
use feroce_engine::device::{Device, DeviceAttributes};
use feroce_engine::net::{Gid, GidTable};
use feroce_engine::time::Instant;
use feroce_engine::verbs::{AsyncEvent, EventSink};
use feroce_wire::Qpn;

use crate::abi;
use crate::channel::{Channel, Unacknowledged};
use crate::device::DeviceEntry;
use crate::process::PerProcess;
use crate::xrc_domain::XrcFiles;
use crate::{errno, log, pcap};

/// The engine of an interface and the receivers of its asynchronous events.
#[derive(Debug)]
pub struct Engine {
    /// The device.
    pub device: Device,
    /// Attributes that do not change while the device is open.
    pub limits: DeviceAttributes,
    /// The administrator's settings, used where the program leaves a value at its default.
    pub settings: Settings,
    /// XRC domains opened by file, for sharing between contexts.
    pub xrc_files: XrcFiles,
    /// Number of protection domains. The engine's own are only numbers, without a limit.
    pub pds: AtomicU32,
    /// Wall-clock time at the zero of the device's clock, in nanoseconds since 1970. It is fixed,
    /// so that wall-clock times of completions have the order and the distances of their
    /// timestamps.
    wall_clock_origin: u64,
    /// Also held by the device's event sink. The sink must not hold the device itself: otherwise
    /// one of the device's threads could drop the last reference and wait for itself.
    listeners: Arc<Mutex<Listeners>>,
    /// Disconnects [`Opened::closed`]. The last field, so that it is dropped after the device.
    _closing: Sender<()>,
}

/// An engine that this process has opened.
#[derive(Debug)]
struct Opened {
    interface: String,
    engine: Weak<Engine>,
    /// Disconnected when the engine is closed: some time after its last reference is dropped.
    closed: Receiver<()>,
}

#[derive(Debug, Default)]
struct Listeners {
    contexts: Vec<Weak<Channel<Event>>>,
    /// Listeners by QP number. An XRC target QP has one listener per handle.
    qps: BTreeMap<u32, Vec<Listener>>,
    cqs: BTreeMap<u32, Listener>,
    srqs: BTreeMap<u32, Listener>,
}

/// An object that asynchronous events refer to.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Address of the program's object.
    pub object: usize,
    /// Events of the object that the program has read and not acknowledged.
    pub unacknowledged: Arc<Unacknowledged>,
    /// Event queue of the context that the object belongs to.
    pub channel: Arc<Channel<Event>>,
}

/// An asynchronous event for the program.
#[derive(Debug, Clone)]
pub struct Event {
    /// The `ibv_event_type`.
    pub kind: c_uint,
    /// Address of the object, or the port number.
    pub element: usize,
    /// The object's counter of unacknowledged events; `None` for port events.
    pub unacknowledged: Option<Arc<Unacknowledged>>,
}

/// Engines of this process, at most one for an interface.
static ENGINES: PerProcess<Mutex<Vec<Opened>>> = PerProcess::new(Mutex::default);

/// Error numbers of the interfaces that this process could not open.
static REFUSALS: PerProcess<Mutex<BTreeMap<String, c_int>>> = PerProcess::new(Mutex::default);

fn lock_refusals() -> MutexGuard<'static, BTreeMap<String, c_int>> {
    REFUSALS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns why the interface with the address `ip` could not be opened, such as EBUSY; `None` if no
/// interface with this address was refused.
pub fn refusal_of(ip: IpAddr) -> Option<c_int> {
    let has_address = |interface: &&String| {
        let gids = GidTable::read(interface.as_str());
        gids.is_ok_and(|gids| gids.iter().any(|(_, entry)| entry.gid == Gid::from(ip)))
    };
    let refusals = lock_refusals();
    refusals.iter().find(|(interface, _)| has_address(interface)).map(|(_, code)| *code)
}

/// Turns without work after which a core flushes its capture file.
const IDLE_TURNS: u32 = 2_048;

/// The number of the only port.
const PORT: usize = 1;

impl Engine {
    /// Returns the engine of `entry`'s interface and opens it if it is not open. If another thread
    /// is closing the engine, waits until that has released the interface.
    ///
    /// # Errors
    /// The error number, after a message on standard error.
    pub fn open(entry: &DeviceEntry) -> Result<Arc<Self>, c_int> {
        let mut engines = ENGINES.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = engines.iter().position(|opened| opened.interface == entry.interface) {
            if let Some(engine) = engines[at].engine.upgrade() {
                return Ok(engine);
            }
            // Nothing is sent: the call returns when the sender is dropped.
            let _ = engines.swap_remove(at).closed.recv();
        }
        let refused = |what: &dyn std::error::Error, code| {
            let what = feroce_engine::log::chain(what);
            log::print(&format!("cannot open {}: {what}", entry.interface));
            lock_refusals().insert(entry.interface.clone(), code);
            code
        };
        let settings = Settings::load().map_err(|error| refused(&error, libc::EINVAL))?;
        let device = pcap::open(entry, settings.device_config());
        let device = device.map_err(|error| refused(&error, errno::of_open(&error)))?;
        let listeners = Arc::<Mutex<Listeners>>::default();
        let sink_listeners = Arc::clone(&listeners);
        let deliver = move |event| lock(&sink_listeners).deliver(event);
        device.set_event_sink(EventSink(Box::new(deliver)));
        let interface = entry.interface.clone();
        let (limits, xrc_files) = (device.attributes(), XrcFiles::default());
        let (closing, closed) = channel();
        let engine = Self {
            wall_clock_origin: wall_clock().saturating_sub(device.clock().as_nanos()),
            pds: AtomicU32::new(0),
            device,
            limits,
            settings,
            xrc_files,
            listeners,
            _closing: closing,
        };
        let engine = Arc::new(engine);
        engines.push(Opened { interface, engine: Arc::downgrade(&engine), closed });
        lock_refusals().remove(&entry.interface);
        drop(engines);
        at_exit();
        Ok(engine)
    }

    /// Returns the wall-clock time of `at`, in nanoseconds since 1970.
    pub fn wall_clock_at(&self, at: Instant) -> u64 {
        self.wall_clock_origin.saturating_add(at.as_nanos())
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        lock(&self.listeners)
    }

    /// Delivers port events to `channel` as well.
    pub fn add_context(&self, channel: &Arc<Channel<Event>>) {
        let mut listeners = self.listeners();
        listeners.contexts.retain(|context| context.strong_count() > 0);
        listeners.contexts.push(Arc::downgrade(channel));
    }

    /// Delivers events of the QP `qpn` to `listener`.
    pub fn add_qp(&self, qpn: u32, listener: Listener) {
        self.listeners().qps.entry(qpn).or_default().push(listener);
    }

    /// Delivers events of the CQ `id` to `listener`.
    pub fn add_cq(&self, id: u32, listener: Listener) {
        self.listeners().cqs.insert(id, listener);
    }

    /// Delivers events of the SRQ `id` to `listener`.
    pub fn add_srq(&self, id: u32, listener: Listener) {
        self.listeners().srqs.insert(id, listener);
    }

    /// Stops events of the SRQ. Returns when the program has acknowledged the events that it has
    /// read.
    pub fn remove_srq(&self, id: u32) {
        let listener = self.listeners().srqs.remove(&id);
        if let Some(listener) = listener {
            listener.retire();
        }
    }

    /// Stops events of the QP handle that owns `account`. Returns when the program has acknowledged
    /// the events that it has read.
    pub fn remove_qp(&self, qpn: u32, account: &Arc<Unacknowledged>) {
        let is_its = |listener: &Listener| Arc::ptr_eq(&listener.unacknowledged, account);
        let listener = {
            let mut listeners = self.listeners();
            let Some(handles) = listeners.qps.get_mut(&qpn) else { return };
            let at = handles.iter().position(is_its);
            let listener = at.map(|at| handles.remove(at));
            if handles.is_empty() {
                listeners.qps.remove(&qpn);
            }
            listener
        };
        if let Some(listener) = listener {
            listener.retire();
        }
    }

    /// Stops events of the CQ. Returns when the program has acknowledged the events that it has
    /// read.
    pub fn remove_cq(&self, id: u32) {
        let listener = self.listeners().cqs.remove(&id);
        if let Some(listener) = listener {
            listener.retire();
        }
    }
}

/// Returns the wall-clock time in nanoseconds since 1970.
#[allow(clippy::disallowed_methods)] // read once, when an engine opens
fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Runs a last engine turn at exit: a program may end without destroying anything, and peers still
/// get the packets they wait for.
fn at_exit() {
    extern "C" fn flush_at_exit() {
        let Ok(engines) = ENGINES.get().try_lock() else { return };
        for engine in engines.iter().filter_map(|opened| opened.engine.upgrade()) {
            // A core flushes its capture file only after some idle turns.
            let turns = if pcap::is_wanted() { IDLE_TURNS } else { 1 };
            (0..turns).for_each(|_| engine.device.drive());
            // Dropping the engine would wait for its threads, which must not happen during exit.
            std::mem::forget(engine);
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the library is linked with `NODELETE`, so the function stays mapped until exit.
        unsafe { libc::atexit(flush_at_exit) };
    });
}

fn lock(listeners: &Mutex<Listeners>) -> MutexGuard<'_, Listeners> {
    listeners.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
    fn deliver(&self, event: AsyncEvent) {
        fn one(listener: Option<&Listener>) -> &[Listener] {
            listener.map_or(&[], std::slice::from_ref)
        }
        let all = |qpn: Qpn| self.qps.get(&qpn.value()).map_or(&[][..], Vec::as_slice);
        let of_qp = |kind, qpn| (kind, all(qpn));
        let (kind, listeners) = match event {
            AsyncEvent::CqError(id) => (abi::IBV_EVENT_CQ_ERR, one(self.cqs.get(&id.0))),
            AsyncEvent::SrqLimitReached(id) => {
                (abi::IBV_EVENT_SRQ_LIMIT_REACHED, one(self.srqs.get(&id.0)))
            }
            AsyncEvent::QpFatal(qpn) => of_qp(abi::IBV_EVENT_QP_FATAL, qpn),
            AsyncEvent::QpRequestError(qpn) => of_qp(abi::IBV_EVENT_QP_REQ_ERR, qpn),
            AsyncEvent::QpAccessError(qpn) => of_qp(abi::IBV_EVENT_QP_ACCESS_ERR, qpn),
            AsyncEvent::CommunicationEstablished(qpn) => of_qp(abi::IBV_EVENT_COMM_EST, qpn),
            AsyncEvent::LastWqeReached(qpn) => of_qp(abi::IBV_EVENT_QP_LAST_WQE_REACHED, qpn),
            AsyncEvent::SqDrained(qpn) => of_qp(abi::IBV_EVENT_SQ_DRAINED, qpn),
            AsyncEvent::PortActive => return self.to_contexts(abi::IBV_EVENT_PORT_ACTIVE),
            AsyncEvent::PortError => return self.to_contexts(abi::IBV_EVENT_PORT_ERR),
            AsyncEvent::GidChange => return self.to_contexts(abi::IBV_EVENT_GID_CHANGE),
            AsyncEvent::DeviceFatal => return self.to_contexts(abi::IBV_EVENT_DEVICE_FATAL),
        };
        for listener in listeners {
            listener.channel.push(Event {
                kind,
                element: listener.object,
                unacknowledged: Some(Arc::clone(&listener.unacknowledged)),
            });
        }
    }

    fn to_contexts(&self, kind: c_uint) {
        for channel in self.contexts.iter().filter_map(Weak::upgrade) {
            channel.push(Event { kind, element: PORT, unacknowledged: None });
        }
    }
}

impl Listener {
    /// Removes events that the program has not read, then waits until it has acknowledged all
    /// events that it has read.
    fn retire(&self) {
        self.channel.remove(|event| {
            let account = event.unacknowledged.as_ref();
            account.is_some_and(|account| Arc::ptr_eq(account, &self.unacknowledged))
        });
        self.unacknowledged.wait();
    }
}
