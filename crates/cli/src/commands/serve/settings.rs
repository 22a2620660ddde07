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
        let storage = StorageArgs {
            io_engine: args.io_engine.or(config.io_engine).unwrap_or_default(),
            direct: args.direct.or(config.direct).unwrap_or_default(),
        };
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT));
        Self {
            listen: args.listen.or(config.listen).unwrap_or(any),
            choice: args.transport.or(config.transport).unwrap_or_default().choice(),
            allow_clear: args.allow_clear || config.allow_clear == Some(true),
            journal_age: args.journal_age.or(config.journal_age).unwrap_or(JOURNAL_AGE),
            storage,
            drain: args.drain.or(config.drain).map_or(Duration::ZERO, |Age(drain)| drain),
            log_format: args.log_format.or(config.log.format).unwrap_or_default(),
            metrics: args.metrics.or(config.metrics.listen).unwrap_or_default().0,
            limits: config.limits,
            user: args.user.clone().or_else(|| config.user.clone()),
            confine: args.confine.or(config.confine).unwrap_or_default(),
        }
    }
}
