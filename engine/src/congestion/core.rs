//! The congestion control state of a core.

use feroce_congestion::{Control, Rate};

use super::config::CongestionConfig;
use super::notification::CnpGenerator;
use super::sender::Sender;
use crate::time::Instant;

/// The congestion control state of a core, which its QPs share.
#[derive(Debug)]
pub struct CoreCongestion {
    config: CongestionConfig,
    link_rate: Rate,
    /// The CNPs for received packets.
    pub cnps: CnpGenerator,
}

impl CoreCongestion {
    /// For a link of `link_rate` bit/s; `None` if congestion control is off.
    pub fn new(config: &CongestionConfig, link_rate: Option<u64>) -> Option<Self> {
        (config.control != Control::Off).then(|| Self {
            config: *config,
            link_rate: config.link_rate(link_rate),
            cnps: CnpGenerator::new(&config.params.notification),
        })
    }

    /// Changes the configuration of the core and of the QPs whose state is in `senders`.
    pub fn set_config<'a>(
        &mut self,
        config: &CongestionConfig,
        link_rate: Option<u64>,
        senders: impl Iterator<Item = &'a mut Sender>,
        now: Instant,
    ) {
        self.config = *config;
        self.link_rate = config.link_rate(link_rate);
        self.cnps.set_params(&config.params.notification);
        for sender in senders {
            sender.set_config(config, self.link_rate, now);
        }
    }

    /// The state of a QP that has sent nothing.
    pub fn sender(&self) -> Sender {
        Sender::new(&self.config, self.link_rate, Instant::ZERO)
    }
}
