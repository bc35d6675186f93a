//! The guest with Linux rxe, and the network between the guest and the engine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Result;
use crate::exit::{Guard, at_end};
use crate::net::{Namespace, command_in, ip};
use crate::process::{end, is_alive, last_lines, output};
use crate::setup::{Work, need_packages};

/// Packages to build and run the guest.
const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "mmdebstrap",
    "cpio",
    "kmod",
    "zstd",
    "xz-utils",
    "gcc",
    "libibverbs-dev",
    "iproute2",
    "iputils-ping",
    "ethtool",
    "openssh-client",
];
/// MTU of the links, in bytes.
pub const MTU: u32 = 4500;
/// MTU of the guest, in bytes. It makes rxe's path MTU 4096.
const GUEST_MTU: u32 = 4400;
/// The MAC address of the guest's RoCE interface.
pub const DATA_MAC: &str = "02:fe:00:00:01:01";
const CONTROL_MAC: &str = "02:fe:00:00:01:02";
/// What `tests/rxe/build.sh` makes.
const FILES: &str = "target/rxe-guest";

/// What the guest has.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    pub cpus: u32,
    /// Memory in MiB.
    pub mib: u32,
}

/// The engine's and the bridge's namespaces, and the guest if it runs.
#[derive(Debug)]
pub struct Guest {
    process: Option<(u32, Guard)>,
    machine: Machine,
    /// The namespace of the bridges.
    pub switch: Namespace,
    /// The namespace of the engine, with v0.
    pub engine: Namespace,
    console: PathBuf,
    ssh_config: PathBuf,
    pid_file: PathBuf,
}

impl Guest {
    /// Builds the guest's files, makes the network and boots the guest.
    pub fn new(purpose: &str, work: &Work) -> Result<Guest> {
        Self::with(purpose, work, Machine { cpus: 1, mib: 448 })
    }

    /// As [`Guest::new`], for the given machine.
    pub fn with(purpose: &str, work: &Work, machine: Machine) -> Result<Guest> {
        need_packages(PACKAGES)?;
        println!("Building the guest");
        if crate::process::run(Command::new("tests/rxe/build.sh").arg(FILES))? != 0 {
            return Err("tests/rxe/build.sh failed".into());
        }
        let (switch, engine) = network(purpose)?;
        let mut guest = Guest {
            process: None,
            machine,
            switch,
            engine,
            console: work.file("console"),
            ssh_config: work.file("ssh"),
            pid_file: work.file("pid"),
        };
        guest.addresses_for("af_xdp")?;
        guest.write_ssh_config(work)?;
        guest.boot()?;
        Ok(guest)
    }

    /// Gives v0 the engine's addresses. The DPDK port has them itself: then v0 has none, or the
    /// kernel would respond as well.
    pub fn addresses_for(&self, port: &str) -> Result {
        if port == "dpdk" {
            self.engine.ip("address flush dev v0")?;
            return self.engine.sysctl(&["net.ipv6.conf.v0.disable_ipv6=1"]);
        }
        self.engine.sysctl(&["net.ipv6.conf.v0.disable_ipv6=0"])?;
        self.engine.ip("address replace 10.77.0.1/24 dev v0")?;
        self.engine.ip("-6 address replace fd77::1/64 dev v0 nodad")
    }

    /// Boots the guest in QEMU without KVM, after ending one that runs.
    pub fn boot(&mut self) -> Result {
        self.process = None;
        let started = Instant::now();
        let _ = std::fs::remove_file(&self.console);
        let mut command = self.qemu()?;
        if !command.status()?.success() {
            return Err("QEMU does not start".into());
        }
        let pid: u32 = std::fs::read_to_string(&self.pid_file)?.trim().parse()?;
        self.process = Some((pid, at_end(move || end(pid))));
        for _ in 0..1200 {
            if self.is_ready() || !is_alive(pid) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        if !self.is_ready() {
            let console = self.console_tail();
            return Err(format!("the guest does not come up; its console says:\n{console}").into());
        }
        // This also resolves the neighbours before the first case.
        for address in ["10.77.0.2", "fd77::2"] {
            if !self.is_reachable(address)? {
                return Err(format!("the guest does not respond at {address}").into());
            }
        }
        println!("the guest booted in {} s", started.elapsed().as_secs());
        Ok(())
    }

    /// The command that starts QEMU. The kernel gets the clock rate and does not check the timer:
    /// on a busy machine the emulated timer loses ticks, and the kernel would wait for them
    /// forever.
    fn qemu(&self) -> Result<Command> {
        const NO_OFFLOADS: &str = "csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off,\
            guest_ufo=off,host_tso4=off,host_tso6=off,host_ufo=off,mrg_rxbuf=on";
        let khz = tsc_khz()?;
        let append = format!(
            "console=ttyS0 quiet panic=-1 no_timer_check lpj=4000000 tsc=reliable \
             tsc_early_khz={khz} mitigations=off apparmor=0 audit=0 nokaslr \
             rxe.data={DATA_MAC},{GUEST_MTU},10.77.0.2/24,fd77::2/64 \
             rxe.control={CONTROL_MAC},10.78.0.2/24"
        );
        let mut command = self.switch.command("qemu-system-x86_64");
        command
            .args(["-name", self.switch.name().trim_end_matches("-switch")])
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-M", "microvm,rtc=on"])
            .args(["-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", &self.machine.cpus.to_string(), "-m", &self.machine.mib.to_string()])
            .args(["-kernel", &format!("{FILES}/vmlinux")])
            .args(["-initrd", &format!("{FILES}/initrd.cpio"), "-append", &append])
            .args(["-serial", &format!("file:{}", self.console.display())])
            .args(["-device", "virtio-rng-device"])
            .args(["-pidfile", &self.pid_file.display().to_string(), "-daemonize"]);
        for (name, mac, more) in
            [("data", DATA_MAC, "host_mtu=9000,"), ("control", CONTROL_MAC, "")]
        {
            command
                .arg("-netdev")
                .arg(format!("tap,id={name},ifname=tap-{name},script=no,downscript=no,vhost=off"))
                .arg("-device")
                .arg(format!("virtio-net-device,netdev={name},mac={mac},{more}{NO_OFFLOADS}"));
        }
        Ok(command)
    }

    fn is_ready(&self) -> bool {
        let console = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&console).lines().any(|line| line.starts_with("guest ready"))
    }

    /// The last 20 lines of the guest's console.
    pub fn console_tail(&self) -> String {
        let console = std::fs::read(&self.console).unwrap_or_default();
        last_lines(&String::from_utf8_lossy(&console), 20)
    }

    /// Returns true if the guest responds to an echo request within 20 s.
    pub fn is_reachable(&self, address: &str) -> Result<bool> {
        let mut command = self.engine.command("ping");
        command.args(["-q", "-c", "1", "-w", "20", address]);
        Ok(command.output()?.status.success())
    }

    /// The ssh configuration, which knows the guest as `guest` and shares one connection.
    pub fn ssh_config(&self) -> String {
        self.ssh_config.display().to_string()
    }

    fn write_ssh_config(&self, work: &Work) -> Result {
        let key = std::path::absolute(FILES)?.join("key");
        let text = format!(
            "Host guest\n    HostName 10.78.0.2\n    User root\n    IdentityFile {}\n    \
             StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    LogLevel ERROR\n    \
             ControlMaster auto\n    ControlPath {}\n    ControlPersist yes\n",
            key.display(),
            work.file("ssh.%r").display()
        );
        Ok(std::fs::write(&self.ssh_config, text)?)
    }

    /// Runs a command line in the guest, for at most 30 s, and returns what it prints.
    pub fn shell(&self, line: &str) -> Result<String> {
        output(&mut self.command(30, line))
    }

    /// Runs a command line in the guest, for at most 40 s, and returns what it prints.
    ///
    /// # Errors
    /// If it fails: what it prints as errors.
    pub fn run(&self, line: &str) -> Result<String> {
        let done = self.command(40, line).output()?;
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
            false => {
                let errors = String::from_utf8_lossy(&done.stderr);
                Err(format!("'{line}' failed in the guest: {}", errors.trim()).into())
            }
        }
    }

    /// The command that runs a command line in the guest, for at most `seconds`.
    fn command(&self, seconds: u32, line: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args([&seconds.to_string(), "ip", "netns", "exec", self.engine.name()]);
        command.args(["ssh", "-n", "-F", &self.ssh_config(), "guest", line]);
        command
    }

    /// Copies a file into the guest.
    pub fn put(&self, file: &Path, path: &str) -> Result {
        let folder = Path::new(path).parent().ok_or("no folder")?.display();
        let line = format!("mkdir -p {folder} && cat > {path}");
        let mut command = self.engine.command("ssh");
        command.args(["-F", &self.ssh_config(), "guest", &line]).stdin(File::open(file)?);
        match command.status()?.success() {
            true => Ok(()),
            false => Err(format!("cannot copy {} into the guest", file.display()).into()),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut command = command_in(self.engine.name(), "ssh");
        command.args(["-F", &self.ssh_config(), "-O", "exit", "guest"]);
        let _ = output(&mut command);
    }
}

/// The processor's clock rate in kHz.
fn tsc_khz() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"));
    let mhz = line.and_then(|line| line.rsplit(' ').next()).ok_or("no clock rate in cpuinfo")?;
    let (whole, part) = mhz.split_once('.').unwrap_or((mhz, "0"));
    let part: u64 = format!("{part:0<3}")[..3].parse()?;
    Ok(whole.parse::<u64>()? * 1000 + part)
}

/// Two namespaces: the bridges on which the guest's TAPs and the engine's veths meet, and the
/// engine's. The control interface carries the agent's commands, so that the data interface carries
/// RoCE only and may have faults.
fn network(purpose: &str) -> Result<(Namespace, Namespace)> {
    let (switch, engine) = (Namespace::new(purpose, "switch")?, Namespace::new(purpose, "engine")?);
    // Only the guest and the engine have addresses and send.
    switch.sysctl(&["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"])?;
    engine.sysctl(&["net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0"])?;
    join(&switch, &engine, "data", "v0", MTU)?;
    join(&switch, &engine, "control", "c0", 1500)?;
    engine.ip("address add 10.78.0.1/24 dev c0")?;
    engine.ip("link set lo up")?;
    switch.plain_frames("v0-far");
    engine.plain_frames("v0");
    Ok((switch, engine))
}

/// Makes a bridge between a TAP called tap-NAME and `interface` in the engine's namespace.
fn join(switch: &Namespace, engine: &Namespace, name: &str, interface: &str, mtu: u32) -> Result {
    let (far, far_space) = (format!("{interface}-far"), switch.name());
    switch.ip(&format!("link add br-{name} type bridge forward_delay 0 mcast_snooping 0"))?;
    // `ip -n` does not apply to tuntap.
    let mut tap = switch.command("ip");
    tap.args(["tuntap", "add", "dev", &format!("tap-{name}"), "mode", "tap", "vnet_hdr"]);
    if !tap.status()?.success() {
        return Err(format!("cannot make tap-{name}").into());
    }
    ip(&format!(
        "link add {far} netns {far_space} mtu {mtu} type veth peer name {interface} netns {} \
         mtu {mtu}",
        engine.name()
    ))?;
    // QEMU may fall behind by the responses to a READ of 1 MiB.
    switch.ip(&format!("link set tap-{name} mtu {mtu} txqueuelen 5000 master br-{name} up"))?;
    switch.ip(&format!("link set {far} master br-{name} up"))?;
    switch.ip(&format!("link set br-{name} mtu {mtu} up"))?;
    engine.ip(&format!("link set {interface} up"))
}
