//! The service that kubelet calls: which devices there are, and what a container with one gets.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::api::device_plugin_server::DevicePlugin;
use crate::api::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse, Device,
    DevicePluginOptions, Empty, HEALTHY, ListAndWatchResponse, Mount, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse, UNHEALTHY,
};

/// What the plug-in offers.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Number of devices: at most so many containers use the daemon at the same time.
    pub devices: u32,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The folder of the host that contains the sockets of all daemons, which containers see at the
    /// same path. Not the folder of the socket itself: it is removed with the daemon, and a
    /// container would keep the removed one.
    pub socket_root: PathBuf,
    /// The folder of the host with `bin/feroce` and `lib/feroce`, which containers see at the same
    /// path.
    pub install: PathBuf,
}

impl Offer {
    fn id(number: u32) -> String {
        format!("feroce-{number}")
    }

    fn list(&self, is_healthy: bool) -> ListAndWatchResponse {
        let health = if is_healthy { HEALTHY } else { UNHEALTHY };
        let device = |number| Device { id: Self::id(number), health: health.to_owned() };
        ListAndWatchResponse { devices: (0..self.devices).map(device).collect() }
    }

    fn has(&self, id: &str) -> bool {
        let number = id.strip_prefix("feroce-").and_then(|number| number.parse().ok());
        number.is_some_and(|number| number < self.devices && Self::id(number) == id)
    }

    /// What a container with devices gets.
    fn for_container(&self) -> ContainerAllocateResponse {
        let text = |path: &Path| path.display().to_string();
        let envs = [
            ("FEROCE_DAEMON_SOCKET", text(&self.socket)),
            // Without the daemon, opening a device fails; `auto` would use the container's own
            // interface.
            ("FEROCE_SHARING", "daemon".to_owned()),
            ("LD_LIBRARY_PATH", text(&self.install.join("lib/feroce"))),
        ];
        let mount = |path: &Path| Mount {
            container_path: text(path),
            host_path: text(path),
            // Connecting to a socket needs no writable mount.
            read_only: true,
        };
        ContainerAllocateResponse {
            envs: envs.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
            mounts: vec![mount(&self.socket_root), mount(&self.install)],
        }
    }
}

/// The service.
#[derive(Debug)]
pub struct Plugin {
    offer: Offer,
    /// Whether the daemon serves its socket.
    health: watch::Receiver<bool>,
}

impl Plugin {
    /// A service for `offer`, with the health that `health` says.
    pub fn new(offer: Offer, health: watch::Receiver<bool>) -> Self {
        Self { offer, health }
    }

    fn allocate_one(
        &self,
        request: &ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Status> {
        match request.devices_ids.iter().find(|id| !self.offer.has(id)) {
            Some(id) => Err(Status::invalid_argument(format!("there is no device {id}"))),
            None => Ok(self.offer.for_container()),
        }
    }
}

type DeviceLists = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = DeviceLists;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    /// A list at once, and one whenever the health changes.
    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<DeviceLists>, Status> {
        let offer = self.offer.clone();
        let lists = WatchStream::new(self.health.clone());
        Ok(Response::new(Box::pin(lists.map(move |is_healthy| Ok(offer.list(is_healthy))))))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let responses: Result<_, _> = requests.iter().map(|one| self.allocate_one(one)).collect();
        Ok(Response::new(AllocateResponse { container_responses: responses? }))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("all devices are equal"))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
