//! Options for opening a device, and opening it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::{Args, ValueEnum, ValueHint};
use feroce_engine::device::settings::Settings;
use feroce_engine::device::{Device, DeviceConfig, OpenError, PortKind};
use feroce_engine::files;
use feroce_engine::port::Port;
use feroce_engine::port::af_xdp::{AfXdpConfig, XdpMode};
use feroce_engine::port::fault::{FaultCounters, FaultPort, FaultStats, Faults};
use feroce_engine::port::kind::PortConfig;
use feroce_engine::port::pcap::PcapPort;

use crate::config::SettingFlags;
use crate::failure::Failure;
use crate::privileges;

/// How to open the device.
#[derive(Debug, Args)]
pub struct OpenOptions {
    /// Interface, or device of a kind of port without kernel interfaces [default for such a
    /// kind: the setting `KIND_device`]
    #[arg(short, long, value_name = "IFACE", value_hint = ValueHint::Other)]
    pub interface: Option<String>,
    /// Settings
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Where the XDP program runs
    #[arg(long, value_enum, default_value_t = Xdp::Auto, help_heading = "Device")]
    pub xdp: Xdp,
    /// Drop sent frames at this rate, such as `1%` or `100ppm`
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0ppm",
        value_parser = parse_rate,
        help_heading = "Faults"
    )]
    pub drop: u32,
    /// Duplicate sent frames at this rate
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0ppm",
        value_parser = parse_rate,
        help_heading = "Faults"
    )]
    pub duplicate: u32,
    /// Reorder sent frames at this rate: up to 8 later frames overtake
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0ppm",
        value_parser = parse_rate,
        help_heading = "Faults"
    )]
    pub reorder: u32,
    /// Flip one bit of sent frames at this rate
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0ppm",
        value_parser = parse_rate,
        help_heading = "Faults"
    )]
    pub corrupt: u32,
    /// Mark sent ECN-capable packets CE at this rate, as a congested switch would
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0ppm",
        value_parser = parse_rate,
        help_heading = "Faults"
    )]
    pub mark: u32,
    /// Seed of the faults: the n-th frame has the same faults in every run [default: random,
    /// printed]
    #[arg(long, value_name = "N", help_heading = "Faults")]
    pub seed: Option<u64>,
    /// Capture frames between the faults and the wire; core N > 0 writes FILE.N
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Device")]
    pub pcap: Option<PathBuf>,
}

/// Where the XDP program runs
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Xdp {
    /// Native if the driver supports it, otherwise generic
    Auto,
    /// In the driver
    Native,
    /// In the kernel's stack, on any interface
    Generic,
}

impl From<Xdp> for XdpMode {
    fn from(xdp: Xdp) -> Self {
        match xdp {
            Xdp::Auto => Self::Auto,
            Xdp::Native => Self::Native,
            Xdp::Generic => Self::Generic,
        }
    }
}

/// The interface or device to open: the one that is `given`, or the one that the settings of the
/// kind of port name.
///
/// # Errors
/// [`Failure::Usage`] if neither names one.
pub fn interface(given: Option<&String>, settings: &Settings) -> Result<String, Failure> {
    let kind = settings.port_kind;
    let default = kind.config(&settings.ports).map(PortConfig::default_device);
    let default = default.filter(|device| !device.is_empty());
    given.map(String::as_str).or(default).map(str::to_owned).ok_or_else(|| {
        Failure::Usage(match kind.is_on_kernel() {
            true => "no interface given: -i IFACE (`feroce devinfo` lists them)".to_owned(),
            false => format!("no device given: -i DEVICE, or the setting `{kind}_device`"),
        })
    })
}

/// A device with the faults and captures around its ports.
#[derive(Debug)]
pub struct OpenDevice {
    pub device: Device,
    /// Name of the interface, or of the device of a port without a kernel interface.
    pub interface: String,
    /// Settings that the device was opened with.
    pub settings: Settings,
    faults: Vec<Arc<FaultCounters>>,
    captures: Vec<Arc<OnceLock<io::Error>>>,
}

impl OpenDevice {
    /// A device of a test.
    #[cfg(test)]
    pub fn of(device: Device) -> Self {
        let settings = Settings::default();
        Self { device, interface: String::new(), settings, faults: vec![], captures: vec![] }
    }

    /// Counts of the injected faults, if any were requested.
    pub fn faults(&self) -> Option<FaultStats> {
        let add = |a: FaultStats, b: FaultStats| FaultStats {
            frames: a.frames + b.frames,
            lost: a.lost + b.lost,
            duplicated: a.duplicated + b.duplicated,
            reordered: a.reordered + b.reordered,
            corrupted: a.corrupted + b.corrupted,
            marked: a.marked + b.marked,
        };
        self.faults.iter().map(|counters| counters.read()).reduce(add)
    }

    /// Closes the device and its captures.
    ///
    /// # Errors
    /// [`Failure::Capture`] if a capture is incomplete.
    pub fn close(self) -> Result<(), Failure> {
        let Self { device, captures, .. } = self;
        drop(device);
        let error = captures.into_iter().find_map(|capture| Arc::into_inner(capture)?.into_inner());
        error.map_or(Ok(()), |error| Err(Failure::Capture(error)))
    }
}

/// A capture file that keeps the first write error.
struct CaptureFile {
    file: File,
    path: PathBuf,
    first_error: Arc<OnceLock<io::Error>>,
}

impl CaptureFile {
    fn create(path: PathBuf) -> Result<Self, OpenError> {
        let file = files::create_private(&path).map_err(|error| cannot_write(&path, &error))?;
        Ok(Self { file, path, first_error: Arc::default() })
    }

    fn keep_error<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|error| {
            let kind = error.kind();
            let _ = self.first_error.set(files::named(&self.path, &error)); // Only the first.
            kind.into()
        })
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> OpenError {
    OpenError::System { action: "write the capture file", source: files::named(path, error) }
}

impl Write for CaptureFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        self.keep_error(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.keep_error(flushed)
    }
}

impl OpenOptions {
    /// The first given option that concerns a device.
    pub fn given(&self) -> Option<&'static str> {
        let options = [
            (self.interface.is_some(), "-i"),
            (self.xdp != Xdp::Auto, "--xdp"),
            (self.drop > 0, "--drop"),
            (self.duplicate > 0, "--duplicate"),
            (self.reorder > 0, "--reorder"),
            (self.corrupt > 0, "--corrupt"),
            (self.mark > 0, "--mark"),
            (self.seed.is_some(), "--seed"),
            (self.pcap.is_some(), "--pcap"),
        ];
        let given = options.into_iter().find(|(given, _)| *given).map(|(_, flag)| flag);
        given.or_else(|| self.settings.first_device_option())
    }

    /// Checks that the options are consistent.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub fn check(&self, settings: &Settings) -> Result<(), Failure> {
        let (kind, xdp) = (settings.port_kind, self.xdp != Xdp::Auto);
        interface(self.interface.as_ref(), settings)?;
        let message = if self.seed.is_some() && self.given_faults().is_none() {
            "--seed requires a fault: --drop, --duplicate, --reorder, --corrupt or --mark"
                .to_owned()
        } else if xdp && kind != PortKind::Auto && kind != PortKind::AfXdp {
            let origin = settings.origin("port_kind");
            format!("--xdp is for AF_XDP, but the kind of port is {kind} ({origin})")
        } else {
            return Ok(());
        };
        Err(Failure::Usage(message))
    }

    /// Opens the device and drops the privileges that this required.
    /// `adjust` changes the configuration that the settings give.
    pub fn open(
        &self,
        settings: &Settings,
        adjust: impl FnOnce(&mut DeviceConfig),
    ) -> Result<OpenDevice, Failure> {
        let interface = interface(self.interface.as_ref(), settings)?;
        let user = privileges::find_of(settings)?;
        let mut config = settings.device_config();
        adjust(&mut config);
        config.ports.get_mut::<AfXdpConfig>().mode = self.xdp.into();
        let cores = config.cores as u64;
        let seed = self.seed_of_faults();
        let (mut faults, mut captures) = (Vec::new(), Vec::new());
        let mut core = 0;
        let device = Device::open_wrapped(&interface, config, &mut |port| {
            core += 1;
            let port = self.wrap(port, core - 1, seed, &mut faults, &mut captures)?;
            if core == cores {
                privileges::give_up(user.as_ref())?;
            }
            Ok(port)
        })?;
        let interface = match settings.port_kind.is_on_kernel() {
            true => interface,
            false => interface.split(',').next().unwrap_or_default().to_owned(),
        };
        Ok(OpenDevice { device, interface, settings: settings.clone(), faults, captures })
    }

    fn given_faults(&self) -> Option<Faults> {
        let none = Faults::default();
        let faults = Faults {
            loss: self.drop,
            duplicate: self.duplicate,
            reorder: self.reorder,
            corrupt: self.corrupt,
            mark: self.mark,
            ..none
        };
        (faults != none).then_some(faults)
    }

    fn seed_of_faults(&self) -> u64 {
        match (self.given_faults(), self.seed) {
            (Some(_), None) => {
                let seed = u64::from(random_seed());
                eprintln!("feroce: the faults use --seed {seed}");
                seed
            }
            (_, seed) => seed.unwrap_or_default(),
        }
    }

    /// The capture is next to the wire and the faults are next to the core, so that the capture
    /// shows the frames that were sent.
    fn wrap(
        &self,
        mut port: Box<dyn Port>,
        core: u64,
        seed: u64,
        counters: &mut Vec<Arc<FaultCounters>>,
        captures: &mut Vec<Arc<OnceLock<io::Error>>>,
    ) -> Result<Box<dyn Port>, OpenError> {
        if let Some(path) = &self.pcap {
            let mut path = path.clone().into_os_string();
            if core > 0 {
                path.push(format!(".{core}"));
            }
            let path = PathBuf::from(path);
            let capture = CaptureFile::create(path.clone())?;
            captures.push(Arc::clone(&capture.first_error));
            let started = PcapPort::new(port, capture, u32::MAX);
            port = Box::new(started.map_err(|error| cannot_write(&path, &error))?);
        }
        if let Some(faults) = self.given_faults() {
            let faulty = FaultPort::new(port, faults, seed.wrapping_add(core));
            let faulty =
                faulty.map_err(|_| OpenError::Config("fault rates must be at most 100%"))?;
            counters.push(faulty.counters());
            port = Box::new(faulty);
        }
        Ok(port)
    }
}

/// A number that differs between runs.
fn random_seed() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.subsec_nanos())
}

/// Parses a rate such as `2.5%` or `100ppm` into parts per million.
fn parse_rate(text: &str) -> Result<u32, String> {
    let unit = [("%", 10_000.0), ("ppm", 1.0)]
        .into_iter()
        .find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, scale)));
    let (number, scale) = unit.ok_or("the unit is missing: `1%` or `100ppm`")?;
    let number: f64 = number.trim().parse().map_err(|_| format!("`{number}` is not a number"))?;
    let ppm = (number * scale).round();
    if !(0.0..=1e6).contains(&ppm) {
        return Err("a rate is 0 to 100%".to_owned());
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to a million.
    Ok(ppm as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        assert_eq!(parse_rate("1%"), Ok(10_000));
        assert_eq!(parse_rate("0.01 %"), Ok(100));
        assert_eq!(parse_rate("250ppm"), Ok(250));
        assert_eq!(parse_rate("100%"), Ok(1_000_000));
        for bad in ["1", "101%", "-1%", "x%", "nan%", "infppm", ""] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_of_a_capture_name_its_file() {
        let refused = CaptureFile::create(PathBuf::from("/no/such/a.pcap")).map(drop).unwrap_err();
        assert!(refused.to_string().contains("/no/such/a.pcap: No such file"), "{refused}");
        let mut full = CaptureFile::create(PathBuf::from("/dev/full")).unwrap();
        full.write_all(b"frame").unwrap_err();
        let error = full.first_error.get().unwrap();
        assert!(error.to_string().contains("/dev/full: No space left"), "{error}");
    }
}
