//! What `zmove serve` runs with: what was typed, else what the file says, else what is usual.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use zmove_receiver::Limits;
use zmove_transport::TransportChoice;

use crate::args::{ConfineArg, LogFormat, ServeArgs, StorageArgs};
use crate::commands::serve::config::Config;
use crate::value::age::Age;
use zmove_engine::DEFAULT_PORT;

/// The settings of one daemon.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) listen: SocketAddr,
    pub(super) choice: TransportChoice,
    pub(super) allow_clear: bool,
    pub(super) journal_age: Age,
    pub(super) storage: StorageArgs,
    pub(super) drain: Duration,
    pub(super) log_format: LogFormat,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) limits: Limits,
    pub(super) user: Option<String>,
    pub(super) confine: ConfineArg,
}

const JOURNAL_AGE: Age = Age(Duration::from_secs(7 * 24 * 60 * 60));

impl Settings {
    pub(super) fn new(args: &ServeArgs, config: &Config) -> Self {
        let listen = args.listen.or(config.listen.as_ref().map(|text| text.0));
        let transport = args.transport.or(config.transport.map(|word| word.0)).unwrap_or_default();
        let journal_age = args.journal_age.or(config.journal_age.as_ref().map(|text| text.0));
        let io_engine = args.io_engine.or(config.io_engine.map(|word| word.0)).unwrap_or_default();
        let direct = args.direct.or(config.direct.map(|word| word.0)).unwrap_or_default();
        let drain = args.drain.or(config.drain.as_ref().map(|text| text.0));
        let metrics = args.metrics.or(config.metrics.listen.as_ref().map(|text| text.0));
        Self {
            listen: listen.unwrap_or_else(|| SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT))),
            choice: transport.choice(),
            allow_clear: args.allow_clear || config.allow_clear == Some(true),
            journal_age: journal_age.unwrap_or(JOURNAL_AGE),
            storage: StorageArgs { io_engine, direct },
            drain: drain.map_or(Duration::ZERO, |drain| drain.0),
            log_format: args.log_format.or(config.log.format.map(|word| word.0)).unwrap_or_default(),
            metrics: metrics.unwrap_or_default().0,
            limits: config.limits,
            user: args.user.clone().or_else(|| config.user.clone()),
            confine: args.confine.or(config.confine.map(|word| word.0)).unwrap_or_default(),
        }
    }
}
