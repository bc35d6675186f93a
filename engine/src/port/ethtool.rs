//! Properties of an interface that its driver reports through the ethtool `ioctl`s of the kernel:
//! queues, rate, features.
//!
//! sysfs is not used: it shows the network namespace in which it was mounted, not that of the
//! thread. `unsafe` is allowed here because the structures are those of the kernel.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::from_mut;

/// Maximum number of features; Linux has about 64.
const FEATURES_MAX: usize = 128;
/// Bytes of a feature's name.
const NAME_BYTES: usize = 32;

/// `struct ethtool_channels`.
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_cmd`, the older form of the link settings, which suffices for the rate.
#[derive(Default)]
#[repr(C)]
struct LinkSettings {
    command: u32,
    features: [u32; 2],
    speed_low: u16,
    modes: [u8; 6],
    packets: [u32; 2],
    speed_high: u16,
    crossover: [u8; 2],
    partner: u32,
    reserved: [u32; 2],
}

/// `struct ethtool_value`.
#[derive(Default)]
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_pauseparam`.
#[derive(Default)]
#[repr(C)]
struct PauseParameters {
    command: u32,
    autoneg: u32,
    rx: u32,
    tx: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    versions: [[u8; 32]; 4],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// `struct ethtool_sset_info` for one set.
#[derive(Default)]
#[repr(C)]
struct SetInfo {
    command: u32,
    reserved: u32,
    sets: u64,
    len: u32,
    padding: u32,
}

/// `struct ethtool_gstrings` with its strings.
#[repr(C)]
struct Strings {
    command: u32,
    set: u32,
    len: u32,
    names: [[u8; NAME_BYTES]; FEATURES_MAX],
}

/// `struct ethtool_gfeatures` with its blocks: available, requested, active, never changed.
#[derive(Default)]
#[repr(C)]
struct Features {
    command: u32,
    size: u32,
    blocks: [[u32; 4]; FEATURES_MAX / 32],
}

/// A structure that an ethtool command reads and fills.
///
/// # Safety
/// The structure begins with the number of its command and is at least as large as what the kernel
/// writes for the command.
unsafe trait Command {}
// SAFETY: nine words, as in the kernel's `struct ethtool_channels`.
unsafe impl Command for Channels {}
// SAFETY: 44 bytes, as in the kernel's `struct ethtool_cmd`.
unsafe impl Command for LinkSettings {}
// SAFETY: two words, as in the kernel's `struct ethtool_value`.
unsafe impl Command for Value {}
// SAFETY: four words, as in the kernel's `struct ethtool_pauseparam`.
unsafe impl Command for PauseParameters {}
// SAFETY: 196 bytes, as in the kernel's `struct ethtool_drvinfo`.
unsafe impl Command for Driver {}
// SAFETY: the kernel writes one length for each requested set, and one set is requested.
unsafe impl Command for SetInfo {}
// SAFETY: used only after the kernel reported that the set is no longer than `names`.
unsafe impl Command for Strings {}
// SAFETY: the kernel fills at most `size` blocks.
unsafe impl Command for Features {}
const _: () = assert!(size_of::<Driver>() == 196 && size_of::<SetInfo>() == 24);
const _: () = assert!(
    size_of::<Channels>() == 36 && size_of::<LinkSettings>() == 44 && size_of::<Value>() == 8
);

const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETH_SS_STATS: u32 = 1;
const ETH_SS_FEATURES: u32 = 4;
/// Maximum number of counters of a driver; ConnectX drivers have some thousands.
const STATISTICS_MAX: usize = 1 << 16;

/// Queries about one interface.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
    name: CString,
}

impl Ethtool {
    /// Opens queries about the interface `name` in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The name is not a valid interface name, or no descriptor is left.
    pub fn open(name: &str) -> io::Result<Self> {
        if name.len() >= libc::IFNAMSIZ {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let name = CString::new(name)?;
        // SAFETY: no pointers are passed; the descriptor is checked below.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is open and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { socket, name })
    }

    /// Numbers of receive and transmit queues in use; one each if the driver does not report them.
    pub fn queues(&self) -> (u32, u32) {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        match self.run(&mut channels) {
            Ok(()) => {
                let both = channels.combined;
                ((channels.rx + both).max(1), (channels.tx + both).max(1))
            }
            Err(_) => (1, 1),
        }
    }

    /// Link rate in bit/s, if the driver knows it.
    pub fn rate(&self) -> Option<u64> {
        let mut link = LinkSettings { command: ETHTOOL_GSET, ..LinkSettings::default() };
        self.run(&mut link).ok()?;
        let megabits = u32::from(link.speed_high) << 16 | u32::from(link.speed_low);
        // All ones, in 16 or 32 bits, means "unknown".
        let known = ![0, u32::from(u16::MAX), u32::MAX].contains(&megabits);
        known.then(|| u64::from(megabits) * 1_000_000)
    }

    /// Whether the device obeys PAUSE frames (IEEE 802.3x), and whether it sends them; `None` if
    /// the driver does not report it.
    pub fn pauses(&self) -> Option<(bool, bool)> {
        let mut pauses =
            PauseParameters { command: ETHTOOL_GPAUSEPARAM, ..PauseParameters::default() };
        self.run(&mut pauses).ok()?;
        Some((pauses.rx != 0, pauses.tx != 0))
    }

    /// Returns true if the interface is up and, as far as its driver reports, has a link. Does not
    /// use `IFF_RUNNING`, which lags by up to one second.
    ///
    /// # Errors
    /// The kernel refuses; the interface may be gone.
    pub fn has_link(&self) -> io::Result<bool> {
        let flags = self.ioctl(libc::SIOCGIFFLAGS)?;
        // SAFETY: the kernel filled the member that belongs to the request.
        let flags = i32::from(unsafe { flags.ifr_ifru.ifru_flags });
        let mut link = Value { command: ETHTOOL_GLINK, ..Value::default() };
        Ok(flags & libc::IFF_UP != 0 && (self.run(&mut link).is_err() || link.data != 0))
    }

    /// Largest IP packet of the interface, in bytes.
    ///
    /// # Errors
    /// The kernel refuses; the interface may be gone.
    pub fn mtu(&self) -> io::Result<u32> {
        let answer = self.ioctl(libc::SIOCGIFMTU)?;
        // SAFETY: the kernel filled the member that belongs to the request.
        Ok(unsafe { answer.ifr_ifru.ifru_mtu }.unsigned_abs())
    }

    /// Returns true if the device strips VLAN tags from received frames. A veth reports that it
    /// does, but leaves the tags in place.
    pub fn strips_vlan(&self) -> bool {
        let mut flags = Value { command: ETHTOOL_GFLAGS, ..Value::default() };
        let reported = self.run(&mut flags).is_ok() && flags.data & ETH_FLAG_RXVLAN != 0;
        reported && self.driver().as_deref() != Some("veth")
    }

    /// Name of the driver.
    pub fn driver(&self) -> Option<String> {
        let mut driver = Driver {
            command: ETHTOOL_GDRVINFO,
            name: [0; 32],
            versions: [[0; 32]; 4],
            reserved: [0; 12],
            counts: [0; 5],
        };
        self.run(&mut driver).ok()?;
        text(&driver.name)
    }

    /// The features of the device under the names of the kernel, and whether each is on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn features(&self) -> io::Result<BTreeMap<String, bool>> {
        let mut info = SetInfo {
            command: ETHTOOL_GSSET_INFO,
            sets: 1 << ETH_SS_FEATURES,
            ..SetInfo::default()
        };
        self.run(&mut info)?;
        if info.len as usize > FEATURES_MAX {
            return Err(io::Error::other("too many features"));
        }
        let mut strings = Box::new(Strings {
            command: ETHTOOL_GSTRINGS,
            set: ETH_SS_FEATURES,
            len: info.len,
            names: [[0; NAME_BYTES]; FEATURES_MAX],
        });
        self.run(&mut *strings)?;
        let mut features = Features {
            command: ETHTOOL_GFEATURES,
            size: u32::try_from(FEATURES_MAX / 32).expect("small"),
            ..Features::default()
        };
        self.run(&mut features)?;
        let is_on = |at: usize| features.blocks[at / 32][2] >> (at % 32) & 1 != 0;
        let names = strings.names.iter().enumerate().take(info.len as usize);
        Ok(names.filter_map(|(at, name)| Some((text(name)?, is_on(at)))).collect())
    }

    /// The counters of the driver under their names, as `ethtool -S` shows them. Empty if the
    /// driver has none.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn statistics(&self) -> io::Result<BTreeMap<String, u64>> {
        let mut info =
            SetInfo { command: ETHTOOL_GSSET_INFO, sets: 1 << ETH_SS_STATS, ..SetInfo::default() };
        self.run(&mut info)?;
        let count = info.len as usize;
        if count == 0 || info.sets == 0 {
            return Ok(BTreeMap::new());
        }
        if count > STATISTICS_MAX {
            return Err(io::Error::other("too many counters"));
        }
        // The number of counters may grow between the queries, for example with more queues.
        let room = 2 * count + 64;
        let words = |bytes: usize| vec![0_u64; (16 + room * bytes).div_ceil(8)];
        let mut names = words(NAME_BYTES);
        let mut values = words(8);
        names[0] = pair(ETHTOOL_GSTRINGS, ETH_SS_STATS);
        values[0] = pair(ETHTOOL_GSTATS, info.len);
        // `len` is the third word of the names.
        names[1] = pair(info.len, 0);
        // SAFETY: 12 bytes of header and `room` names, twice as many as the kernel reported.
        unsafe { self.run_at(names.as_mut_ptr().cast())? };
        // SAFETY: 8 bytes of header and `room` values.
        unsafe { self.run_at(values.as_mut_ptr().cast())? };
        let names: Vec<u8> = names.iter().flat_map(|word| word.to_ne_bytes()).skip(12).collect();
        let names = names.chunks_exact(NAME_BYTES).map(text);
        let named = names.zip(values[1..].iter().copied()).take(count);
        Ok(named.filter_map(|(name, value)| Some((name?, value))).collect())
    }

    /// Runs the request `number`, which reads the name of an `ifreq` and fills its union.
    pub(super) fn ioctl(&self, number: libc::Ioctl) -> io::Result<libc::ifreq> {
        let mut request = self.request();
        // SAFETY: these requests read and write only an `ifreq`.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), number, &raw mut request) } {
            0 => Ok(request),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: `ifreq` is plain data for which all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (to, &from) in request.ifr_name.iter_mut().zip(self.name.as_bytes()) {
            *to = from.cast_signed();
        }
        request
    }

    /// Runs the ethtool command whose number `data` begins with.
    fn run<T: Command>(&self, data: &mut T) -> io::Result<()> {
        // SAFETY: the trait guarantees that `data` is the structure of its command.
        unsafe { self.run_at(from_mut(data).cast()) }
    }

    /// # Safety
    /// `data` points to the structure that the command with the number at its start reads and
    /// writes.
    unsafe fn run_at(&self, data: *mut libc::c_char) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = data;
        // SAFETY: the caller guarantees `data`.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Two 32-bit words in memory order.
const fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// A null-terminated string; `None` if it is empty.
fn text(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.split(|&byte| byte == 0).next()?;
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_features() {
        let features = Ethtool::open("lo").unwrap().features().unwrap();
        assert_eq!(features.get("tx-scatter-gather"), Some(&true), "{features:?}");
        assert_eq!(features.get("rx-lro"), Some(&false), "{features:?}");
    }

    #[test]
    fn the_link_of_the_loopback_interface_is_readable() {
        assert!(Ethtool::open("lo").unwrap().has_link().is_ok());
        assert!(Ethtool::open("none0").unwrap().has_link().is_err());
    }

    #[test]
    fn an_interface_without_counters_reports_none() {
        let found = Ethtool::open("lo").unwrap().statistics();
        assert!(found.as_ref().is_ok_and(BTreeMap::is_empty) || found.is_err(), "{found:?}");
    }

    #[test]
    fn invalid_names_are_refused() {
        assert!(Ethtool::open("a-name-that-is-too-long").is_err());
        assert!(Ethtool::open("none0").unwrap().features().is_err());
    }
}
