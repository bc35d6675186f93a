//! The environment abstraction layer (EAL) of DPDK, which starts once per process, and the lock for
//! operations on it.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::arguments::arguments;
use super::config::DpdkConfig;
use super::error::DpdkError;

static EAL: Mutex<State> = Mutex::new(State { started: None, open: BTreeSet::new() });

struct State {
    /// The arguments and the result of the start.
    started: Option<(Vec<String>, Result<(), String>)>,
    /// Numbers of the open ports.
    open: BTreeSet<u16>,
}

/// The running EAL, locked by at most one thread. Devices are created and removed under this
/// lock.
pub(super) struct Eal(MutexGuard<'static, State>);

impl Eal {
    /// Starts the EAL for `config`, or locks the running EAL. An EAL that runs with other arguments
    /// is an error if `config` has arguments of the user.
    pub fn start(config: &DpdkConfig) -> Result<Self, DpdkError> {
        let mut eal = Self::lock();
        let requested = arguments(config);
        let (running, result) = match &mut eal.0.started {
            Some((running, _)) if *running != requested && !config.eal.is_empty() => {
                let (running, requested) = (running.join(" "), requested.join(" "));
                return Err(DpdkError::EalRuns { running, requested });
            }
            Some((running, result)) => (running, result),
            started => {
                let result = init(&requested);
                let (running, result) = started.insert((requested, result));
                (running, result)
            }
        };
        match result {
            Ok(()) => Ok(eal),
            Err(reason) => {
                let reason = reason.clone();
                Err(DpdkError::Eal { arguments: running.join(" "), reason })
            }
        }
    }

    /// Locks the EAL, started or not.
    pub fn lock() -> Self {
        Self(EAL.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that port `id` is open. Returns false if it was already open.
    pub fn open(&mut self, id: u16) -> bool {
        self.0.open.insert(id)
    }

    /// Records that port `id` is closed.
    pub fn close(&mut self, id: u16) {
        self.0.open.remove(&id);
    }
}

/// Starts the EAL on a thread of its own, because the EAL pins the thread that starts it.
fn init(arguments: &[String]) -> Result<(), String> {
    let arguments: Vec<CString> = std::iter::once("feroce")
        .chain(arguments.iter().map(String::as_str))
        .map(|text| CString::new(text).expect("checked"))
        .collect();
    let start = move || {
        let count = c_int::try_from(arguments.len()).expect("a handful");
        // The EAL keeps the pointers until the process ends.
        let mut pointers: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
        pointers.push(std::ptr::null_mut());
        let pointers = pointers.leak();
        // SAFETY: `pointers` holds `count` strings and a null pointer, all leaked. The lock of the
        // EAL is held, and the EAL was not started before.
        let status = unsafe { dpdk_sys::rte_eal_init(count, pointers.as_mut_ptr()) };
        // SAFETY: the call reads a number of this thread.
        (status < 0).then(|| message(unsafe { dpdk_sys::dpdk_errno() }))
    };
    let thread = feroce_threads::spawn("feroce-eal", start);
    let ended = thread.map_err(|error| error.to_string())?.join();
    match ended {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(reason),
        Err(_) => Err("its thread panicked".to_owned()),
    }
}

/// The text for an error number of DPDK, positive or negative.
pub(super) fn message(errno: c_int) -> String {
    // SAFETY: the returned string lives as long as this thread, and is copied.
    let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno.abs())) };
    text.to_string_lossy().into_owned()
}
