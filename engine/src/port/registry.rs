//! The kinds of port: one row each in the table at the end.

use std::fmt;
use std::str::FromStr;

use super::kind::{PortConfig, PortConfigs, PortEntry};
use super::{af_xdp, daemon, dpdk, packet, udp};

/// Makes [`PortKind`] and the list of entries from rows `Variant => ENTRY`.
macro_rules! port_kinds {
    ($($(#[$doc:meta])* $kind:ident => $entry:expr,)*) => {
        /// A kind of port.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum PortKind {
            /// The first kind of the table that opens on the interface with the privileges of the
            /// process. If that is not the first one tried, a warning says why. If a configuration
            /// demands one kind ([`PortConfig::is_required`]), only that kind is tried.
            #[default]
            Auto,
            $($(#[$doc])* $kind,)*
        }

        /// Every kind except [`PortKind::Auto`] with its entry, in the order of the table.
        static ROWS: &[(PortKind, PortEntry)] = &[$((PortKind::$kind, $entry)),*];

        impl PortKind {
            /// Every kind, by its name.
            pub const NAMES: &'static [(&'static str, Self)] =
                &[("auto", Self::Auto), $(($entry.name, Self::$kind)),*];
        }
    };
}

impl PortKind {
    /// Returns every kind except [`PortKind::Auto`] with its entry, in the order in which `auto`
    /// tries them.
    pub fn rows() -> impl Iterator<Item = (Self, &'static PortEntry)> {
        ROWS.iter().map(|(kind, entry)| (*kind, entry))
    }

    /// Returns the entry of the kind; `None` for [`PortKind::Auto`].
    pub fn entry(self) -> Option<&'static PortEntry> {
        Self::rows().find(|(kind, _)| *kind == self).map(|(_, entry)| entry)
    }

    /// Returns true if the port uses an interface of the kernel, whose addresses, routes and
    /// neighbours it uses.
    pub fn is_on_kernel(self) -> bool {
        self.entry().is_none_or(|entry| entry.on_kernel)
    }

    /// Returns the cargo feature without which this program was built, if the kind needs it.
    pub fn missing_feature(self) -> Option<&'static str> {
        self.entry().filter(|entry| entry.open.is_none())?.feature
    }

    /// Returns the configuration of the kind in `configs`; `None` for [`PortKind::Auto`].
    pub fn config(self, configs: &PortConfigs) -> Option<&dyn PortConfig> {
        let index = Self::rows().position(|(kind, _)| kind == self)?;
        Some(configs.at(index))
    }
}

impl Default for PortConfigs {
    fn default() -> Self {
        Self::new(PortKind::rows().map(|(_, entry)| (entry.config)()))
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// No kind of port has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no kind of port is called `{name}`: {}", Self::known())]
pub struct UnknownPortKind {
    /// The name as given.
    pub name: String,
}

impl UnknownPortKind {
    fn known() -> String {
        let names: Vec<_> = PortKind::NAMES.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}

impl FromStr for PortKind {
    type Err = UnknownPortKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| UnknownPortKind { name: name.to_owned() })
    }
}

port_kinds! {
    /// AF_XDP sockets.
    AfXdp => af_xdp::ENTRY,
    /// Packet sockets.
    Packet => packet::ENTRY,
    /// UDP sockets.
    Udp => udp::ENTRY,
    /// A device that DPDK drives.
    Dpdk => dpdk::ENTRY,
    /// A port that a daemon owns.
    Daemon => daemon::ENTRY,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names() {
        for (name, kind) in PortKind::NAMES {
            assert_eq!(name.parse(), Ok(*kind));
            assert_eq!(kind.to_string(), *name);
        }
        let message = "infiniband".parse::<PortKind>().unwrap_err().to_string();
        assert!(message.contains("infiniband") && message.contains("af_xdp"), "{message}");
    }

    #[test]
    fn entries_are_consistent() {
        let mut names: Vec<_> = PortKind::NAMES.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PortKind::NAMES.len(), "each kind has a name of its own");
        let defaults = PortConfigs::default();
        for (kind, entry) in PortKind::rows() {
            assert!(kind.config(&defaults).is_some(), "{kind}");
            assert!(entry.open.is_some() || entry.feature.is_some(), "{kind}: never built");
            assert!(!entry.on_kernel || entry.over_interface.is_none(), "{kind}: opens interfaces");
            assert!(entry.on_kernel || !entry.in_auto, "{kind}: auto opens kernel interfaces");
            for setting in entry.settings {
                let prefix = format!("{kind}_");
                let suffix = setting.name.strip_prefix(&prefix).expect("begins with the kind");
                assert_eq!(entry.setting(suffix).map(|found| found.name), Some(setting.name));
                if let Some(option) = setting.option {
                    assert_eq!(option.flag, format!("--{}", setting.name.replace('_', "-")));
                }
                let mut configs = PortConfigs::default();
                let shown = (setting.show)(&configs);
                assert_eq!((setting.set)(&mut configs, &shown), Some(()), "{}", setting.name);
                assert_eq!((setting.show)(&configs), shown, "{}", setting.name);
            }
        }
    }
}
