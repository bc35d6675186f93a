//! The plug-in as a process, against a kubelet that speaks the device plug-in API over gRPC.

#[allow(dead_code)] // Each side uses a part of the API.
#[path = "../src/api.rs"]
mod api;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};

use api::device_plugin_client::DevicePluginClient;
use api::registration_server::{Registration, RegistrationServer};
use api::{
    AllocateRequest, ContainerAllocateRequest, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, Mount, PreStartContainerRequest, PreferredAllocationRequest,
    RegisterRequest,
};

/// Longer than anything takes here, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits for the result of `future`.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("it takes too long")
}

/// The part of kubelet that plug-ins call.
struct FakeRegistration {
    requests: mpsc::UnboundedSender<RegisterRequest>,
    refuses: bool,
}

#[tonic::async_trait]
impl Registration for FakeRegistration {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.requests.send(request.into_inner()).expect("the test waits");
        match self.refuses {
            true => Err(Status::unknown("the resource name is not allowed")),
            false => Ok(Response::new(Empty {})),
        }
    }
}

/// A kubelet.
struct Kubelet {
    requests: mpsc::UnboundedReceiver<RegisterRequest>,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Kubelet {
    /// Starts a kubelet, which removes the sockets in `folder`, as the real one does.
    fn start(folder: &Path, refuses: bool) -> Self {
        for entry in std::fs::read_dir(folder).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let (sender, requests) = mpsc::unbounded_channel();
        let listener = UnixListener::bind(folder.join(api::KUBELET_SOCKET)).unwrap();
        let service = RegistrationServer::new(FakeRegistration { requests: sender, refuses });
        let connections = UnixListenerStream::new(listener);
        let server = Server::builder().serve_with_incoming(service, connections);
        Self { requests, task: tokio::spawn(server) }
    }

    async fn request(&mut self) -> RegisterRequest {
        soon(self.requests.recv()).await.expect("the kubelet serves")
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The folders of a node.
struct Node {
    kubelet: TempDir,
    sockets: TempDir,
}

impl Node {
    fn new() -> Self {
        Self { kubelet: TempDir::new().unwrap(), sockets: TempDir::new().unwrap() }
    }

    fn daemon_socket(&self) -> PathBuf {
        self.sockets.path().join("4026531840").join("eth0")
    }

    /// A daemon: for the plug-in, a listening socket.
    fn start_daemon(&self) -> OwnedFd {
        let path = self.daemon_socket();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&path);
        // The plug-in must not inherit the socket.
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 16).unwrap();
        socket
    }

    fn start_plugin(&self) -> Plugin {
        let mut command = plugin();
        command.arg("--kubelet-dir").arg(self.kubelet.path());
        command.arg("--socket").arg(self.daemon_socket());
        command.arg("--socket-dir").arg(self.sockets.path());
        command.args(["--install", "/opt/feroce", "--devices", "2", "--interval", "20"]);
        Plugin(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Connects to the plug-in, as kubelet does after a registration.
    async fn client(&self, endpoint: &str) -> DevicePluginClient<Channel> {
        let path = self.kubelet.path().join(endpoint);
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
        DevicePluginClient::new(soon(endpoint.connect()).await.unwrap())
    }
}

fn plugin() -> Command {
    Command::new(env!("CARGO_BIN_EXE_feroce-device-plugin"))
}

/// The plug-in's process.
struct Plugin(Child);

impl Plugin {
    /// Waits for the end. Returns the exit code, and what was said.
    fn wait(mut self) -> (i32, String) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code().expect("no signal"), said)
    }

    fn end(self) -> (i32, String) {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.wait()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.0.kill(); // It has ended, or the test fails.
        let _ = self.0.wait();
    }
}

fn devices(health: &str) -> ListAndWatchResponse {
    let device = |id: &str| Device { id: id.to_owned(), health: health.to_owned() };
    ListAndWatchResponse { devices: vec![device("feroce-0"), device("feroce-1")] }
}

/// Waits for a list.
async fn next(lists: &mut Streaming<ListAndWatchResponse>) -> ListAndWatchResponse {
    soon(lists.message()).await.unwrap().expect("the stream goes on")
}

fn request(ids: &[&str]) -> ContainerAllocateRequest {
    ContainerAllocateRequest { devices_ids: ids.iter().map(|id| (*id).to_owned()).collect() }
}

#[tokio::test]
async fn a_plugin_registers_and_its_devices_follow_the_daemon() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.kubelet.path(), false);
    let daemon = node.start_daemon();
    let plugin = node.start_plugin();
    let expected = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "feroce.sock".to_owned(),
        resource_name: "rdma/feroce".to_owned(),
        options: Some(DevicePluginOptions::default()),
    };
    assert_eq!(kubelet.request().await, expected);

    let mut client = node.client("feroce.sock").await;
    let options = client.get_device_plugin_options(Empty {}).await.unwrap().into_inner();
    assert_eq!(options, DevicePluginOptions::default());
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(next(&mut lists).await, devices("Healthy"));
    drop(daemon); // The socket's file stays, as after kill -9.
    assert_eq!(next(&mut lists).await, devices("Unhealthy"));
    let daemon = node.start_daemon();
    assert_eq!(next(&mut lists).await, devices("Healthy"));
    std::fs::remove_dir_all(node.daemon_socket().parent().unwrap()).unwrap();
    drop(daemon);
    assert_eq!(next(&mut lists).await, devices("Unhealthy"));

    let (code, said) = plugin.end();
    assert_eq!(code, 0, "{said}");
    for message in ["registered rdma/feroce", "the daemon is there", "no daemon: "] {
        assert!(said.contains(message), "{message}: {said}");
    }
    assert!(!node.kubelet.path().join("feroce.sock").exists(), "the socket is removed");
}

#[tokio::test]
async fn a_container_gets_the_socket_and_the_libraries() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.kubelet.path(), false);
    let _daemon = node.start_daemon();
    let _plugin = node.start_plugin();
    let mut client = node.client(&kubelet.request().await.endpoint).await;

    let containers = vec![request(&["feroce-0"]), request(&["feroce-1", "feroce-0"])];
    let allocation = AllocateRequest { container_requests: containers };
    let response = client.allocate(allocation).await.unwrap().into_inner().container_responses;
    assert_eq!(response.len(), 2);
    assert_eq!(response[0], response[1]);
    let socket = node.daemon_socket().display().to_string();
    let envs = [
        ("FEROCE_DAEMON_SOCKET", socket.as_str()),
        ("FEROCE_SHARING", "daemon"),
        ("LD_LIBRARY_PATH", "/opt/feroce/lib/feroce"),
    ];
    let found: Vec<_> = response[0].envs.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(found, envs);
    let mount = |path: &str| Mount {
        container_path: path.to_owned(),
        host_path: path.to_owned(),
        read_only: true,
    };
    let sockets = node.sockets.path().display().to_string();
    assert_eq!(response[0].mounts, [mount(&sockets), mount("/opt/feroce")]);

    for id in ["feroce-2", "feroce-01", "other", ""] {
        let allocation = AllocateRequest { container_requests: vec![request(&[id])] };
        let refusal = client.allocate(allocation).await.unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{id}");
    }
    let preferred = client.get_preferred_allocation(PreferredAllocationRequest {}).await;
    assert_eq!(preferred.unwrap_err().code(), Code::Unimplemented);
    client.pre_start_container(PreStartContainerRequest {}).await.unwrap();
}

#[tokio::test]
async fn a_plugin_waits_for_kubelet_and_registers_again_after_each_restart() {
    let node = Node::new();
    let _daemon = node.start_daemon();
    let plugin = node.start_plugin();
    for _ in 0..3 {
        let mut kubelet = Kubelet::start(node.kubelet.path(), false);
        let endpoint = kubelet.request().await.endpoint;
        let mut client = node.client(&endpoint).await;
        let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
        assert_eq!(next(&mut lists).await, devices("Healthy"));
    }
    let (code, said) = plugin.end();
    assert_eq!((code, said.matches("registered").count()), (0, 3), "{said}");
}

#[tokio::test]
async fn a_plugin_that_is_refused_fails() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.kubelet.path(), true);
    let plugin = node.start_plugin();
    kubelet.request().await;
    let (code, said) = tokio::task::spawn_blocking(|| plugin.wait()).await.unwrap();
    assert_eq!(code, 1, "{said}");
    let message = "kubelet refuses the resource rdma/feroce: the resource name is not allowed";
    assert!(said.contains(message), "{said}");
}

#[test]
fn wrong_command_lines_and_folders_are_told_apart() {
    let run = |arguments: &[&str]| {
        let output = plugin().args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    for (arguments, code, message) in [
        (&["--help"] as &[&str], 0, "Exit codes:"),
        (&["--version"], 0, "feroce-device-plugin "),
        (&[], 2, "--interface"),
        (&["--interface", "eth0", "--devices", "0"], 2, "--devices"),
        (&["--socket", "run/feroce/1/eth0"], 2, "an absolute path"),
        (&["--socket", "/tmp/eth0"], 2, "/tmp/eth0 is not in /run/feroce (option --socket-dir)"),
        (&["--interface", "eth0", "--kubelet-dir", "/nowhere"], 1, "cannot listen at /nowhere/"),
    ] {
        let (found, text) = run(arguments);
        assert!(found == code && text.contains(message), "{arguments:?}: {found}: {text}");
    }
}

/// The numbers of the fields, by the rules of protobuf's encoding: tag << 3 | 2 for strings and
/// messages, tag << 3 for the bool.
#[test]
fn messages_have_the_numbers_of_the_api() {
    let request = RegisterRequest {
        version: "v".to_owned(),
        endpoint: "e".to_owned(),
        resource_name: "r".to_owned(),
        options: Some(DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        }),
    };
    let bytes = b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x04\x08\x01\x10\x01";
    assert_eq!(request.encode_to_vec(), bytes);
    let list = ListAndWatchResponse { devices: vec![devices("h").devices[0].clone()] };
    assert_eq!(list.encode_to_vec(), b"\x0a\x0d\x0a\x08feroce-0\x12\x01h");
    let response = api::AllocateResponse {
        container_responses: vec![api::ContainerAllocateResponse {
            envs: [("n".to_owned(), "v".to_owned())].into(),
            mounts: vec![Mount {
                container_path: "c".to_owned(),
                host_path: "h".to_owned(),
                read_only: true,
            }],
        }],
    };
    let bytes = b"\x0a\x12\x0a\x06\x0a\x01n\x12\x01v\x12\x08\x0a\x01c\x12\x01h\x18\x01";
    assert_eq!(response.encode_to_vec(), bytes);
    let request = AllocateRequest { container_requests: vec![container("d")] };
    assert_eq!(request.encode_to_vec(), b"\x0a\x03\x0a\x01d");
}

fn container(id: &str) -> ContainerAllocateRequest {
    request(&[id])
}
