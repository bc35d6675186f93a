//! The plug-in's side of kubelet: serves the plug-in's socket, registers it, and does both again
//! when kubelet has restarted.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Status};

use crate::api::device_plugin_server::DevicePluginServer;
use crate::api::registration_client::RegistrationClient;
use crate::api::{DevicePluginOptions, KUBELET_SOCKET, RegisterRequest, VERSION};
use crate::health;
use crate::plugin::{Offer, Plugin};

/// File name of the plug-in's socket.
const OWN_SOCKET: &str = "feroce.sock";

/// Errors of a call to a kubelet that has ended meanwhile, or is too slow.
const NO_ANSWER: [Code; 3] = [Code::Unavailable, Code::Cancelled, Code::DeadlineExceeded];

/// What the plug-in does.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder of kubelet's socket and of the plug-ins' sockets.
    pub folder: PathBuf,
    /// The resource that pods ask for.
    pub resource: String,
    /// What the plug-in offers.
    pub offer: Offer,
    /// Time between two checks of the daemon's and of kubelet's socket.
    pub interval: Duration,
}

/// Why the plug-in ends.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The plug-in cannot create its socket.
    #[error("cannot listen at {}: {source}", path.display())]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Kubelet refuses the plug-in: kubelet expects a plug-in to end then.
    #[error("kubelet refuses the resource {resource}: {}", status.message())]
    Refused {
        /// The resource.
        resource: String,
        /// Kubelet's answer.
        status: Box<Status>,
    },
}

/// Identity of a socket's file. A new file may get the inode number of the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let about = std::fs::symlink_metadata(path).ok()?;
        let changed = (about.ctime(), about.ctime_nsec());
        Some(Self { device: about.dev(), inode: about.ino(), changed })
    }
}

/// A served socket. Its end removes the file; connections stay until their kubelet ends.
struct Served {
    task: JoinHandle<Result<(), tonic::transport::Error>>,
    path: PathBuf,
    identity: Option<Identity>,
}

impl Served {
    fn start(config: &Config, health: watch::Receiver<bool>) -> Result<Self, PluginError> {
        let path = config.folder.join(OWN_SOCKET);
        let _ = std::fs::remove_file(&path); // That of an earlier plug-in.
        let listener = UnixListener::bind(&path)
            .map_err(|source| PluginError::Listen { path: path.clone(), source })?;
        let identity = Identity::of(&path);
        let service = DevicePluginServer::new(Plugin::new(config.offer.clone(), health));
        let connections = UnixListenerStream::new(listener);
        let server = Server::builder().serve_with_incoming(service, connections);
        Ok(Self { task: tokio::spawn(server), path, identity })
    }

    /// Returns true if the socket can be reached by its name.
    fn is_there(&self) -> bool {
        self.identity.is_some() && Identity::of(&self.path) == self.identity
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path); // Kubelet may have removed it meanwhile.
        }
    }
}

/// Serves kubelet until an error ends the plug-in.
///
/// # Errors
/// See [`PluginError`].
pub async fn serve(config: &Config) -> Result<(), PluginError> {
    let (health, watched) = watch::channel(false);
    let mut checks = tokio::time::interval(config.interval);
    let mut problem = None;
    loop {
        // Kubelet removes all sockets in the folder when it starts.
        let served = Served::start(config, watched.clone())?;
        let mut registered = None;
        while served.is_there() {
            update(&health, &config.offer.socket, &mut problem);
            let kubelet = Identity::of(&config.folder.join(KUBELET_SOCKET));
            if registered.is_some() && kubelet != registered {
                break;
            }
            if registered.is_none() && kubelet.is_some() && register(config).await? {
                say(&format!("registered {}", config.resource));
                registered = kubelet;
            }
            checks.tick().await;
        }
        say("kubelet has ended or restarted");
        checks.tick().await;
    }
}

/// Checks the daemon, and says when its state has changed.
fn update(health: &watch::Sender<bool>, socket: &Path, problem: &mut Option<String>) {
    let found = health::check(socket).err().map(|error| error.to_string());
    let is_healthy = found.is_none();
    let is_first = problem.is_none() && !*health.borrow();
    if found != *problem || (is_first && is_healthy) {
        match &found {
            None => say(&format!("{}: the daemon is there", socket.display())),
            Some(error) => say(&format!("{}: no daemon: {error}", socket.display())),
        }
    }
    *problem = found;
    health.send_if_modified(|old| std::mem::replace(old, is_healthy) != is_healthy);
}

/// Registers the plug-in. Returns false if kubelet does not listen yet.
async fn register(config: &Config) -> Result<bool, PluginError> {
    let address = format!("unix://{}", config.folder.join(KUBELET_SOCKET).display());
    let Ok(endpoint) = Endpoint::from_shared(address) else { return Ok(false) };
    let Ok(channel) = endpoint.timeout(Duration::from_secs(10)).connect().await else {
        return Ok(false);
    };
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: OWN_SOCKET.to_owned(),
        resource_name: config.resource.clone(),
        options: Some(DevicePluginOptions::default()),
    };
    match RegistrationClient::new(channel).register(request).await {
        Ok(_) => Ok(true),
        Err(status) if NO_ANSWER.contains(&status.code()) => Ok(false),
        Err(status) => {
            let (resource, status) = (config.resource.clone(), Box::new(status));
            Err(PluginError::Refused { resource, status })
        }
    }
}

fn say(message: &str) {
    eprintln!("feroce-device-plugin: {message}");
}
