//! Opening the ports of a device, with the data that the device needs about them.

use std::error::Error;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::owner::Ownership;
use super::{Addressing, DeviceConfig, KernelAddresses, OpenError, Sharing};
use crate::net::Gid;
use crate::port::Port;
use crate::port::kind::{
    AddressFilter, FilterAddress, OpenRequest, OpenedPorts, PortAddressing, PortEntry, PortOwner,
};
pub use crate::port::registry::{PortKind, UnknownPortKind};

/// The open ports of a device.
pub(crate) struct OpenPorts {
    /// Name of the device for `feroce stat`.
    pub(crate) name: String,
    /// One port per core.
    pub(crate) ports: Vec<Box<dyn Port>>,
    pub(crate) addressing: Addressing,
    /// Ownership of the kernel interface, whose RoCE traffic belongs to one program; `None` for
    /// ports without a kernel interface.
    pub(crate) owner: Option<Ownership>,
    /// The address filter of the ports; `None` if the ports have addresses of their own.
    pub(crate) filter: Option<Filter>,
    /// Why this kind of port was chosen.
    pub(crate) reason: String,
    /// As [`OpenedPorts::window_max`].
    pub(crate) window_max: Option<u32>,
    /// As [`OpenedPorts::owner`].
    pub(crate) port_owner: Option<Arc<dyn PortOwner>>,
}

/// The reason for a kind of port that was requested by name.
const REQUESTED: &str = "requested";

/// The addresses whose frames the ports deliver.
#[derive(Debug)]
pub(crate) struct Filter(Box<dyn AddressFilter>);

impl Filter {
    /// Receives frames to the addresses `own` and to `groups` from now on.
    pub(crate) fn set(
        &self,
        own: impl Iterator<Item = FilterAddress>,
        groups: impl Iterator<Item = IpAddr>,
    ) -> Result<(), OpenError> {
        let groups = groups.map(|group| Ipv6Addr::from(Gid::from(group).0).into());
        Ok(self.0.set(&own.chain(groups).collect::<Vec<_>>())?)
    }

    /// As [`AddressFilter::is_detachable`].
    pub(crate) fn is_detachable(&self) -> bool {
        self.0.is_detachable()
    }

    /// As [`AddressFilter::restore`]. Reports what was attached again, or why nothing could be.
    /// Returns true if the ports are lost. `is_removed`: the interface is gone, which is reported
    /// elsewhere.
    pub(crate) fn restore(&self, interface: &str, is_removed: impl FnOnce() -> bool) -> bool {
        match self.0.restore() {
            Ok(None) => false,
            Ok(Some(what)) => {
                tracing::warn!("another program detached {what} from {interface}: attached again");
                false
            }
            Err(_) if is_removed() => false,
            Err(error) => {
                let error = crate::log::chain(&OpenError::from(error));
                tracing::error!("another program detached Feroce from {interface}: {error}");
                true
            }
        }
    }
}

/// Opens the ports of a device on `interface`: at the daemon that owns it, or its own.
pub(super) fn open(interface: &str, config: &DeviceConfig) -> Result<OpenPorts, OpenError> {
    if config.sharing != Sharing::Embedded && config.port != PortKind::Daemon {
        let daemon = DeviceConfig { port: PortKind::Daemon, ..config.clone() };
        match open_own(interface, &daemon) {
            Err(OpenError::Port(error))
                if config.sharing == Sharing::Auto && error.allows_fallback() => {}
            opened => {
                let reason = "the interface has a daemon".to_owned();
                return opened.map(|opened| OpenPorts { reason, ..opened });
            }
        }
    }
    open_own(interface, config)
}

/// Opens the ports of a device on `interface`, of the kind that the configuration chooses.
pub(crate) fn open_own(interface: &str, config: &DeviceConfig) -> Result<OpenPorts, OpenError> {
    let kernel = match config.port.is_on_kernel() {
        true => {
            let addresses = KernelAddresses::open(interface)?;
            let owner = Ownership::take(interface);
            Some((addresses, owner.map_err(|error| OpenError::ownership(interface, error))?))
        }
        false => None,
    };
    let request = OpenRequest {
        device: interface,
        configs: &config.ports,
        cores: config.cores,
        flow_control: config.pfc.is_on(),
        window: config.window,
    };
    let (opened, reason) = match chosen_kind(config) {
        Some(kind) => (open_kind(kind, &request)?, REQUESTED.to_owned()),
        None => open_first(&request)?,
    };
    let OpenedPorts { name, ports, addresses, window_max, owner: port_owner } = opened;
    let (addressing, owner, filter) = match (addresses, kernel) {
        (PortAddressing::Filtered(filter), Some((addresses, owner))) => {
            (Addressing::Kernel(addresses), Some(owner), Some(Filter(filter)))
        }
        (PortAddressing::Routed(filter), Some((addresses, owner))) => {
            (Addressing::Kernel(addresses.routed()), Some(owner), Some(Filter(filter)))
        }
        (PortAddressing::Own(addresses), _) => (Addressing::Port(addresses), None, None),
        (_, None) => unreachable!("only kernel interfaces have filters"),
    };
    Ok(OpenPorts { name, ports, addressing, owner, filter, reason, window_max, port_owner })
}

/// The kind of port that the configuration requires; `None` if `auto` may choose any kind.
fn chosen_kind(config: &DeviceConfig) -> Option<PortKind> {
    if config.port != PortKind::Auto {
        return Some(config.port);
    }
    let mut candidates = PortKind::rows().filter(|(_, entry)| entry.in_auto);
    let is_required =
        |kind: PortKind| kind.config(&config.ports).is_some_and(|config| config.is_required());
    candidates.find(|(kind, _)| is_required(*kind)).map(|(kind, _)| kind)
}

fn open_kind(kind: PortKind, request: &OpenRequest<'_>) -> Result<OpenedPorts, OpenError> {
    let open = kind.entry().and_then(|entry| entry.open).ok_or(OpenError::NotBuilt(kind))?;
    Ok(open(request)?)
}

/// Opens the first kind of port of `auto` that opens. Also returns the reason for this kind.
fn open_first(request: &OpenRequest<'_>) -> Result<(OpenedPorts, String), OpenError> {
    let mut failures: Vec<(&'static PortEntry, _)> = Vec::new();
    for (_, entry) in PortKind::rows().filter(|(_, entry)| entry.in_auto) {
        let Some(open) = entry.open else { continue };
        match open(request) {
            Ok(opened) => {
                let reason = reason(entry, request.device, &opened, &failures);
                return Ok((opened, reason));
            }
            Err(error) if error.allows_fallback() => failures.push((entry, error)),
            Err(error) if failures.is_empty() => return Err(error.into()),
            Err(error) => {
                failures.push((entry, error));
                break;
            }
        }
    }
    let failures = failures.into_iter().map(|(entry, error)| (entry.title, error)).collect();
    Err(OpenError::NoPort { failures })
}

/// Why `auto` opened the kind of port `entry`. Warns if the kinds before it failed.
fn reason(
    entry: &PortEntry,
    interface: &str,
    opened: &OpenedPorts,
    failures: &[(&PortEntry, crate::port::kind::PortError)],
) -> String {
    if failures.is_empty() {
        return format!("auto: interface and privileges allow {}", entry.title);
    }
    let why = failures.iter().map(|(missing, error)| {
        let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
        format!("cannot use {}: {error}{cause}", missing.title)
    });
    let why = why.collect::<Vec<_>>().join("; ");
    let port = &opened.ports[0].attributes().kind;
    tracing::warn!("{interface} is opened as {port}: {why}");
    format!("auto: {why}")
}
