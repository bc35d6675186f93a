//! The rows of `xtask packages`: packages of Rust and Python with their versions, what is run of
//! each, and the tests that fail by the package's own fault.

/// A package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    /// Its name in the registry.
    pub name: &'static str,
    /// The version.
    pub version: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// Debian packages that it needs to build or to run.
    pub needs: &'static [&'static str],
}

/// Where a package comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A Rust crate. cargo downloads and builds it.
    Crates,
    /// A crate's repository, which has tests that the crate lacks. The user names a clone.
    Clone {
        /// The repository.
        url: &'static str,
        /// The commit.
        commit: &'static str,
    },
    /// A Python package: the arguments of `pip install`, in a virtual environment.
    Pypi(&'static [&'static str]),
}

/// What is run of a package.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The package.
    pub package: &'static Package,
    /// What the row shows.
    pub what: &'static str,
    /// What is run.
    pub run: Run,
}

/// What is run.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// The crate's own tests, in one namespace: every test program, one after the other.
    Tests {
        /// Words for `cargo test`.
        select: &'static [&'static str],
        /// Words for the test programs.
        arguments: &'static [&'static str],
        /// Tests that fail by the package's own fault, or cannot run on Feroce.
        faults: &'static [Fault],
    },
    /// Two programs, or one.
    Ends(Ends),
}

/// Two programs in two namespaces, or one without a server.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// Arguments of `cargo build`; none for our own program of a crate.
    pub build: &'static [&'static str],
    /// The server's command line. `{built}` stands for the folder of what cargo built, `{python}`
    /// for the interpreter with the packages, `{programs}` for tests/packages, `SERVER` and
    /// `CLIENT` for the addresses.
    pub server: Option<&'static str>,
    /// The client's command line.
    pub client: &'static str,
    /// What a line of the client's output must match.
    pub pattern: &'static str,
    /// True if the ends talk to each other by TCP before they use RDMA.
    pub has_tcp: bool,
    /// True if the server does not end by itself.
    pub is_endless: bool,
    /// True if the package brings a libibverbs of its own, or loads one by another name:
    /// `LD_PRELOAD` puts Feroce's in front.
    pub preload: bool,
}

/// A test that is known to fail.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// `PROGRAM::TEST`, as the results name it.
    pub test: &'static str,
    /// Why it fails.
    pub reason: &'static str,
}

const RUST: &[&str] = &["libibverbs-dev", "librdmacm-dev", "clang", "libclang-dev", "pkg-config"];

const IBVERBS: Package = Package {
    name: "ibverbs",
    version: "0.9.2",
    source: Source::Crates,
    // The crate configures a copy of rdma-core for its headers; it links the installed library.
    needs: &[
        "libibverbs-dev",
        "clang",
        "libclang-dev",
        "cmake",
        "pkg-config",
        "libnl-3-dev",
        "libnl-route-3-dev",
        "libudev-dev",
    ],
};
const SIDEWAY: Package =
    Package { name: "sideway", version: "0.4.3", source: Source::Crates, needs: RUST };
const RDMA_IO: Package =
    Package { name: "rdma-io", version: "0.0.2", source: Source::Crates, needs: RUST };
const RDMA_IO_CLONE: Package = Package {
    name: "rdma-io",
    version: "0.0.2",
    source: Source::Clone {
        url: "https://github.com/youyuanwu/rust-rdma-io",
        commit: "e693d79f207f",
    },
    needs: &[
        "libibverbs-dev",
        "librdmacm-dev",
        "clang",
        "libclang-dev",
        "pkg-config",
        "protobuf-compiler",
        "libssl-dev",
    ],
};
const ASYNC_RDMA: Package =
    Package { name: "async-rdma", version: "0.5.0", source: Source::Crates, needs: RUST };
const MOONCAKE: Package = Package {
    name: "mooncake-transfer-engine-non-cuda",
    version: "0.3.13.post1",
    source: Source::Pypi(&["mooncake-transfer-engine-non-cuda==0.3.13.post1"]),
    needs: &["python3-venv", "libcurl4", "libnuma1"],
};
const NIXL: Package = Package {
    name: "nixl-cu12",
    version: "1.5.1",
    // pip would install torch with it, which only some of its functions need.
    source: Source::Pypi(&["--no-deps", "nixl-cu12==1.5.1", "numpy"]),
    needs: &["python3-venv"],
};

const IMMEDIATE: &str = "compares wc_flags with 3, rxe's value for a receive with immediate data; \
                         with other devices, programs set 2 with set_imm_flag_in_wc";
const NAMES: &str = "takes only devices whose name begins with siw or rxe";

/// The rows.
pub const ROWS: &[Row] = &[
    Row { package: &IBVERBS, what: "its tests", run: tests(&[], &[], &[]) },
    Row {
        package: &IBVERBS,
        what: "example loopback",
        run: alone(
            &["--locked", "--example", "loopback"],
            "{built}/examples/loopback",
            "^received$",
        ),
    },
    Row {
        package: &SIDEWAY,
        what: "its tests, without one that runs the compiler only",
        run: tests(&["--lib", "--test", "test_*"], &[], &[]),
    },
    Row {
        package: &SIDEWAY,
        what: "example ibv_devinfo",
        run: alone(
            &["--locked", "--example", "ibv_devinfo"],
            "{built}/examples/ibv_devinfo",
            "feroce0",
        ),
    },
    Row {
        package: &SIDEWAY,
        what: "example show_gids",
        run: alone(
            &["--locked", "--example", "show_gids"],
            "{built}/examples/show_gids",
            "feroce0.*10.77.0.1",
        ),
    },
    Row {
        package: &SIDEWAY,
        what: "example rc_pingpong",
        run: Run::Ends(Ends {
            build: &["--locked", "--example", "rc_pingpong"],
            server: Some("{built}/examples/rc_pingpong -d feroce0 -g 1"),
            client: "{built}/examples/rc_pingpong -d feroce0 -g 1 SERVER",
            pattern: "iters in",
            has_tcp: true,
            is_endless: false,
            preload: false,
        }),
    },
    Row {
        package: &SIDEWAY,
        what: "example rc_pingpong_split",
        run: Run::Ends(Ends {
            build: &["--locked", "--example", "rc_pingpong_split"],
            server: Some("{built}/examples/rc_pingpong_split -d feroce0 -g 1"),
            client: "{built}/examples/rc_pingpong_split -d feroce0 -g 1 SERVER",
            pattern: "iters in",
            has_tcp: true,
            is_endless: false,
            preload: false,
        }),
    },
    Row {
        package: &SIDEWAY,
        what: "example cmtime",
        run: Run::Ends(Ends {
            build: &["--locked", "--example", "cmtime"],
            server: Some("{built}/examples/cmtime -b SERVER"),
            client: "{built}/examples/cmtime -b CLIENT -s SERVER",
            pattern: "(?i)disconnect",
            has_tcp: false,
            is_endless: true,
            preload: false,
        }),
    },
    Row {
        package: &RDMA_IO,
        what: "own program: streams over its three transports, data checked",
        run: Run::Ends(Ends {
            build: &[],
            server: Some("{built}/rdma-io-program"),
            client: "{built}/rdma-io-program SERVER",
            pattern: "^all data correct$",
            has_tcp: false,
            is_endless: false,
            preload: false,
        }),
    },
    Row {
        package: &RDMA_IO_CLONE,
        what: "tests of its repository",
        run: tests(
            &["--package", "rdma-io-tests"],
            &["--test-threads=1"], // The repository says so.
            &[
                Fault { test: "sys_tests::test_alloc_dealloc_pd", reason: NAMES },
                Fault { test: "sys_tests::test_create_destroy_cq", reason: NAMES },
                Fault { test: "sys_tests::test_create_qp", reason: NAMES },
                Fault { test: "sys_tests::test_multiple_resources", reason: NAMES },
                Fault { test: "sys_tests::test_open_close_device", reason: NAMES },
                Fault { test: "sys_tests::test_query_device", reason: NAMES },
                Fault { test: "sys_tests::test_rdma_device_available", reason: NAMES },
                Fault { test: "sys_tests::test_register_deregister_mr", reason: NAMES },
            ],
        ),
    },
    Row {
        package: &ASYNC_RDMA,
        what: "its tests",
        run: tests(
            &["--features", "cm,raw"],
            &[],
            &[
                Fault { test: "imm::send_with_imm::main", reason: IMMEDIATE },
                Fault { test: "imm::write_with_imm::main", reason: IMMEDIATE },
            ],
        ),
    },
    Row {
        package: &ASYNC_RDMA,
        what: "its test of cancellation",
        run: tests(&["--features", "cancel_safety_test", "--test", "cancel_safety"], &[], &[]),
    },
    Row {
        package: &ASYNC_RDMA,
        what: "example rpc",
        run: alone(&["--locked", "--example", "rpc"], "{built}/examples/rpc", "^response: world$"),
    },
    Row {
        package: &ASYNC_RDMA,
        what: "examples cm_server, cm_client",
        run: Run::Ends(Ends {
            build: &[
                "--locked",
                "--features",
                "cm,raw",
                "--example",
                "cm_server",
                "--example",
                "cm_client",
            ],
            server: Some("{built}/examples/cm_server"),
            client: "{built}/examples/cm_client SERVER 7471",
            pattern: "^cm_client: end$",
            has_tcp: false,
            is_endless: false,
            preload: false,
        }),
    },
    Row {
        package: &MOONCAKE,
        what: "transfer engine, protocol rdma: WRITE and READ, data checked",
        run: Run::Ends(Ends {
            build: &[],
            server: Some("{python} -B {programs}/mooncake_rdma.py SERVER"),
            client: "{python} -B {programs}/mooncake_rdma.py CLIENT SERVER",
            pattern: "^all data correct$",
            has_tcp: true,
            is_endless: false,
            preload: false,
        }),
    },
    Row {
        package: &NIXL,
        what: "backend UCX, host memory, RC: WRITE and READ, data checked; with LD_PRELOAD",
        run: Run::Ends(Ends {
            build: &[],
            server: Some("env UCX_TLS=rc,self {python} -B {programs}/nixl_ucx.py"),
            client: "env UCX_TLS=rc,self {python} -B {programs}/nixl_ucx.py SERVER",
            pattern: "^all data correct$",
            has_tcp: true,
            is_endless: false,
            preload: true,
        }),
    },
];

const fn tests(
    select: &'static [&'static str],
    arguments: &'static [&'static str],
    faults: &'static [Fault],
) -> Run {
    Run::Tests { select, arguments, faults }
}

const fn alone(build: &'static [&'static str], client: &'static str, pattern: &'static str) -> Run {
    Run::Ends(Ends {
        build,
        server: None,
        client,
        pattern,
        has_tcp: false,
        is_endless: false,
        preload: false,
    })
}

impl Row {
    /// The words that a filter matches.
    pub fn title(&self) -> String {
        format!("{} {}: {}", self.package.name, self.package.version, self.what)
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn rows_have_different_titles_and_patterns_that_are_regular_expressions() {
        let mut titles: Vec<String> = ROWS.iter().map(Row::title).collect();
        titles.sort();
        titles.dedup();
        assert_eq!(titles.len(), ROWS.len());
        for row in ROWS {
            if let Run::Ends(ends) = row.run {
                Regex::new(ends.pattern).expect("a regular expression");
            }
        }
    }

    #[test]
    fn pip_installs_the_version_of_the_row() {
        for row in ROWS {
            if let Source::Pypi(words) = row.package.source {
                let wanted = format!("{}=={}", row.package.name, row.package.version);
                assert!(words.contains(&wanted.as_str()), "{wanted}");
            }
        }
    }
}
