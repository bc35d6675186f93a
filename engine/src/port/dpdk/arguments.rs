//! The arguments with which the EAL starts.

use super::config::{DpdkConfig, DpdkMemory};

/// Options that place the threads of the EAL. Without such an option its main thread may run on any
/// CPU.
const PLACEMENT_OPTIONS: [&str; 4] = ["-l", "-c", "--lcores", "--coremask"];

/// Options that select PCI devices.
const DEVICE_OPTIONS: [&str; 5] = ["-a", "--allow", "-b", "--block", "--no-pci"];

/// The arguments of Feroce for the EAL, followed by those of the user, which override them where
/// the EAL permits it.
pub(super) fn arguments(config: &DpdkConfig) -> Vec<String> {
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
