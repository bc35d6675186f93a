//! Finds libdpdk, compiles the shim and generates the bindings. Does nothing without the feature
//! `link`.

fn main() {
    #[cfg(feature = "link")]
    link::run();
}

#[cfg(feature = "link")]
mod link {
    use std::env;
    use std::path::PathBuf;
    use std::process::exit;

    /// Oldest supported release: it has `rte_eth_rxmode::mtu` and the `RTE_ETH_` names.
    const OLDEST: &str = "21.11";

    /// The functions to bind; nothing else of DPDK's headers is bound.
    const FUNCTIONS: &[&str] = &[
        "rte_eal_init",
        "rte_strerror",
        "rte_dev_probe",
        "rte_dev_remove",
        "rte_eth_dev_get_port_by_name",
        "rte_eth_dev_is_valid_port",
        "rte_eth_dev_socket_id",
        "rte_eth_dev_info_get",
        "rte_eth_dev_configure",
        "rte_eth_dev_adjust_nb_rx_tx_desc",
        "rte_eth_rx_queue_setup",
        "rte_eth_tx_queue_setup",
        "rte_eth_allmulticast_enable",
        "rte_eth_dev_start",
        "rte_eth_dev_stop",
        "rte_eth_dev_close",
        "rte_eth_macaddr_get",
        "rte_eth_link_get_nowait",
        "rte_eth_stats_get",
        "rte_pktmbuf_pool_create",
        "rte_mempool_free",
        "dpdk_.*",
    ];

    /// Types that are used only through pointers.
    const OPAQUE: &[&str] = &["rte_mbuf", "rte_mempool", "rte_device", "rte_eth_dev_portconf"];

    pub fn run() {
        for file in ["shim.h", "shim.c"] {
            println!("cargo::rerun-if-changed={file}");
        }
        // Searching and linking are separate steps: the linker must see the shim, which calls
        // libdpdk, before libdpdk.
        let search = |cargo_metadata| {
            pkg_config::Config::new()
                .cargo_metadata(cargo_metadata)
                .atleast_version(OLDEST)
                .probe("libdpdk")
        };
        let library = match search(false) {
            Ok(library) => library,
            Err(error) => fail(&error.to_string()),
        };
        let mut flags: Vec<String> =
            library.include_paths.iter().map(|path| format!("-I{}", path.display())).collect();
        // Further flags of libdpdk's .pc file: the inline functions of DPDK need SSE 4.2.
        flags.extend(["-include", "rte_config.h"].map(str::to_owned));
        if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
            flags.push("-march=corei7".to_owned());
        }
        compile_shim(&flags);
        generate_bindings(&flags);
        search(true).expect("libdpdk was found before");
    }

    fn compile_shim(flags: &[String]) {
        let mut build = cc::Build::new();
        for flag in flags {
            build.flag(flag);
        }
        // Warnings in DPDK's headers are not ours to fix.
        build.file("shim.c").opt_level(3).warnings(false).compile("dpdk_shim");
    }

    fn generate_bindings(flags: &[String]) {
        let mut builder = bindgen::Builder::default()
            .header("shim.h")
            .clang_args(flags)
            .derive_default(true)
            .layout_tests(false)
            .generate_comments(false)
            .prepend_enum_name(false)
            .allowlist_var(
                "DPDK_RSS_UDP|RTE_PKTMBUF_HEADROOM|RTE_ETH_LINK_UP|RTE_ETH_SPEED_NUM_UNKNOWN",
            );
        for function in FUNCTIONS {
            builder = builder.allowlist_function(function);
        }
        for name in OPAQUE {
            builder = builder.opaque_type(name);
        }
        let bindings = match builder.generate() {
            Ok(bindings) => bindings,
            Err(error) => fail(&format!("bindgen: {error}")),
        };
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        bindings.write_to_file(out.join("bindings.rs")).expect("OUT_DIR can be written");
    }

    /// Ends the build with a message that says what helps.
    fn fail(why: &str) -> ! {
        eprintln!("feroce-dpdk-sys: {why}\n");
        eprintln!(
            "The feature `dpdk` needs DPDK {OLDEST} or newer with its headers, and libclang for \
             the bindings. On Debian: apt-get install libdpdk-dev libclang-dev pkg-config. \
             Elsewhere: PKG_CONFIG_PATH must lead to libdpdk.pc. Without the feature none of \
             these is needed."
        );
        exit(1);
    }
}
