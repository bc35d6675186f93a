//! The rules as data, and what is allowed to break them, each with its reason.

/// Most lines of a function, from its signature to its closing brace.
pub const FUNCTION_LINES: usize = 70;

/// Functions that are longer, as `file: name`.
pub const LONG_FUNCTIONS: &[(&str, &str)] = &[];

/// Most lines of a file, without its tests.
pub const FILE_LINES: usize = 600;

/// Files that are longer.
pub const LONG_FILES: &[(&str, &str)] = &[];

/// Maximum columns of a line of code, comments and prose. Tables and code blocks of Markdown and
/// the values of TOML files may be wider.
pub const WIDTH: usize = 100;

/// Files whose lines may be longer.
pub const WIDE: &[(&str, &str)] = &[
    ("wire/src/opcode.rs", "the table of opcodes, one row each"),
    ("tests/programs/table.txt", "a table, one row per program"),
    ("tests/programs/rxe.txt", "a table, one row per program"),
    ("/symbols-", "a list of symbols"),
    ("tests/public-api.txt", "a list, one signature per line"),
    ("docs/reproduction/report.md", "`feroce fabric report` writes it"),
    ("docs/scorecards/README.md", "`feroce conform scorecard` writes it"),
];

/// Where files need not say what they are.
pub const SILENT: &[(&str, &str)] =
    &[("fuzz_targets/", "one call each; what it does is said in the crate's `entries.rs`")];

/// Where `unsafe` may be written (a folder or a file), and what for.
pub const UNSAFE_ROOMS: &[(&str, &str)] = &[
    ("engine/src/memory/", "the arena, the rings, and the access to registered memory"),
    ("engine/src/port/af_xdp/", "the kernel's rings and the packet buffers behind them"),
    ("engine/src/port/packet/", "packet sockets and the memory that the kernel reads and writes"),
    ("engine/src/port/ethtool.rs", "the kernel's structures about drivers"),
    ("engine/src/port/dpdk/", "DPDK's functions and its packet buffers"),
    ("engine/src/sys.rs", "system calls that std does not offer"),
    ("engine/src/device/registration.rs", "the contract of registering a program's memory"),
    ("engine/src/device/memory_region.rs", "the same, of registering it again"),
    (
        "engine/libibverbs/src/",
        "C programs call it and answer for their pointers: `object.rs` of verbs-abi says how",
    ),
    ("engine/librdmacm/src/", "the same"),
    ("engine/verbs-abi/src/", "objects that programs hold, and what the two libraries share"),
    ("engine/librspreload/src/", "it stands between C programs and the C library"),
    ("engine/cli/src/signal.rs", "one signal handler"),
    ("engine/tests/", "namespaces and raw sockets, to test against the kernel"),
    ("tests/tests/regions.rs", "memory that the test registers, and takes away"),
    ("tests/src/counting_alloc.rs", "a global allocator"),
];

/// Circles of imports that stay, as the files in order of their names, and why (ARCHITECTURE.md
/// says it at length).
pub const CIRCLES: &[(&str, &str)] = &[];

/// A place that knows nothing of some things.
#[derive(Debug)]
pub struct Pure {
    /// Folder or file.
    pub place: &'static str,
    /// Paths that it does not name.
    pub without: &'static [&'static str],
    /// Why.
    pub because: &'static str,
}

/// Everything that touches the world outside of a value.
const WORLD: &[&str] = &[
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

/// The pure places.
pub const PURE: &[Pure] = &[
    Pure { place: "wire/src/", without: WORLD, because: "bytes and meaning, nothing else" },
    Pure { place: "congestion/src/", without: WORLD, because: "a rate machine is a value" },
    Pure { place: "engine/src/qp/", without: WORLD, because: "a QP is a value" },
    Pure { place: "engine/src/cm/", without: WORLD, because: "an endpoint is a value" },
    Pure {
        place: "engine/librdmacm/src/rsocket/stream.rs",
        without: WORLD,
        because: "two ends are played against each other",
    },
    Pure { place: "engine/src/pfc/", without: WORLD, because: "flow control is a value" },
    Pure { place: "engine/src/timer_wheel.rs", without: WORLD, because: "time is an argument" },
];

/// Packages from the bottom up: each depends on lower layers only. The test harness is at the top,
/// so that no product depends on it.
pub const LAYERS: &[&[&str]] = &[
    &["feroce-wire", "feroce-congestion", "feroce-dpdk-sys"],
    &["feroce-engine", "feroce-verbs-abi"],
    &["feroce-libibverbs", "feroce-pfc-tools"],
    &["feroce-conform", "feroce-librdmacm", "feroce-librspreload"],
    &["feroce"],
    &["feroce-tests"],
    &["feroce-xtask"],
];

/// Environment variables of products that are not settings, and what they are for.
pub const VARIABLES: &[(&str, &str)] = &[
    ("FEROCE_CONFIG", "names the configuration file"),
    ("FEROCE_PCAP", "set by `feroce run --pcap` for the program that it starts"),
    ("FEROCE_PCAP_SNAP", "set by `feroce run --pcap-snap` for the program that it starts"),
];

/// What a user configures, and the document that gives the reason for each field's default.
pub const CONFIGURATION: &[(&str, &str)] = &[
    ("docs/defaults.md", "AfXdpConfig"),
    ("docs/defaults.md", "CmConfig"),
    ("docs/defaults.md", "ConnectOptions"),
    ("docs/defaults.md", "DeviceConfig"),
    ("docs/defaults.md", "DpdkConfig"),
    ("docs/defaults.md", "PacketConfig"),
    ("docs/defaults.md", "QpInit"),
    ("docs/configuration.md", "Settings"),
];

/// Words that should not have stayed. Put together here, or this file would have them.
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
