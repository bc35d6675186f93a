//! The environment abstraction layer (EAL) of DPDK, which starts once per process, and the lock for
//! operations on it.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::config::{DpdkConfig, DpdkMemory};
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

/// Options that place the threads of the EAL. Without such an option its main thread may run on any
/// CPU.
const PLACEMENT_OPTIONS: [&str; 4] = ["-l", "-c", "--lcores", "--coremask"];

/// Options that select PCI devices.
const DEVICE_OPTIONS: [&str; 5] = ["-a", "--allow", "-b", "--block", "--no-pci"];

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

/// The arguments of Feroce for the EAL, followed by those of the user, which override them where
/// the EAL permits it.
fn arguments(config: &DpdkConfig) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["--no-telemetry", "--log-level=warning"].map(str::to_owned).into();
    // With these arguments no file is left when the process ends.
    match config.memory {
        DpdkMemory::Hugepages => arguments.push("--in-memory".to_owned()),
        DpdkMemory::Ordinary { mib } => {
            arguments.extend(["--no-shconf", "--no-huge", "-m"].map(str::to_owned));
            arguments.push(mib.to_string());
        }
    }
    let places = |text: &String| PLACEMENT_OPTIONS.iter().any(|option| text.starts_with(option));
    if !config.eal.iter().any(places) {
        // One main thread without a CPU of its own, and no worker threads: Feroce has helper
        // threads.
        let cpus: Vec<String> = feroce_threads::cpus().iter().map(|cpu| cpu.to_string()).collect();
        if !cpus.is_empty() {
            arguments.push(format!("--lcores=0@({})", cpus.join(",")));
        }
    }
    // Only the requested device is used. Without this argument the EAL takes every PCI device that
    // it has a driver for.
    let is_pci =
        |port: &str| port.split(',').next().is_some_and(|name| name.matches(':').count() == 2);
    let chooses = |text: &String| DEVICE_OPTIONS.iter().any(|option| text.starts_with(option));
    match config.port.as_str() {
        _ if config.eal.iter().any(chooses) => {}
        port if is_pci(port) => arguments.extend(["-a".to_owned(), port.to_owned()]),
        _ => arguments.push("--no-pci".to_owned()),
    }
    arguments.extend(config.eal.iter().cloned());
    arguments
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_leave_no_files_and_pin_no_thread() {
        let mut config = DpdkConfig::new("net_null0", Vec::new());
        config.memory = DpdkMemory::Ordinary { mib: 128 };
        let has = |arguments: &[String], text: &str| arguments.iter().any(|own| own == text);
        let own = arguments(&config);
        assert!(["--no-shconf", "--no-huge", "128", "--no-pci"].iter().all(|text| has(&own, text)));
        assert_eq!(own.iter().filter(|text| text.starts_with("--lcores=0@(")).count(), 1);
        config.memory = DpdkMemory::Hugepages;
        config.port = "0000:3b:00.0".to_owned();
        let nic = arguments(&config);
        assert!(nic.ends_with(&["-a".to_owned(), config.port.clone()]) && has(&nic, "--in-memory"));
        config.eal = vec!["-l".to_owned(), "1".to_owned()];
        let users = arguments(&config);
        assert!(!users.iter().any(|text| text.starts_with("--lcores")), "{users:?}");
        assert!(users.ends_with(&config.eal));
    }
}
