//! An Ethernet device of DPDK: finding, configuring and starting it. Dropping it stops and removes
//! it.

use std::ffi::{CStr, CString, c_char};
use std::time::Duration;

use dpdk_sys::{rte_device, rte_eth_conf, rte_eth_dev_info, rte_eth_link, rte_eth_stats};
use feroce_wire::{MacAddr, PathMtu};

use super::config::{Buffers, DpdkConfig};
use super::eal::{Eal, message};
use super::error::DpdkError;
use super::mbuf::Pool;
use crate::port::ethtool::Ethtool;

/// Drivers that report the frame length of ordinary Ethernet but carry longer frames: the size of
/// their buffers is the limit.
const WRONG_LIMITS: [&str; 2] = [MEMIF, "net_af_packet"];
/// Drivers that always report a link, regardless of the state of the kernel interface below them.
const NO_LINK_STATE: [&str; 1] = ["net_af_packet"];
const MEMIF: &str = "net_memif";
/// Ethernet header and checksum, in bytes: difference between the longest frame and the largest
/// packet of a driver.
const FRAME_OVERHEAD: u32 = 18;
/// Time between two checks of the link during start.
const LINK_POLL: Duration = Duration::from_millis(10);
/// Time after which a memif client without a server connects again.
const RECONNECT: Duration = Duration::from_millis(200);

/// An Ethernet device used by this process, with a pair of queues and a buffer pool for each core.
#[derive(Debug)]
pub(super) struct Ethdev {
    pub id: u16,
    pub name: String,
    pub driver: String,
    pub mac: MacAddr,
    /// The kernel interface below the device, if the driver does not report its state.
    kernel: Option<Ethtool>,
    /// Largest IP packet that the device carries, in bytes.
    pub mtu: u32,
    /// The device of the port, if this process created it.
    created: Option<Created>,
    /// One per queue.
    pools: Vec<Pool>,
}

#[derive(Debug)]
struct Created(*mut rte_device);

// SAFETY: the pointer is used only under the lock of the EAL.
unsafe impl Send for Created {}
// SAFETY: as above.
unsafe impl Sync for Created {}

impl Ethdev {
    /// Opens the device of `config` and starts it with `cores` pairs of queues.
    pub fn open(config: &DpdkConfig, cores: usize) -> Result<Self, DpdkError> {
        let mut device = Self::take(config)?;
        let info = device.info()?;
        device.driver = text(info.driver_name);
        if NO_LINK_STATE.contains(&device.driver.as_str()) {
            device.kernel = kernel_interface(info.if_index);
            device.mtu = device.usable_mtu(config.mtu);
        }
        let queues = info.max_rx_queues.min(info.max_tx_queues);
        let Some(count) = u16::try_from(cores).ok().filter(|&count| (1..=queues).contains(&count))
        else {
            return Err(DpdkError::TooFewQueues { port: device.name.clone(), queues, cores });
        };
        device.configure(config, &info, count)?;
        device.set_up_queues(config, count)?;
        device.start(config)?;
        // Neighbour solicitations are sent to multicast groups. Drivers without filters refuse the
        // call and do not need it. SAFETY: this process uses the port.
        unsafe { dpdk_sys::rte_eth_allmulticast_enable(device.id) };
        device.mac = device.read_mac()?;
        Ok(device)
    }

    /// Finds the device, or makes DPDK create it.
    fn take(config: &DpdkConfig) -> Result<Self, DpdkError> {
        let mut eal = Eal::start(config)?;
        let name = config.port.split(',').next().unwrap_or_default();
        let (id, created) = match find(name) {
            Some(id) => (id, false),
            None => (probe(&config.port, name)?, true),
        };
        if !eal.open(id) {
            return Err(DpdkError::Busy(name.to_owned()));
        }
        drop(eal); // Dropping `device` after an error takes this lock.
        let mut device = Self {
            id,
            name: name.to_owned(),
            driver: String::new(),
            mac: MacAddr::default(),
            kernel: None,
            mtu: config.mtu,
            created: None,
            pools: Vec::new(),
        };
        if created {
            device.created = Some(Created(device.info()?.device));
        }
        Ok(device)
    }

    fn info(&self) -> Result<rte_eth_dev_info, DpdkError> {
        let mut info = rte_eth_dev_info::default();
        // SAFETY: the structure outlives the call.
        let status = unsafe { dpdk_sys::rte_eth_dev_info_get(self.id, &raw mut info) };
        done("query the device", status).map(|()| info)
    }

    /// The smaller of `mtu` and the MTU of the kernel interface. The driver would accept longer
    /// frames and lose them.
    fn usable_mtu(&self, mtu: u32) -> u32 {
        let own = self.kernel.as_ref().and_then(|interface| interface.mtu().ok()).unwrap_or(mtu);
        if PathMtu::largest_for(own) < PathMtu::largest_for(mtu) {
            tracing::warn!(
                port = self.name,
                mtu = own,
                "the interface carries less than `dpdk_mtu`"
            );
        }
        own.min(mtu)
    }

    fn configure(
        &self,
        config: &DpdkConfig,
        info: &rte_eth_dev_info,
        queues: u16,
    ) -> Result<(), DpdkError> {
        let mut conf = rte_eth_conf::default(); // No offload: docs/dpdk.md has the reason.
        if !WRONG_LIMITS.contains(&self.driver.as_str()) {
            let limit = info.max_rx_pktlen.saturating_sub(FRAME_OVERHEAD).min(info.max_mtu.into());
            if config.mtu > limit {
                let port = self.name.clone();
                return Err(DpdkError::Mtu { port, mtu: config.mtu, limit });
            }
            conf.rxmode.mtu = config.mtu;
        }
        let spread = info.flow_type_rss_offloads & dpdk_sys::DPDK_RSS_UDP;
        if queues > 1 && spread != 0 {
            conf.rxmode.mq_mode = dpdk_sys::RTE_ETH_MQ_RX_RSS;
            conf.rx_adv_conf.rss_conf.rss_hf = spread;
        }
        // SAFETY: the structure outlives the call; this process uses the port, which is stopped.
        let status =
            unsafe { dpdk_sys::rte_eth_dev_configure(self.id, queues, queues, &raw const conf) };
        done("configure the device", status)
    }

    fn set_up_queues(&mut self, config: &DpdkConfig, queues: u16) -> Result<(), DpdkError> {
        let (mut rx, mut tx) = (config.rx_descriptors, config.tx_descriptors);
        // SAFETY: the numbers outlive the call; the port is configured. The second call returns the
        // NUMA node or -1.
        let (status, socket) = unsafe {
            let adjust = dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc;
            (adjust(self.id, &raw mut rx, &raw mut tx), dpdk_sys::rte_eth_dev_socket_id(self.id))
        };
        done("set the number of descriptors", status)?;
        let Buffers { count, room } = config.buffers(rx, tx);
        for queue in 0..queues {
            let name = format!("feroce-{}-{queue}", self.id);
            let pool = Pool::create(&name, count, room, socket)?;
            let node = u32::try_from(socket).unwrap_or(0);
            let defaults = std::ptr::null();
            // SAFETY: null selects the defaults of the driver; the pool outlives the port.
            let status = unsafe {
                let set_up = dpdk_sys::rte_eth_rx_queue_setup;
                set_up(self.id, queue, rx, node, defaults, pool.as_ptr())
            };
            self.pools.push(pool);
            done("set up a receive queue", status)?;
            // SAFETY: null selects the defaults of the driver.
            let status = unsafe {
                dpdk_sys::rte_eth_tx_queue_setup(self.id, queue, tx, node, std::ptr::null())
            };
            done("set up a transmit queue", status)?;
        }
        Ok(())
    }

    fn read_mac(&self) -> Result<MacAddr, DpdkError> {
        let mut address = dpdk_sys::rte_ether_addr::default();
        // SAFETY: the structure outlives the call.
        let status = unsafe { dpdk_sys::rte_eth_macaddr_get(self.id, &raw mut address) };
        done("read the Ethernet address", status).map(|()| MacAddr(address.addr_bytes))
    }

    /// Starts the device and waits for its link. A memif client connects to its server only when it
    /// is started, so it is restarted until the server exists.
    fn start(&self, config: &DpdkConfig) -> Result<(), DpdkError> {
        let connects = self.driver == MEMIF && !config.port.contains("role=server");
        let mut waited = Duration::ZERO;
        loop {
            // SAFETY: this process uses the port; it is configured with all its queues, and
            // stopped.
            let status = unsafe { dpdk_sys::rte_eth_dev_start(self.id) };
            if !connects {
                done("start the device", status)?;
            }
            let until = if connects { waited + RECONNECT } else { config.link_wait };
            while waited < until.min(config.link_wait) && !self.link().0 {
                std::thread::sleep(LINK_POLL);
                waited += LINK_POLL;
            }
            match (self.link().0, status) {
                (true, _) => return Ok(()),
                (false, 0) if waited >= config.link_wait => {
                    tracing::warn!(port = self.name, ?waited, "the link is not up yet");
                    return Ok(());
                }
                (false, 0) => {
                    // SAFETY: this process uses the port.
                    unsafe { dpdk_sys::rte_eth_dev_stop(self.id) };
                }
                _ if waited >= config.link_wait => {
                    return Err(DpdkError::NoServer(self.name.clone()));
                }
                _ => {}
            }
        }
    }

    /// The buffer pool of `queue`.
    pub fn pool(&self, queue: u16) -> &Pool {
        &self.pools[usize::from(queue)]
    }

    /// Returns true if the driver does not report the state of the kernel interface below it.
    pub fn hides_interface_state(&self) -> bool {
        self.kernel.is_some()
    }

    /// Returns true if the driver does not report the state of the kernel interface below it, and
    /// the interface is down or gone.
    pub fn lost_interface(&self) -> bool {
        self.kernel.as_ref().is_some_and(|interface| !interface.has_link().unwrap_or(false))
    }

    /// Whether there is a link, and its rate in bit/s if the driver knows it.
    pub fn link(&self) -> (bool, Option<u64>) {
        let mut link = rte_eth_link::default();
        // SAFETY: the structure outlives the call.
        let status = unsafe { dpdk_sys::rte_eth_link_get_nowait(self.id, &raw mut link) };
        let up = status == 0 && u32::from(link.link_status()) == dpdk_sys::RTE_ETH_LINK_UP;
        let known = link.link_speed != 0 && link.link_speed != dpdk_sys::RTE_ETH_SPEED_NUM_UNKNOWN;
        (up && !self.lost_interface(), known.then(|| u64::from(link.link_speed) * 1_000_000))
    }

    /// Numbers of frames that the device could not receive or send.
    pub fn lost(&self) -> (u64, u64) {
        let mut stats = rte_eth_stats::default();
        // SAFETY: the structure outlives the call.
        let status = unsafe { dpdk_sys::rte_eth_stats_get(self.id, &raw mut stats) };
        match status {
            0 => (stats.imissed + stats.ierrors + stats.rx_nombuf, stats.oerrors),
            _ => (0, 0), // The driver has no counters.
        }
    }
}

impl Drop for Ethdev {
    fn drop(&mut self) {
        let mut eal = Eal::lock();
        // SAFETY: this process uses the port, and no queue is in use since the ports of all cores
        // are gone. Calls fail only if the port did not reach that state.
        unsafe {
            dpdk_sys::rte_eth_dev_stop(self.id);
            dpdk_sys::rte_eth_dev_close(self.id);
            if let Some(Created(device)) = self.created {
                dpdk_sys::rte_dev_remove(device);
            }
        }
        // The names of pools contain the port number, which the next device may get.
        self.pools.clear();
        eal.close(self.id);
    }
}

fn done(action: &'static str, status: i32) -> Result<(), DpdkError> {
    if status < 0 { Err(DpdkError::refused(action, status)) } else { Ok(()) }
}

/// The number of the port with this name or number.
fn find(name: &str) -> Option<u16> {
    if let Ok(number) = name.parse() {
        // SAFETY: the call reads the port table of DPDK.
        return (unsafe { dpdk_sys::rte_eth_dev_is_valid_port(number) } != 0).then_some(number);
    }
    let name = CString::new(name).expect("checked");
    let mut id = 0;
    // SAFETY: name and number outlive the call.
    let status = unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) };
    (status == 0).then_some(id)
}

/// Makes DPDK create the device `arguments`, whose name is `name`.
fn probe(arguments: &str, name: &str) -> Result<u16, DpdkError> {
    let missing = |reason| DpdkError::NoDevice { port: name.to_owned(), reason };
    let arguments = CString::new(arguments).expect("checked");
    // SAFETY: the string outlives the call; the EAL runs, and its lock is held.
    let status = unsafe { dpdk_sys::rte_dev_probe(arguments.as_ptr()) };
    if status < 0 {
        return Err(missing(message(status)));
    }
    find(name).ok_or_else(|| missing("its driver created no port of this name".to_owned()))
}

/// The kernel interface with this index; `None` for 0.
fn kernel_interface(index: u32) -> Option<Ethtool> {
    let mut name = [0; libc::IFNAMSIZ];
    // SAFETY: the name has room for all bytes that the call may write.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    Ethtool::open(&text(name.as_ptr())).ok()
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return "unknown driver".to_owned();
    }
    // SAFETY: the name lives as long as the driver, and is copied.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
