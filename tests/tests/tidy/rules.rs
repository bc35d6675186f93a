//! The rules as data. Each exception has its reason.

/// Maximum lines of a function, from its signature to its closing brace.
pub const FUNCTION_LINES: usize = 70;

/// Longer functions, as `file: name`.
pub const LONG_FUNCTIONS: &[(&str, &str)] = &[];

/// Maximum lines of a file, without its tests.
pub const FILE_LINES: usize = 600;

/// Longer files.
pub const LONG_FILES: &[(&str, &str)] = &[];

/// Maximum columns of a line of code, comments and prose. Tables and code blocks of Markdown and
/// the values of TOML files may be wider.
pub const WIDTH: usize = 100;

/// Maximum lines of README.md, which a newcomer reads to the end.
pub const README_LINES: usize = 120;

/// Files with longer lines: a part of the path, and the reason.
pub const WIDE: &[(&str, &str)] = &[
    ("wire/src/opcode.rs", "the table of opcodes, one row each"),
    ("tests/captures/replay-exceptions.txt", "a table, one row per end"),
    ("tests/programs/table.txt", "a table, one row per program"),
    ("tests/programs/extra.txt", "a table, one row per program"),
    ("tests/programs/rxe.txt", "a table, one row per program"),
    ("/symbols-", "a list of symbols"),
    ("tests/public-api.txt", "a list, one signature per line"),
    ("docs/reproduction/report.md", "`feroce fabric report` writes it"),
    ("docs/reproduction/hpcc-flows/report.md", "`feroce fabric report` writes it"),
    ("docs/reproduction/hpcc-flows/topology.txt", "the format has the switches in one line"),
    ("docs/reproduction/rules.md", "`feroce fabric sweep` writes it"),
    ("docs/scorecards/README.md", "`feroce conform scorecard` writes it"),
];

/// Files that need no head: a part of the path, and the reason.
pub const WITHOUT_HEAD: &[(&str, &str)] =
    &[("fuzz_targets/", "one call each; the crate's `entries.rs` describes the function called")];

/// Folders and files that may contain `unsafe`, and what they need it for.
pub const UNSAFE_PLACES: &[(&str, &str)] = &[
    ("wire/src/icrc/fold.rs", "a call of a function that needs an instruction of the CPU"),
    ("engine/src/memory/", "the arena, the rings, and the access to registered memory"),
    ("engine/src/port/af_xdp/", "the kernel's rings and the packet buffers behind them"),
    ("engine/src/port/packet/", "packet sockets and the memory that the kernel reads and writes"),
    ("engine/src/port/udp/", "messages whose buffers the kernel reads and writes"),
    ("engine/src/port/pages.rs", "memory that the kernel reads and writes"),
    ("engine/src/port/socket.rs", "options and messages of sockets"),
    ("engine/src/port/ethtool.rs", "the kernel's structures about drivers"),
    ("engine/src/port/dpdk/", "DPDK's functions and its packet buffers"),
    ("engine/threads/src/", "signal masks and CPU affinity"),
    ("engine/src/sys.rs", "system calls that std does not offer"),
    ("engine/src/device/registration.rs", "the safety contract of registering a program's memory"),
    ("engine/src/device/memory_region.rs", "the safety contract of registering memory again"),
    (
        "engine/libibverbs/src/",
        "functions that C programs call with pointers: `object.rs` of verbs-abi has the contract",
    ),
    ("engine/librdmacm/src/", "functions that C programs call with pointers"),
    (
        "engine/verbs-abi/src/",
        "C structures that programs hold, and functions between the two libraries",
    ),
    (
        "engine/librspreload/src/",
        "replaces functions of the C library, which C programs call with pointers",
    ),
    ("engine/libsysview/src/calls.rs", "functions of the C library that take paths of programs"),
    ("engine/libsysview/src/next.rs", "looks up functions of the C library"),
    ("engine/libibverbs/tests/", "calls of a C program, with wrong pointers too"),
    ("engine/librdmacm/tests/", "calls of a C program, with wrong pointers too"),
    ("engine/cli/src/signal.rs", "a signal handler"),
    ("engine/loom/src/", "memory of rings, and cells that loom checks"),
    ("engine/tests/", "system calls for namespaces and raw sockets"),
    ("tests/tests/regions.rs", "memory that the test registers and unmaps"),
    ("tests/tests/large_limits.rs", "memory that the test registers"),
    ("tests/src/counting_alloc.rs", "a global allocator"),
];

/// Where a thread is started or a scope for threads is opened without `feroce_threads`, and why.
pub const THREADS: &[(&str, &str)] = &[
    ("engine/threads/src/lib.rs: thread::Builder", "the one place"),
    ("engine/cli/src/figures/mod.rs: thread::scope", "for `feroce_threads::spawn_scoped`"),
    ("engine/src/port/af_xdp/interface.rs: thread::scope", "a namespace of a test"),
    ("engine/loom/src/models.rs: thread::spawn", "loom's threads"),
];

/// Permitted import cycles: the files in order of their names, separated by spaces, and the
/// reason, which ARCHITECTURE.md gives in full.
pub const CYCLES: &[(&str, &str)] = &[];

/// A folder or file whose code must not name certain items.
#[derive(Debug)]
pub struct Restricted {
    /// Beginning of the path.
    pub place: &'static str,
    /// Rust paths that the code must not name.
    pub forbidden: &'static [&'static str],
    /// The reason.
    pub because: &'static str,
}

/// I/O, threads, locks, clocks, and the parts of the engine that use them.
const IO_AND_TIME: &[&str] = &[
    "nix::time",
    "std::fs",
    "std::io",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::thread",
    "std::time",
    "libc",
    "crate::core",
    "crate::device",
    "crate::net",
    "crate::port",
    "crate::sys",
    "crate::time::Clock",
    "crate::wake",
];

/// Code without I/O, threads, locks and clocks.
pub const RESTRICTED: &[Restricted] = &[
    Restricted {
        place: "wire/src/",
        forbidden: IO_AND_TIME,
        because: "parsing and building packets needs no state",
    },
    Restricted {
        place: "congestion/src/",
        forbidden: IO_AND_TIME,
        because: "congestion control is a value",
    },
    Restricted { place: "engine/src/qp/", forbidden: IO_AND_TIME, because: "a QP is a value" },
    Restricted {
        place: "engine/src/cm/",
        forbidden: IO_AND_TIME,
        because: "an endpoint is a value",
    },
    Restricted {
        place: "engine/librdmacm/src/rsocket/stream.rs",
        forbidden: IO_AND_TIME,
        because: "a stream is a value: tests play two streams against each other",
    },
    Restricted {
        place: "engine/src/pfc/",
        forbidden: IO_AND_TIME,
        because: "flow control is a value",
    },
    Restricted {
        place: "engine/src/timer_wheel.rs",
        forbidden: IO_AND_TIME,
        because: "time is an argument",
    },
];

/// Packages from the bottom up. Each depends on lower layers only. The tests are at the top, so
/// that no product depends on test code.
pub const LAYERS: &[&[&str]] = &[
    &[
        "feroce-wire",
        "feroce-congestion",
        "feroce-threads",
        "feroce-dpdk-sys",
        "feroce-libsysview",
        "feroce-device-plugin",
        TEST_SKIP,
    ],
    &["feroce-engine", "feroce-verbs-abi"],
    &["feroce-libibverbs", "feroce-pfc-tools"],
    &["feroce-conform", "feroce-librdmacm", "feroce-librspreload"],
    &["feroce"],
    &["feroce-tests"],
    &["feroce-xtask"],
];

/// The package that only tests may depend on.
pub const TEST_SKIP: &str = "feroce-test-skip";

/// Environment variables that products read although they are not settings, and their purpose.
pub const VARIABLES: &[(&str, &str)] = &[
    ("FEROCE_CONFIG", "names the configuration file"),
    ("FEROCE_LOG", "level of the messages on standard error"),
    ("FEROCE_PCAP", "set by `feroce run --pcap` for the program that it starts"),
    ("FEROCE_PCAP_SNAP", "set by `feroce run --pcap-snap` for the program that it starts"),
    ("FEROCE_SYSVIEW", "set by `feroce run` for `libsysview.so.1` in the program"),
];

/// Guides for contributors, which name files and functions.
pub const GUIDES: [&str; 2] = ["ARCHITECTURE.md", "CONTRIBUTING.md"];

/// Structs that users configure, and the document that explains the default of each field.
pub const CONFIGURATION: &[(&str, &str)] = &[
    ("docs/defaults.md", "AfXdpConfig"),
    ("docs/defaults.md", "CmConfig"),
    ("docs/defaults.md", "ConnectOptions"),
    ("docs/defaults.md", "DaemonConfig"),
    ("docs/defaults.md", "DaemonPortConfig"),
    ("docs/defaults.md", "DeviceConfig"),
    ("docs/defaults.md", "DpdkConfig"),
    ("docs/defaults.md", "Limits"),
    ("docs/defaults.md", "PacketConfig"),
    ("docs/defaults.md", "QpInit"),
    ("docs/defaults.md", "UdpConfig"),
    ("docs/configuration.md", "Settings"),
];

/// Returns words that mark unfinished work. They are assembled here, so that this file does not
/// contain them.
pub fn leftover_words() -> Vec<String> {
    let pairs = [
        ("TO", "DO"),
        ("FIX", "ME"),
        ("XX", "X"),
        ("db", "g!"),
        ("to", "do!"),
        ("unimple", "mented!"),
    ];
    pairs.iter().map(|(start, end)| format!("{start}{end}")).collect()
}
