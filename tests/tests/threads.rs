//! Feroce's threads in a program: they take none of its signals, and do not run on CPUs that its
//! threads are bound to. Many polling threads share few CPUs. Every check is a process of its own,
//! because it changes the signal mask and the CPUs of the main thread.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use feroce_engine::cm::{CmConfig, DeviceKey};
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, ConnectionManager, Device, DeviceConfig, Driver,
    QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::verbs::{Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_tests::live::Net;
use feroce_tests::ports::{PortResources, RigPorts};
use feroce_tests::{addresses, manual_config};
use feroce_wire::{PathMtu, Psn};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// The checks by name.
const CHECKS: &[(&str, fn())] = &[
    ("signals_stay_with_the_program", signals_stay_with_the_program),
    ("the_mask_of_the_caller_is_restored", the_mask_of_the_caller_is_restored),
    ("no_thread_runs_on_the_cpu_of_a_bound_thread", no_thread_runs_on_the_cpu_of_a_bound_thread),
    ("a_thread_that_is_bound_later_is_seen", a_thread_that_is_bound_later_is_seen),
    ("cpus_given_in_the_first_second_stay", cpus_given_in_the_first_second_stay),
    ("a_confined_process_stays_inside", a_confined_process_stays_inside),
    ("no_helper_runs_on_the_cpu_of_a_poller", no_helper_runs_on_the_cpu_of_a_poller),
    ("many_pollers_share_a_cpu", many_pollers_share_a_cpu),
    ("a_poll_in_vain_gives_up_the_only_cpu", a_poll_in_vain_gives_up_the_only_cpu),
];

/// Runs all checks, or in a child the one of this name.
const CHECK: &str = "FR_THREADS_CHECK";

fn main() {
    if let Ok(name) = std::env::var(CHECK) {
        let check = CHECKS.iter().find(|(own, _)| *own == name).expect("a check");
        return check.1();
    }
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let mut failed = Vec::new();
    for (name, _) in CHECKS.iter().filter(|(name, _)| name.contains(&filter)) {
        let program = std::env::current_exe().expect("this program");
        let status = Command::new(program).env(CHECK, name).status().expect("a child");
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        if !status.success() {
            failed.push(format!("{name}: {status}"));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Two devices on one cable, driven by helpers.
struct Rig {
    devices: [Device; 2],
    _resources: PortResources,
}

impl Rig {
    fn new() -> Self {
        let config = DeviceConfig { driver: Driver::Helper, seed: None, ..manual_config(0) };
        let (ports, resources) = RigPorts::cable();
        let mut end = 0..2;
        let devices = ports.map(|port| {
            let addresses = addresses(end.next().unwrap());
            Device::with_ports(vec![port], addresses, config.clone()).unwrap()
        });
        Self { devices, _resources: resources }
    }

    /// Connects a QP of each device.
    fn connected(&self) -> ([QueuePair; 2], [CompletionQueue; 2], [Buffer; 2]) {
        let pds = self.devices.each_ref().map(Device::alloc_pd);
        let cqs = self.devices.each_ref().map(|device| device.create_cq(1024).unwrap());
        let buffers = pds.each_ref().map(|pd| pd.alloc_buffer(1 << 16, Access::ALL).unwrap());
        let init =
            |end: usize| QpInit { max_send_wr: 256, max_recv_wr: 256, ..QpInit::new(&cqs[end]) };
        let mut qps = [0, 1].map(|end| pds[end].create_qp(&init(end)).unwrap());
        let path_mtu = Some(PathMtu::Mtu4096);
        let options = ConnectOptions { path_mtu, timeout: 20, ..ConnectOptions::default() };
        let psns = [Psn::new(1), Psn::new(2)];
        let ends = [0, 1].map(|end| qps[end].endpoint(psns[end], 0).unwrap());
        for end in 0..2 {
            qps[end].connect(psns[end], &ends[1 - end], &options).unwrap();
        }
        (qps, cqs, buffers)
    }
}

/// A thread of this process.
#[derive(Debug)]
struct Thread {
    id: Pid,
    name: String,
    /// Blocked signals, bit 0 for signal 1.
    blocked: u64,
}

/// Returns the threads of this process but the main thread.
fn other_threads() -> Vec<Thread> {
    let tasks = fs::read_dir("/proc/self/task").expect("the kernel shows it");
    let ids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let own = std::process::id().cast_signed();
    let others = ids.filter(|id: &i32| *id != own);
    let found = others.filter_map(|id| {
        let status = fs::read_to_string(format!("/proc/self/task/{id}/status")).ok()?;
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim().to_owned()
        };
        let blocked = u64::from_str_radix(&field("SigBlk:"), 16).expect("a mask");
        Some(Thread { id: Pid::from_raw(id), name: field("Name:"), blocked })
    });
    found.collect()
}

/// Waits until `is_so`, at most for `limit`.
fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    is_so()
}

/// All signals are blocked but those of faults.
fn assert_all_blocked(names: &[&str]) {
    let threads = other_threads();
    for name in names {
        assert!(threads.iter().any(|thread| thread.name == *name), "no {name}: {threads:?}");
    }
    // glibc keeps signals 32 and 33 for itself; SIGKILL and SIGSTOP cannot be blocked.
    let mask = |signals: &[i32]| signals.iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
    let never = mask(&[9, 19, 32, 33]);
    use Signal::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    let faults = [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS].map(|signal| signal as i32);
    for thread in &threads {
        assert_eq!(thread.blocked | never, !mask(&faults), "{thread:x?}");
    }
}

fn signals_stay_with_the_program() {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGUSR2);
    mask.thread_block().expect("a valid mask");

    let rig = Rig::new();
    let manager = ConnectionManager::new(CmConfig::default(), Box::new(drop)).unwrap();
    manager.attach(DeviceKey(0), &rig.devices[0]).unwrap();
    let to = "192.0.2.9:7".parse().unwrap();
    let timeout = feroce_engine::time::Duration::from_millis(10);
    let id = manager.with(|endpoint, _| {
        let space = feroce_wire::cm::PortSpace::Tcp;
        endpoint.create(space, feroce_engine::cm::QpKind::of(space))
    });
    manager.start_resolve(id, [0, 0, 0, 0].into(), to, timeout).unwrap();
    let mut names = vec!["feroce-0", "feroce-cm", "feroce-cm-paths"];
    let net = Net::new();
    let device = net.as_ref().map(|net| {
        net.enter(0);
        Device::open("v0", DeviceConfig::default()).expect("a device")
    });
    if device.is_some() {
        names.extend(["feroce-stat", "feroce-net"]);
    }
    // A new thread gets its name when it runs.
    let is_named = |name: &&str| other_threads().iter().any(|thread| thread.name == **name);
    within(Duration::from_secs(10), || names.iter().all(is_named));
    assert_all_blocked(&names);
    for _ in 0..20 {
        kill(Pid::this(), Signal::SIGUSR2).expect("this process");
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(mask.wait(), Ok(Signal::SIGUSR2));
    }
}

fn the_mask_of_the_caller_is_restored() {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTERM);
    mask.thread_set_mask().expect("a valid mask");
    let _rig = Rig::new();
    assert_eq!(SigSet::thread_get_mask(), Ok(mask));
}

/// Numbers of the CPUs of a set.
fn numbers(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu) == Ok(true)).collect()
}

fn cpus_of(thread: Pid) -> Vec<usize> {
    sched_getaffinity(thread).map_or_else(|_| Vec::new(), |set| numbers(&set))
}

/// Binds the calling thread to `cpu`.
fn bind(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu).expect("a small number");
    sched_setaffinity(Pid::from_raw(0), &set).expect("a CPU of this process");
}

/// Returns the CPUs of this process; `None`, with a message, if there is only one.
fn several_cpus() -> Option<Vec<usize>> {
    let cpus = cpus_of(Pid::from_raw(0));
    if cpus.len() < 2 {
        feroce_test_skip::skip("one CPU");
        return None;
    }
    Some(cpus)
}

fn helpers() -> Vec<Thread> {
    other_threads().into_iter().filter(|thread| thread.name.starts_with("feroce-")).collect()
}

fn no_thread_runs_on_the_cpu_of_a_bound_thread() {
    let Some(cpus) = several_cpus() else { return };
    bind(cpus[0]);
    let _rig = Rig::new();
    let all_moved = || {
        let threads = helpers();
        threads.len() >= 2 && threads.iter().all(|thread| cpus_of(thread.id) == cpus[1..])
    };
    assert!(within(Duration::from_secs(10), all_moved), "{:?}", helpers());
    assert_eq!(cpus_of(Pid::from_raw(0)), cpus[..1], "the program's thread stays");
}

fn a_thread_that_is_bound_later_is_seen() {
    let Some(cpus) = several_cpus() else { return };
    let _rig = Rig::new();
    let all_on = |cpus: &[usize]| {
        let threads = helpers();
        threads.len() >= 2 && threads.iter().all(|thread| cpus_of(thread.id) == cpus)
    };
    assert!(within(Duration::from_secs(10), || all_on(&cpus)), "{:?}", helpers());
    bind(cpus[0]);
    let all_moved = || all_on(&cpus[1..]);
    assert!(within(Duration::from_secs(20), all_moved), "{:?}", helpers());
}

/// `taskset -p` for a helper, before the helper looks at the program's threads again.
fn cpus_given_in_the_first_second_stay() {
    let Some(cpus) = several_cpus() else { return };
    let _rig = Rig::new();
    assert!(within(Duration::from_secs(10), || helpers().len() >= 2), "{:?}", helpers());
    std::thread::sleep(Duration::from_millis(200)); // A thread has its name before its CPUs.
    let mut set = CpuSet::new();
    set.set(cpus[1]).expect("a small number");
    let threads = helpers();
    for thread in &threads {
        sched_setaffinity(thread.id, &set).expect("a thread of this process");
    }
    std::thread::sleep(Duration::from_millis(2500));
    for thread in &threads {
        assert_eq!(cpus_of(thread.id), [cpus[1]], "{thread:?}");
    }
}

/// `taskset` confines the whole process: its threads have one CPU, but none has bound itself.
fn a_confined_process_stays_inside() {
    const INSIDE: &str = "FR_THREADS_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        let cpus = cpus_of(Pid::from_raw(0));
        assert_eq!(cpus.len(), 1);
        let _rig = Rig::new();
        within(Duration::from_secs(2), || helpers().len() >= 2);
        std::thread::sleep(Duration::from_millis(1500));
        for thread in helpers() {
            assert_eq!(cpus_of(thread.id), cpus, "{thread:?}");
            let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", thread.id)).unwrap();
            assert_eq!(field_of_stat(&stat, 41), 0, "SCHED_OTHER: no thread polls on a CPU");
        }
        return;
    }
    bind(cpus_of(Pid::from_raw(0))[0]);
    let program = std::env::current_exe().expect("this program");
    let status = Command::new(program).env(INSIDE, "1").status().expect("a child");
    assert!(status.success());
}

/// Returns field `number` of `/proc/PID/stat`, counted from 1.
fn field_of_stat(stat: &str, number: usize) -> usize {
    // The name, field 2, may contain spaces.
    let after_name = stat.rsplit(')').next().expect("a name");
    after_name.split_whitespace().nth(number - 3).expect("a field").parse().expect("a number")
}

/// A program as SPDK's reactor is: one thread, bound to a CPU, posts and polls without a pause, and
/// posts receives after its sends.
fn no_helper_runs_on_the_cpu_of_a_poller() {
    const DEPTH: u64 = 64;
    let Some(cpus) = several_cpus() else { return };
    let cpu = cpus[0];
    bind(cpu);
    let rig = Rig::new();
    let (mut qps, cqs, buffers) = rig.connected();
    let sges = buffers.each_ref().map(|buffer| buffer.region().sge(0, 4096));
    let (mut on_its_cpu, mut samples) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        for wr_id in 0..DEPTH {
            let data = Data::Sges(std::slice::from_ref(&sges[0]));
            let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
            qps[0].post_send(&SendRequest { wr_id, op, data, flags }).unwrap();
        }
        for wr_id in 0..DEPTH {
            qps[1].post_recv(&RecvRequest { wr_id, sges: &sges[1..] }).unwrap();
        }
        let mut done = [0, 0];
        while done != [DEPTH; 2] {
            for end in 0..2 {
                if let Some(completion) = cqs[end].poll_one() {
                    assert!(completion.is_success(), "{completion:?}");
                    done[end] += 1;
                }
            }
        }
        for thread in helpers() {
            let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", thread.id)).unwrap();
            samples += 1;
            on_its_cpu += usize::from(field_of_stat(&stat, 39) == cpu);
        }
    }
    assert!(samples >= 2);
    assert_eq!(on_its_cpu, 0, "of {samples} samples");
}

/// Creates a QP that is connected to itself, and READs `count` times from its own buffer, one READ
/// after the other, polling without a pause.
fn read_from_itself(device: &Device, count: u64) {
    let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
    let buffer = pd.alloc_buffer(8192, Access::ALL).unwrap();
    let mut qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    // Nothing is lost, and the thread may wait for its CPU.
    let options = ConnectOptions { timeout: 0, ..ConnectOptions::default() };
    let own = qp.endpoint(Psn::new(7), 0).unwrap();
    qp.connect(Psn::new(7), &own, &options).unwrap();
    let (region, sge) = (buffer.region(), buffer.region().sge(4096, 4096));
    let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
    for wr_id in 0..count {
        let (data, flags) = (Data::Sges(std::slice::from_ref(&sge)), SendFlags::SIGNALED);
        qp.post_send(&SendRequest { wr_id, op: SendOp::Read(remote), data, flags }).unwrap();
        let done = std::iter::repeat_with(|| cq.poll_one()).find_map(|done| done);
        assert!(done.is_some_and(|done| done.is_success()), "{done:?}");
    }
}

/// Returns the CPU time of this process, in ticks of 10 ms.
fn cpu_ticks() -> usize {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    field_of_stat(&stat, 14) + field_of_stat(&stat, 15)
}

/// The thread in a turn may lose its CPU to other threads that poll: they must not spin for their
/// whole time slices.
fn many_pollers_share_a_cpu() {
    const THREADS: u64 = 32;
    const READS: u64 = 320_000;
    bind(cpus_of(Pid::from_raw(0))[0]);
    let rig = Rig::new();
    let cost = |threads: u64| {
        let before = cpu_ticks();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| read_from_itself(&rig.devices[0], READS / threads));
            }
        });
        cpu_ticks() - before
    };
    let (one, many) = (cost(1), cost(THREADS));
    assert!(many < 4 * one, "{READS} READs: {one} ticks by one thread, {many} by {THREADS}");
}

/// What a thread polls for happens only while it does not run.
fn a_poll_in_vain_gives_up_the_only_cpu() {
    const POLLS: u64 = 2000;
    bind(cpus_of(Pid::from_raw(0))[0]);
    let rig = Rig::new();
    let cq = rig.devices[0].create_cq(16).unwrap();
    let (turns, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let others = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                turns.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        while turns.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let before = turns.load(Ordering::Relaxed);
        for _ in 0..POLLS {
            assert!(cq.poll_one().is_none());
        }
        ends.store(true, Ordering::Relaxed);
        turns.load(Ordering::Relaxed) - before
    });
    assert!(others >= POLLS / 10, "the other thread ran {others} times in {POLLS} polls");
}
