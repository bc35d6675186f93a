//! Open engines: one per interface and process, shared by all contexts opened on it.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use feroce_engine::device::settings::Settings;
use feroce_engine::device::{Device, DeviceAttributes};
use feroce_engine::verbs::{AsyncEvent, EventSink};
use feroce_wire::Qpn;

use crate::abi;
use crate::channel::{Channel, Unacknowledged};
use crate::device::DeviceEntry;
use crate::process::PerProcess;
use crate::{errno, log, pcap, xrc};

/// The engine of an interface, and who hears of its events.
#[derive(Debug)]
pub struct Engine {
    /// The device.
    pub device: Device,
    /// What it can do, as far as that does not change.
    pub limits: DeviceAttributes,
    /// What the host's administrator chose where the program has no wish.
    pub settings: Settings,
    /// XRC domains that were opened by a file.
    pub xrc_files: xrc::Files,
    interface: String,
    /// The device holds them, too, but they do not hold the device: it must not end in one of its own threads.
    listeners: Arc<Mutex<Listeners>>,
}

#[derive(Debug, Default)]
struct Listeners {
    contexts: Vec<Weak<Channel<Event>>>,
    /// Of a QP with several handles, each.
    qps: BTreeMap<u32, Vec<Listener>>,
    cqs: BTreeMap<u32, Listener>,
    srqs: BTreeMap<u32, Listener>,
}

/// An object that events are about.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Its address, as the program knows it.
    pub object: usize,
    /// Events of it that the program has not acknowledged.
    pub unacknowledged: Arc<Unacknowledged>,
    /// Where its program reads events.
    pub channel: Arc<Channel<Event>>,
}

/// An event on its way to the program.
#[derive(Debug, Clone)]
pub struct Event {
    /// `ibv_event_type`
    pub kind: c_uint,
    /// The object's address, or the number of the port.
    pub element: usize,
    /// The object's account; a port has none.
    pub unacknowledged: Option<Arc<Unacknowledged>>,
}

/// Engines of this process that are open.
static ENGINES: PerProcess<Mutex<Vec<Weak<Engine>>>> = PerProcess::new(Mutex::default);

/// Turns in which nothing comes until a core is idle to its capture.
const IDLE_TURNS: u32 = 2_048;

/// The number of the only port.
const PORT: usize = 1;

impl Engine {
    /// The engine of `entry`'s interface, opened if it is not.
    ///
    /// # Errors
    /// The error number, after a word on standard error.
    pub fn open(entry: &DeviceEntry) -> Result<Arc<Self>, c_int> {
        let mut engines = ENGINES.get().lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|engine| engine.strong_count() > 0);
        let is_same = |engine: &Arc<Self>| engine.interface == entry.interface;
        if let Some(engine) = engines.iter().filter_map(Weak::upgrade).find(is_same) {
            return Ok(engine);
        }
        let refused = |what: &dyn std::error::Error, code| {
            log::say(&format!("cannot open {}: {what}", entry.interface));
            code
        };
        let settings = Settings::load().map_err(|error| refused(&error, libc::EINVAL))?;
        let device = pcap::open(entry, settings.device_config());
        let device = device.map_err(|error| refused(&error, errno::of_open(&error)))?;
        let listeners = Arc::<Mutex<Listeners>>::default();
        let heard = Arc::clone(&listeners);
        let deliver = move |event| lock(&heard).deliver(event);
        device.set_event_sink(EventSink(Box::new(deliver)));
        let interface = entry.interface.clone();
        let (limits, xrc_files) = (device.attributes(), xrc::Files::default());
        let engine = Self { device, limits, settings, xrc_files, interface, listeners };
        let engine = Arc::new(engine);
        engines.push(Arc::downgrade(&engine));
        drop(engines);
        at_exit();
        Ok(engine)
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        lock(&self.listeners)
    }

    /// Events of the port go to `channel`, too.
    pub fn add_context(&self, channel: &Arc<Channel<Event>>) {
        let mut listeners = self.listeners();
        listeners.contexts.retain(|context| context.strong_count() > 0);
        listeners.contexts.push(Arc::downgrade(channel));
    }

    /// Events of the QP `qpn` go to `listener`.
    pub fn add_qp(&self, qpn: u32, listener: Listener) {
        self.listeners().qps.entry(qpn).or_default().push(listener);
    }

    /// Events of the CQ `id` go to `listener`.
    pub fn add_cq(&self, id: u32, listener: Listener) {
        self.listeners().cqs.insert(id, listener);
    }

    /// Events of the shared receive queue `id` go to `listener`.
    pub fn add_srq(&self, id: u32, listener: Listener) {
        self.listeners().srqs.insert(id, listener);
    }

    /// No more events of the shared receive queue; returns when those that were read are acknowledged.
    pub fn remove_srq(&self, id: u32) {
        let listener = self.listeners().srqs.remove(&id);
        if let Some(listener) = listener {
            listener.retire();
        }
    }

    /// No more events of the QP for who has the account; returns when those that were read are acknowledged.
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

    /// The same of the CQ.
    pub fn remove_cq(&self, id: u32) {
        let listener = self.listeners().cqs.remove(&id);
        if let Some(listener) = listener {
            listener.retire();
        }
    }
}

/// A program may end without destroying anything: what its peers wait for still goes out then.
fn at_exit() {
    extern "C" fn last_turn() {
        let Ok(engines) = ENGINES.get().try_lock() else { return };
        for engine in engines.iter().filter_map(Weak::upgrade) {
            // A capture is brought up to date when a core idles.
            let turns = if pcap::is_wanted() { IDLE_TURNS } else { 1 };
            (0..turns).for_each(|_| engine.device.drive());
            std::mem::forget(engine); // Closing waits for threads: not while the process ends.
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the library is never unloaded, so the function stays.
        unsafe { libc::atexit(last_turn) };
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
    /// Takes back what the program has not read, and waits until it has acknowledged the rest.
    fn retire(&self) {
        self.channel.remove(|event| {
            let account = event.unacknowledged.as_ref();
            account.is_some_and(|account| Arc::ptr_eq(account, &self.unacknowledged))
        });
        self.unacknowledged.wait();
    }
}
