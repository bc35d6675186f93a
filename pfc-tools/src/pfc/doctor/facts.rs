//! State of an interface and its host. Files are read below a root directory, so that tests can
//! provide a host.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use feroce_engine::net::{Interface, NetError};
use feroce_engine::port::ethtool::Ethtool;

use crate::dcb::{Dcb, DcbError, Dcbx, Ieee};
use crate::pfc::counters::parse_name;
use crate::pfc::outcome::Failure;

/// The collected state.
#[derive(Debug)]
pub struct Facts {
    /// Name of the interface.
    pub name: String,
    /// Its MTU.
    pub mtu: u32,
    /// Up, with a working link.
    pub is_usable: bool,
    /// Name of the driver.
    pub driver: Option<String>,
    /// PAUSE settings: receive and send.
    pub pauses: Option<(bool, bool)>,
    /// Flow control counters that are not 0.
    pub counters: BTreeMap<String, u64>,
    /// DCB state.
    pub dcb: Result<Ieee, DcbError>,
    /// DCBX mode.
    pub dcbx: Option<Dcbx>,
    /// State read from files.
    pub files: Files,
}

/// State read from files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Running LLDP daemons.
    pub daemons: Vec<String>,
    /// The RDMA port of the interface.
    pub rdma: Option<RdmaPort>,
    /// DCQCN of an NVIDIA NIC: reaction point (`rp`) and notification point (`np`), by priority.
    pub ecn: BTreeMap<(String, u8), bool>,
    /// The folder with DCQCN's parameters.
    pub cc_params: Option<PathBuf>,
    /// Default type of service of librdmacm connections.
    pub roce_tos: Option<u8>,
}

/// A port of an RDMA device.
#[derive(Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub port: String,
}

impl Facts {
    /// Collects the state of an interface.
    ///
    /// # Errors
    /// If the interface does not exist or is not Ethernet.
    pub fn collect(name: &str) -> Result<Self, Failure> {
        let interface = Interface::read(name).map_err(|error| match error {
            NetError::NoSuchInterface { name } => {
                Failure::Unusable(format!("there is no interface {name}"))
            }
            other => Failure::Unusable(format!("{name}: {other}")),
        })?;
        let ethtool = Ethtool::open(name).ok();
        let mut dcb = Dcb::open();
        let (ieee, dcbx) = match &mut dcb {
            Ok(dcb) => (dcb.ieee(name), dcb.dcbx(name).ok()),
            Err(_) => (Err(DcbError::NotSupported(name.to_owned())), None),
        };
        let counters = ethtool.as_ref().and_then(|nic| nic.statistics().ok()).unwrap_or_default();
        let is_nonzero = |(name, value): &(String, u64)| *value > 0 && parse_name(name).is_some();
        Ok(Self {
            name: name.to_owned(),
            mtu: interface.mtu,
            is_usable: interface.is_usable(),
            driver: ethtool.as_ref().and_then(Ethtool::driver),
            pauses: ethtool.as_ref().and_then(Ethtool::pauses),
            counters: counters.into_iter().filter(is_nonzero).collect(),
            dcb: ieee,
            dcbx,
            files: Files::read(Path::new("/"), name),
        })
    }
}

impl Files {
    /// Reads the files below `root`. Missing or unreadable files leave a value unknown.
    pub fn read(root: &Path, interface: &str) -> Self {
        let device = root.join("sys/class/net").join(interface);
        let rdma = rdma_port(&root.join("sys/class/infiniband"), interface);
        let mut ecn = BTreeMap::new();
        for side in ["rp", "np"] {
            for priority in 0..8 {
                let file = device.join(format!("ecn/roce_{side}/enable/{priority}"));
                if let Some(text) = text(&file) {
                    ecn.insert((side.to_owned(), priority), text == "1");
                }
            }
        }
        let slot = fs::read_link(device.join("device")).ok();
        let slot = slot.as_deref().and_then(Path::file_name);
        let cc_params =
            slot.map(|slot| root.join("sys/kernel/debug/mlx5").join(slot).join("cc_params"));
        let tos = rdma.as_ref().map(|RdmaPort { device, port }| {
            let ports = root.join("sys/kernel/config/rdma_cm").join(device).join("ports");
            ports.join(port).join("default_roce_tos")
        });
        Self {
            daemons: daemons(root),
            rdma,
            ecn,
            cc_params: cc_params.filter(|folder| folder.is_dir()),
            roce_tos: tos.and_then(|file| text(&file)?.parse().ok()),
        }
    }
}

/// The port with a GID of `interface`. The table also holds GIDs of VLANs, and entries without a
/// GID cannot be read.
fn rdma_port(devices: &Path, interface: &str) -> Option<RdmaPort> {
    let mut ports = names(devices).into_iter().flat_map(|device| {
        let ports = names(&devices.join(&device).join("ports"));
        ports.into_iter().map(move |port| RdmaPort { device: device.clone(), port })
    });
    ports.find(|RdmaPort { device, port }| {
        let table = devices.join(device).join("ports").join(port).join("gid_attrs/ndevs");
        let mut gids = names(&table).into_iter();
        gids.any(|gid| text(&table.join(gid)).as_deref() == Some(interface))
    })
}

/// Daemons that speak LLDP and may change DCB settings according to the peer.
const DAEMONS: [&str; 3] = ["lldpad", "lldpd", "dcbd"];

fn daemons(root: &Path) -> Vec<String> {
    let mut found: Vec<String> = names(&root.join("proc"))
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|process| text(&root.join("proc").join(process).join("comm")))
        .filter(|program| DAEMONS.contains(&program.as_str()))
        .collect();
    found.sort();
    found.dedup();
    found
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}
