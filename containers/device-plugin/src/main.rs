//! `feroce-device-plugin`: the Kubernetes device plug-in of Feroce. Pods that ask for the resource
//! `rdma/feroce` get the socket of the node's daemon (`feroce up`) and Feroce's libraries.
//!
//! | question | file |
//! |---|---|
//! | which messages do kubelet and plug-in exchange? | `api.rs`; the services: `build.rs` |
//! | what does a container get? | `plugin.rs` |
//! | when does the plug-in register? | `kubelet.rs` |
//! | when is a device unhealthy? | `health.rs` |
#![forbid(unsafe_code)]

mod api;
mod health;
mod kubelet;
mod plugin;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use kubelet::Config;
use plugin::Offer;

/// Kubernetes device plug-in: pods that ask for `rdma/feroce` can use the node's `feroce up`
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
A container gets the folder of the daemons' sockets and the installation of Feroce, read-only, and \
FEROCE_DAEMON_SOCKET, FEROCE_SHARING and LD_LIBRARY_PATH. Devices are unhealthy while no daemon \
listens at the socket.

Exit codes:
    0  ok: ended by SIGINT or SIGTERM
    1  failed: the plug-in cannot create its socket, or kubelet refuses the plug-in
    2  usage: the command line is wrong, or the network namespace cannot be read"
)]
struct Options {
    /// Interface whose daemon pods use
    #[arg(long, value_name = "IFACE", required_unless_present = "socket")]
    interface: Option<String>,
    /// Socket of the daemon [default: SOCKET_DIR/NAMESPACE/IFACE, where NAMESPACE is the inode
    /// number of the plug-in's network namespace]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    socket: Option<PathBuf>,
    /// Folder that contains the sockets of all daemons (`feroce up --socket-dir`)
    #[arg(long, value_name = "DIR", default_value = "/run/feroce", value_parser = absolute)]
    socket_dir: PathBuf,
    /// Folder of the host with bin/feroce and lib/feroce
    #[arg(long, value_name = "DIR", default_value = "/opt/feroce", value_parser = absolute)]
    install: PathBuf,
    /// Number of devices: at most so many containers use the daemon at the same time
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    devices: u32,
    /// Name of the resource
    #[arg(long, value_name = "NAME", default_value = "rdma/feroce")]
    resource: String,
    /// Folder of kubelet's socket
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    kubelet_dir: PathBuf,
    /// Milliseconds between two checks of the daemon's and of kubelet's socket
    #[arg(long, value_name = "MS", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    match text.starts_with('/') {
        true => Ok(text.into()),
        false => Err("expected an absolute path".to_owned()),
    }
}

impl Options {
    fn config(self) -> Result<Config, String> {
        let socket = match (self.socket, self.interface) {
            (Some(socket), _) => socket,
            (None, interface) => {
                let namespace = std::fs::metadata("/proc/self/ns/net")
                    .map_err(|error| format!("cannot read the network namespace: {error}"))?;
                let folder = self.socket_dir.join(namespace.ino().to_string());
                folder.join(interface.expect("clap requires one of the two"))
            }
        };
        if !socket.starts_with(&self.socket_dir) {
            let (socket, folder) = (socket.display(), self.socket_dir.display());
            return Err(format!("{socket} is not in {folder} (option --socket-dir)"));
        }
        Ok(Config {
            folder: self.kubelet_dir,
            resource: self.resource,
            offer: Offer {
                devices: self.devices,
                socket,
                socket_root: self.socket_dir,
                install: self.install,
            },
            interval: Duration::from_millis(self.interval),
        })
    }
}

/// Runs until an error or a signal ends the plug-in.
async fn run(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = kubelet::serve(config) => Ok(ended?),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

fn main() -> ExitCode {
    let failed = |error: &dyn std::fmt::Display| {
        eprintln!("feroce-device-plugin: {error}");
        ExitCode::FAILURE
    };
    let config = match Options::parse().config() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("feroce-device-plugin: {error}");
            return ExitCode::from(2);
        }
    };
    // One thread: there are a few messages per minute.
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => match runtime.block_on(run(&config)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error),
        },
        Err(error) => failed(&error),
    }
}
