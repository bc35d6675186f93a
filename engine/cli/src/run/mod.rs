//! `feroce run`: starts a verbs application on Feroce's libraries, in an environment where the
//! application finds its devices.
//!
//! Input: the options, the settings, and the program's file and libraries. The program replaces
//! this process by `exec`: its exit code is the process's exit code, and its private mounts end
//! with it.
//!
//! This module changes the private mount namespace and the environment of this process only, or
//! creates a private folder for temporary files. It opens no device and drops no privileges; the
//! host's other files, interfaces and other processes stay as they are.

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
mod tree;
mod users;
mod view;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::{Args, ValueHint};
use feroce_engine::device::settings::Settings;

use crate::doctor;
use crate::failure::Failure;
use libraries::Libraries;
use view::View;

/// Options of `feroce run`.
#[derive(Debug, Args)]
pub struct Options {
    /// Interface to use as the RNIC; with several, they are feroce0, feroce1, ... [default: the
    /// settings, else the interface of the default route, else the only usable one]
    #[arg(short, long, value_name = "IFACE", value_delimiter = ',')]
    interface: Vec<String>,
    /// Do not print which interface was chosen, nor that a library shows the devices' files
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
    /// Show the devices in /dev/infiniband and /sys/class/infiniband without mounts, as for an
    /// ordinary user: the program stays in the mount namespace of the caller
    #[arg(long)]
    no_mounts: bool,
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
    let mut libraries = Libraries::find(options.preload)?;
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
    show_files(options, &devices, &mut libraries);
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

/// Shows the files of the devices at their places: by mounts, or by a library in the program.
/// Without either, the program can still open the devices.
fn show_files(options: &Options, devices: &[sysfs::Device], libraries: &mut Libraries) {
    let mounted = match options.no_mounts {
        true => Err("--no-mounts".to_owned()),
        false => mounts::create(devices).map_err(|why| why.to_string()),
    };
    let Err(why) = mounted else {
        if let Err(why) = show_counters(devices, None) {
            eprintln!("feroce: counters in /sys/class/infiniband will stay 0: {why}");
        }
        return;
    };
    match show_view(devices, libraries) {
        Ok(()) if options.quiet => {}
        Ok(()) => eprintln!(
            "feroce: a preloaded library shows the program /dev/infiniband and \
             /sys/class/infiniband ({why}); statically linked programs and direct system calls \
             find no device there"
        ),
        Err(failed) => eprintln!(
            "feroce: programs that look for devices in /dev/infiniband and /sys/class/infiniband \
             will find none: {why}; {failed}"
        ),
    }
}

/// Creates the folder that the library shows. The process of the counters keeps it.
fn show_view(devices: &[sysfs::Device], libraries: &mut Libraries) -> Result<(), String> {
    libraries.can_show_files()?;
    let view = View::create(devices).map_err(|error| error.to_string())?;
    show_counters(devices, Some(&view)).map_err(|error| error.to_string())?;
    libraries.show_files(view.root());
    view.leave();
    Ok(())
}

/// Makes the counters of the devices live.
fn show_counters(devices: &[sysfs::Device], view: Option<&View>) -> std::io::Result<()> {
    let folder = |device: &sysfs::Device| {
        view.map_or_else(|| device.folder(), |view| view.folder_of(device))
    };
    let folders: Vec<_> = devices.iter().map(folder).collect();
    let interfaces = devices.iter().map(|device| device.interface.as_str());
    let pairs: Vec<_> = interfaces.zip(folders.iter().map(PathBuf::as_path)).collect();
    let private = view.map(|view| Ok::<_, std::io::Error>((view.root(), view.lock()?)));
    counters::start(&pairs, private.transpose()?)
}
