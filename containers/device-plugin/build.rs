//! Writes the two gRPC services of the device plug-in API, version v1beta1, from a table. No
//! `protoc` is needed: the messages are in `src/api.rs`.

use tonic_build::manual::{Builder, Method, Service};

/// Name of the method in Rust, name in the API, request, response.
type Row = (&'static str, &'static str, &'static str, &'static str);

/// The service of kubelet.
const REGISTRATION: &[Row] = &[("register", "Register", "RegisterRequest", "Empty")];

/// The method whose response is a stream.
const STREAMING: &str = "ListAndWatch";

/// The service of a device plug-in.
const DEVICE_PLUGIN: &[Row] = &[
    ("get_device_plugin_options", "GetDevicePluginOptions", "Empty", "DevicePluginOptions"),
    ("list_and_watch", STREAMING, "Empty", "ListAndWatchResponse"),
    (
        "get_preferred_allocation",
        "GetPreferredAllocation",
        "PreferredAllocationRequest",
        "PreferredAllocationResponse",
    ),
    ("allocate", "Allocate", "AllocateRequest", "AllocateResponse"),
    (
        "pre_start_container",
        "PreStartContainer",
        "PreStartContainerRequest",
        "PreStartContainerResponse",
    ),
];

fn service(name: &str, rows: &[Row]) -> Service {
    let methods = rows.iter().map(|(method, route, request, response)| {
        let method = Method::builder()
            .name(method)
            .route_name(route)
            .input_type(format!("super::{request}"))
            .output_type(format!("super::{response}"))
            .codec_path("tonic_prost::ProstCodec");
        if *route == STREAMING { method.server_streaming().build() } else { method.build() }
    });
    let service = Service::builder().name(name).package("v1beta1");
    methods.fold(service, |service, method| service.method(method)).build()
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    Builder::new()
        .compile(&[service("Registration", REGISTRATION), service("DevicePlugin", DEVICE_PLUGIN)]);
}
