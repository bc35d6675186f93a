//! The device plug-in API of Kubernetes, version v1beta1: messages, constants, services. Names and
//! numbers are those of `pkg/apis/deviceplugin/v1beta1` of `k8s.io/kubelet`. A field that the
//! plug-in neither reads nor writes is left out; protobuf ignores it.

use std::collections::BTreeMap;

/// Version of the API.
pub const VERSION: &str = "v1beta1";
/// Health of a device that pods can use.
pub const HEALTHY: &str = "Healthy";
/// Health of a device that no new pod gets.
pub const UNHEALTHY: &str = "Unhealthy";
/// Name of kubelet's socket in the folder of the device plug-ins' sockets.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// No data.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// Which optional calls kubelet makes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DevicePluginOptions {
    /// Kubelet calls `PreStartContainer`.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Kubelet may call `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// A device plug-in introduces itself to kubelet.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// File name of the plug-in's socket, in the folder of kubelet's socket.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource that pods ask for.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// Options.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// All devices of a plug-in.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListAndWatchResponse {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// One device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// Name, at most 63 characters.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// Kubelet is about to start a container of a pod for each entry.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateRequest {
    /// One entry per container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// The devices of a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateRequest {
    /// Names of the devices.
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

/// What the containers get, in the order of the request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateResponse {
    /// One entry per container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// What a container gets.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateResponse {
    /// Environment variables.
    #[prost(btree_map = "string, string", tag = "1")]
    pub envs: BTreeMap<String, String>,
    /// Folders of the host.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
}

/// A folder of the host in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Path on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// The container cannot write.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// Kubelet asks which devices to prefer; this plug-in announces that it has no preference.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationRequest {}

/// Preferred devices.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationResponse {}

/// Kubelet starts a container; this plug-in announces that it does not need this call.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PreStartContainerRequest {}

/// The container may start.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PreStartContainerResponse {}

// `registration_client` and `_server`, the service of kubelet, and `device_plugin_client` and
// `_server`, the service of a device plug-in.
include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
