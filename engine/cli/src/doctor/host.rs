//! Checks of the host and the process: privileges, memory, CPUs, clock, kernel, settings.

use caps::{CapSet, Capability, CapsHashSet};
use feroce_engine::device::settings::Settings;
use feroce_engine::device::{Driver, PortKind};
use feroce_engine::port::kind::BufferMemory;
use feroce_engine::port::udp;
use feroce_engine::sys;
use feroce_wire::PathMtu;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::User;

use super::check::{Check, Verdict};
use crate::failure::{self, Failure};
use crate::privileges;

/// With fewer free hugepages, a device with default limits needs ordinary pages, too.
const HUGEPAGES_WANTED: u64 = 32;
/// Recommended number of free hugepages.
const AMPLE_HUGEPAGES: u64 = 256;
/// Interface MTU that carries path MTU 4096.
const UDP_MTU: u32 = PathMtu::Mtu4096.bytes() + PathMtu::OVERHEAD;
/// Clock sources that are read without a system call.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

/// The checks.
pub const CHECKS: &[Check<Host>] = &[
    Check { id: "settings", what: "configuration file and environment", run: settings },
    Check { id: "port", what: "kind of port", run: port },
    Check { id: "user", what: "user to switch to", run: user },
    Check { id: "privilege", what: "privileges", run: privilege },
    Check { id: "kernel", what: "AF_XDP in the kernel", run: kernel },
    Check { id: "receive-buffer", what: "receive buffers of UDP sockets", run: receive_buffer },
    Check { id: "hugepages", what: "free hugepages of 2 MiB", run: hugepages },
    Check { id: "cpus", what: "CPUs for this process", run: cpus },
    Check { id: "helper-cpus", what: "CPUs that helper threads are pinned to", run: helper_cpus },
    Check { id: "clock", what: "clock source", run: clock },
];

/// State of the host and the process.
#[derive(Debug)]
pub struct Host {
    settings: Result<Settings, String>,
    fallback: Settings,
    unknown_variables: Vec<String>,
    capabilities: CapsHashSet,
    initial_user_namespace: bool,
    users: UserNamespace,
    hugepages: Option<u64>,
    /// Hugepages of 2 MiB, free or in use.
    all_hugepages: u64,
    /// Free hugepages of 1 GiB.
    gigantic_pages: u64,
    /// Bytes that the process may lock after raising its limit; `None`: no limit.
    pub memlock: Option<u64>,
    cpus: usize,
    clock: Option<String>,
    kernel_has_af_xdp: bool,
    /// Receive buffer that a user may ask for, in bytes (`net.core.rmem_max`).
    rmem_max: Option<u64>,
    /// Major and minor version.
    pub kernel: (u32, u32),
}

impl Host {
    /// Reads the state.
    pub fn read(settings: Result<Settings, Failure>) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let pages = |size: &str, which: &str| {
            let count = read(&format!("/sys/kernel/mm/hugepages/hugepages-{size}kB/{which}"))?;
            count.trim().parse::<u64>().ok()
        };
        let clock = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let protocols = read("/proc/thread-self/net/protocols").unwrap_or_default();
        let has_bpf = std::fs::exists("/proc/sys/kernel/unprivileged_bpf_disabled");
        let users = read("/proc/self/uid_map").unwrap_or_default();
        let capabilities = caps::read(None, CapSet::Effective).unwrap_or_default();
        let unlimited = [Capability::CAP_IPC_LOCK, Capability::CAP_SYS_RESOURCE];
        let unlimited = unlimited.iter().any(|capability| capabilities.contains(capability));
        let memlock = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(_, hard)| hard);
        Self {
            settings: settings.map_err(|failure| failure::chain(&failure)),
            fallback: Settings::default(),
            unknown_variables: Settings::unknown_variables(),
            capabilities,
            initial_user_namespace: users.split_whitespace().eq(["0", "0", "4294967295"]),
            users: UserNamespace {
                groups: read("/proc/self/gid_map").unwrap_or_default(),
                keeps_groups: read("/proc/self/setgroups")
                    .is_some_and(|text| text.trim() == "deny"),
                users,
            },
            hugepages: pages("2048", "free_hugepages"),
            all_hugepages: pages("2048", "nr_hugepages").unwrap_or(0),
            gigantic_pages: pages("1048576", "free_hugepages").unwrap_or(0),
            memlock: (!unlimited && memlock != RLIM_INFINITY).then_some(memlock),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            clock: clock.map(|text| text.trim().to_owned()),
            kernel_has_af_xdp: protocols.lines().any(|line| line.starts_with("XDP "))
                && has_bpf.unwrap_or(false),
            rmem_max: read("/proc/sys/net/core/rmem_max").and_then(|text| text.trim().parse().ok()),
            kernel: sys::kernel_version(),
        }
    }

    /// The settings in effect; the defaults if the settings cannot be read.
    pub fn settings(&self) -> &Settings {
        self.settings.as_ref().unwrap_or(&self.fallback)
    }

    /// Returns true if the settings allow a port of this kind.
    pub fn may_use(&self, kind: &str) -> bool {
        let exists = PortKind::NAMES.iter().any(|(name, _)| *name == kind);
        let chosen = self.settings().port_kind;
        exists && (chosen == PortKind::Auto || chosen.to_string() == kind)
    }

    /// Returns true if a port of this kind, on a kernel interface, could be opened: by the
    /// settings, the privileges and the kernel.
    pub fn could_open(&self, kind: &str) -> bool {
        let could = match kind {
            "af_xdp" => self.may_af_xdp() && self.kernel_has_af_xdp,
            "udp" => true,
            _ => self.capabilities.contains(&Capability::CAP_NET_RAW),
        };
        self.may_use(kind) && could
    }

    /// The command that makes `wanted` hugepages free. Hugepages in use stay.
    fn free_hugepages(&self, wanted: u64) -> String {
        let more = wanted.saturating_sub(self.hugepages.unwrap_or(0));
        format!("`sysctl vm.nr_hugepages={}` (in /etc/sysctl.d to stay)", self.all_hugepages + more)
    }

    /// Returns true if this process has the privileges for an AF_XDP port.
    fn may_af_xdp(&self) -> bool {
        let has = |capability| self.capabilities.contains(&capability);
        let bpf = has(Capability::CAP_BPF) || has(Capability::CAP_SYS_ADMIN);
        self.initial_user_namespace
            && bpf
            && has(Capability::CAP_NET_ADMIN)
            && has(Capability::CAP_NET_RAW)
    }
}

fn settings(host: &Host) -> Option<Verdict> {
    let unknown = &host.unknown_variables;
    match &host.settings {
        Ok(_) if !unknown.is_empty() => Verdict::warning(
            format!("the environment has variables of no setting: {}", unknown.join(", ")),
            "`feroce config --help` lists the settings; the variable of a setting is FEROCE_ and \
             its name in capitals",
        ),
        Ok(_) => Verdict::ok("valid (`feroce config` shows the result)"),
        Err(message) => Verdict::error(
            message.clone(),
            "correct the value; `feroce config --help` lists the settings",
        ),
    }
}

fn port(host: &Host) -> Option<Verdict> {
    let kind = host.settings().port_kind;
    match kind.missing_feature() {
        Some(feature) => Verdict::error(
            format!("{kind}, which this program was built without"),
            format!(
                "`cargo build --release -p feroce --features {feature}`, or set another `port_kind`"
            ),
        ),
        None => Verdict::ok(kind.to_string()),
    }
}

fn user(host: &Host) -> Option<Verdict> {
    let remedy = "leave the setting `user` empty to keep the present user";
    let user = match privileges::find_of(host.settings()).transpose()? {
        Ok(user) => user,
        Err(failure) => return Verdict::error(failure.to_string(), remedy),
    };
    if privileges::is_current_user(&user) {
        return Verdict::ok(user.name);
    }
    let needed = [Capability::CAP_SETUID, Capability::CAP_SETGID];
    let may = needed.iter().all(|capability| host.capabilities.contains(capability));
    match (may, host.users.has(&user)) {
        (true, true) => Verdict::ok(user.name),
        (false, _) => Verdict::error(
            format!("switching to {} requires CAP_SETUID and CAP_SETGID", user.name),
            format!("run as root or as {}, or {remedy}", user.name),
        ),
        (true, false) => Verdict::error(
            format!("a process in this user namespace cannot switch to {}", user.name),
            format!("run outside this user namespace, or {remedy}"),
        ),
    }
}

/// The users and groups that processes of this user namespace can have.
#[derive(Debug)]
struct UserNamespace {
    /// Contents of `uid_map` and `gid_map`: lines of first id inside, first id outside, count.
    users: String,
    groups: String,
    /// Groups cannot be changed, as in a namespace made without privileges.
    keeps_groups: bool,
}

impl UserNamespace {
    fn has(&self, user: &User) -> bool {
        let has = |map: &str, id: u32| {
            map.lines().any(|line| {
                let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>());
                let (first, count) = (numbers.next(), numbers.nth(1));
                matches!((first, count), (Some(Ok(first)), Some(Ok(count)))
                    if (first..first + count).contains(&id.into()))
            })
        };
        !self.keeps_groups
            && has(&self.users, user.uid.as_raw())
            && has(&self.groups, user.gid.as_raw())
    }
}

fn privilege(host: &Host) -> Option<Verdict> {
    const REMEDY: &str = "run as root, or use \
        `setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep` on `feroce` or a program built \
        on it";
    let has = |capability| host.capabilities.contains(&capability);
    let kind = host.settings().port_kind;
    if !kind.is_on_kernel() {
        return Verdict::ok(format!(
            "not checked: the driver of the {kind} device decides which are needed"
        ));
    }
    if host.may_use("af_xdp") && host.may_af_xdp() {
        return Verdict::ok("sufficient for AF_XDP");
    }
    let place = if host.initial_user_namespace { "" } else { " in the initial user namespace" };
    if !host.may_use("packet") && host.may_use("udp") {
        return Verdict::ok("none are needed for UDP sockets");
    }
    if !host.may_use("packet") {
        return Verdict::error(
            format!("AF_XDP requires CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF{place}"),
            REMEDY,
        );
    }
    match (has(Capability::CAP_NET_RAW), has(Capability::CAP_NET_ADMIN)) {
        (false, _) if host.may_use("udp") => Verdict::info(
            "none: UDP sockets will be used; the packet port is faster and requires CAP_NET_RAW",
        ),
        (false, _) => Verdict::error("the packet port requires CAP_NET_RAW", REMEDY),
        (true, false) => Verdict::warning(
            "only the packet port can open; resolving neighbours requires CAP_NET_ADMIN",
            REMEDY,
        ),
        (true, true) => Verdict::info(format!(
            "sufficient for the packet port; AF_XDP also requires CAP_BPF{place}"
        )),
    }
}

fn kernel(host: &Host) -> Option<Verdict> {
    if !host.may_use("af_xdp") {
        return None;
    }
    let (major, minor) = host.kernel;
    match (host.kernel_has_af_xdp, host.may_use("packet")) {
        (true, _) => Verdict::ok(format!("supported by this kernel (Linux {major}.{minor})")),
        (false, true) => {
            Verdict::info("not supported by this kernel: the packet port will be used")
        }
        (false, false) => Verdict::error(
            "not supported by this kernel",
            "use a kernel with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or set `port_kind`",
        ),
    }
}

/// A process with CAP_NET_ADMIN in the initial user namespace has no limit.
fn receive_buffer(host: &Host) -> Option<Verdict> {
    let may_more =
        host.initial_user_namespace && host.capabilities.contains(&Capability::CAP_NET_ADMIN);
    let uses_udp = !host.could_open("af_xdp") && !host.could_open("packet");
    let limit = host.rmem_max.filter(|_| uses_udp && host.may_use("udp") && !may_more)?;
    let (window, wanted) = (udp::window_of(limit, UDP_MTU), host.settings().window);
    let found = format!("{limit} bytes, which hold {window} packets of path MTU 4096");
    match window < u64::from(wanted) {
        true => Verdict::hint(
            format!("{found}: a QP has no more outstanding"),
            format!(
                "as root: `sysctl net.core.rmem_max={}` (in /etc/sysctl.d to stay) allows the \
                 {wanted} of the setting `window`",
                limit * u64::from(wanted).div_ceil(window.max(1))
            ),
        ),
        false => Verdict::ok(found),
    }
}

fn hugepages(host: &Host) -> Option<Verdict> {
    if let Some(buffers) = host.settings().port_kind.entry().and_then(|entry| entry.buffers) {
        let config = host.settings().device_config();
        return packet_buffers(host, &buffers(&config.ports, config.cores), config.cores);
    }
    let remedy = host.free_hugepages(AMPLE_HUGEPAGES);
    match host.hugepages {
        None => Verdict::info(
            "this kernel has no hugepages of 2 MiB: Feroce uses ordinary pages, which is slower",
        ),
        Some(0) => Verdict::hint("none: Feroce uses ordinary pages, which is slower", remedy),
        Some(free) if free < HUGEPAGES_WANTED => Verdict::hint(
            format!("{free}: Feroce uses ordinary pages for a part of its memory, which is slower"),
            remedy,
        ),
        Some(free) => Verdict::ok(free.to_string()),
    }
}

/// Checks the memory of a port that allocates its packet buffers when it opens, from hugepages of
/// every size unless its configuration chooses ordinary memory.
fn packet_buffers(host: &Host, memory: &BufferMemory, cores: usize) -> Option<Verdict> {
    let needed = memory.needed_mib;
    let buffers = match cores {
        1 => format!("the packet buffers take {needed} MiB"),
        cores => format!("the packet buffers of {cores} cores take {needed} MiB"),
    };
    let setting = memory.setting;
    let ordinary = format!("set `{setting}` to a number of MiB of ordinary memory");
    match memory.ordinary_mib {
        Some(mib) if u64::from(mib) < needed => Verdict::error(
            format!("not used; setting `{setting}` gives {mib} MiB of ordinary memory: {buffers}"),
            ordinary,
        ),
        Some(mib) => {
            Verdict::ok(format!("not used; setting `{setting}` gives {mib} MiB of ordinary memory"))
        }
        None => {
            let (free, larger) = (host.hugepages.unwrap_or(0), host.gigantic_pages);
            let found = format!("{free}, and {larger} of 1 GiB");
            let remedy = host.free_hugepages(needed.div_ceil(2).max(AMPLE_HUGEPAGES));
            let remedy = format!("{remedy}; or {ordinary}");
            match 2 * free + 1024 * larger {
                0 => {
                    let kind = host.settings().port_kind;
                    Verdict::error(format!("none: port {kind} does not open"), remedy)
                }
                mib if mib < needed => Verdict::error(format!("{found}: {buffers}"), remedy),
                _ => Verdict::ok(found),
            }
        }
    }
}

fn cpus(host: &Host) -> Option<Verdict> {
    let cores = host.settings().cores;
    let spins = matches!(host.settings().helper, Driver::SpinningHelper(_));
    match host.cpus {
        cpus if spins && cpus <= cores => Verdict::warning(
            format!("{cpus}, for {cores} helpers that spin and the program itself"),
            "set `helper = \"adaptive\"` or fewer `cores`, or allow more CPUs (`taskset -p PID`)",
        ),
        1 => Verdict::info(
            "1: the program and the helper thread share the CPU, so scheduling adds latency",
        ),
        cpus => Verdict::ok(cpus.to_string()),
    }
}

fn helper_cpus(host: &Host) -> Option<Verdict> {
    let Driver::SpinningHelper(cpus) = &host.settings().helper else { return None };
    if cpus.is_empty() {
        return None;
    }
    let settings = host.settings();
    if cpus.len() != settings.cores {
        return Verdict::error(
            format!(
                "setting `helper` names {}, but there are {} cores",
                cpus.len(),
                settings.cores
            ),
            "name one CPU per core in the setting `helper`",
        );
    }
    let absent = |cpu: &&usize| {
        !std::fs::exists(format!("/sys/devices/system/cpu/cpu{cpu}")).unwrap_or(true)
    };
    match cpus.iter().find(absent) {
        Some(cpu) => Verdict::warning(
            format!("CPU {cpu} does not exist: its helper thread is not pinned"),
            "name existing CPUs in the setting `helper` (`lscpu -e` lists them)",
        ),
        None => Verdict::ok("all exist"),
    }
}

fn clock(host: &Host) -> Option<Verdict> {
    let clock = host.clock.as_deref()?;
    match FAST_CLOCKS.contains(&clock) {
        true => Verdict::ok(clock),
        false => Verdict::warning(
            format!("{clock}: each turn of a core needs a system call to read the clock"),
            "`cat /sys/devices/system/clocksource/clocksource0/available_clocksource`; boot with \
             clocksource=tsc tsc=reliable if the hardware's TSC is reliable",
        ),
    }
}
