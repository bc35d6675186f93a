//! `feroce run`: starts a verbs application on Feroce's libraries, in an environment where the
//! application finds its devices.
//!
//! Input: the options, the settings, and the program's file and libraries. The program replaces
//! this process by `exec`: its exit code is the process's exit code, and its private mounts end
//! with it.
//!
//! This module changes the private mount namespace and the environment of this process only. It
//! opens no device and drops no privileges; the host's files, interfaces and other processes stay
//! as they are.

pub mod counters;
mod entry;
mod interface;
mod libraries;
mod loader;
mod mounts;
mod pci;
mod program;
mod python;
mod sysfs;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::{Args, ValueHint};
use feroce_engine::device::settings::Settings;

use crate::doctor;
use crate::failure::Failure;
use libraries::Libraries;

/// Options of `feroce run`.
#[derive(Debug, Args)]
pub struct Options {
    /// Interface to use as the RNIC; with several, they are feroce0, feroce1, ... [default: the
    /// settings, else the interface of the default route, else the only usable one]
    #[arg(short, long, value_name = "IFACE", value_delimiter = ',')]
    interface: Vec<String>,
    /// Do not print which interface was chosen
    #[arg(short, long)]
    quiet: bool,
    /// Capture all frames of the device to a pcap file; further devices and cores write
    /// FILE.feroce1, FILE.1, ...
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pcap: Option<PathBuf>,
    /// Bytes of each frame to keep [default: all]
    #[arg(
        long,
        value_name = "BYTES",
        requires = "pcap",
        value_parser = clap::value_parser!(u32).range(64..)
    )]
    pcap_snap: Option<u32>,
    /// Put Feroce's libraries into LD_PRELOAD, too: for a program that has its own copies of
    /// libibverbs and librdmacm, such as a Python wheel
    #[arg(long)]
    preload: bool,
    /// Program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Starts the program. Returns only on failure.
pub fn run(options: &Options) -> Result<(), Failure> {
    let settings = Settings::load()?;
    let named =
        if options.interface.is_empty() { &settings.interfaces } else { &options.interface };
    let interfaces = if named.is_empty() {
        let (interface, why) = interface::choose()?;
        if !options.quiet {
            eprintln!("feroce: feroce0 is {}, {why}", interface.name);
        }
        vec![interface]
    } else {
        named.iter().map(|name| interface::named(name)).collect::<Result<_, _>>()?
    };
    let libraries = Libraries::find(options.preload)?;
    let (program, arguments) = options.program.split_first().expect("clap demands one");
    let program = program::find(program)?;
    let obstacles = program::obstacles(&program, &libraries);
    for obstacle in obstacles.into_iter().chain(python::obstacles(&program, &libraries)) {
        eprintln!("feroce: {}: {obstacle}", program.display());
    }
    // Some programs need no open device, for example to list devices.
    for obstacle in doctor::obstacles(&settings, &interfaces) {
        eprintln!("feroce: {obstacle}");
    }
    let devices = sysfs::devices(&interfaces)?;
    match mounts::create(&devices) {
        Err(why) => eprintln!(
            "feroce: programs that look for devices in /dev/infiniband and \
             /sys/class/infiniband will find none: {why}"
        ),
        Ok(()) => show_counters(&devices),
    }
    let names: Vec<_> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let mut command = Command::new(&program);
    if let Some(file) = &options.pcap {
        // The program may change its working directory before it opens the device.
        command.env("FEROCE_PCAP", std::path::absolute(file).map_err(Failure::Capture)?);
    }
    if let Some(bytes) = options.pcap_snap {
        command.env("FEROCE_PCAP_SNAP", bytes.to_string());
    }
    libraries.apply(&mut command);
    let error = command.args(arguments).env("FEROCE_INTERFACES", names.join(",")).exec();
    Err(Failure::Program { program, source: error })
}

/// Makes the counters of the devices live.
fn show_counters(devices: &[sysfs::Device]) {
    let folders: Vec<_> = devices.iter().map(sysfs::Device::folder).collect();
    let interfaces = devices.iter().map(|device| device.interface.as_str());
    let pairs: Vec<_> = interfaces.zip(folders.iter().map(PathBuf::as_path)).collect();
    if let Err(why) = counters::start(&pairs) {
        eprintln!("feroce: counters in /sys/class/infiniband will stay 0: {why}");
    }
}
