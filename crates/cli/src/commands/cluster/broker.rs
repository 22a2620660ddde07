//! A node without its broker: what it tells of that, and when it gives up.

use std::time::Duration;

use anyhow::{Chain, Result};
use tokio::time::Instant;
use zmove_cluster::{Hindrance, WorkError};

use crate::display::terminal;
use crate::settings::cluster::Cluster;

/// What a node has seen of the broker.
#[derive(Default)]
pub(super) struct BrokerLook {
    /// Why the broker is of no use, as it was told last.
    told: Option<NoBroker>,
    /// Since when the broker refuses this node.
    refused: Option<Instant>,
}

/// Why a broker is of no use.
#[derive(Clone, PartialEq, Eq)]
enum NoBroker {
    Away,
    Hindered(Hindrance),
}

impl BrokerLook {
    /// Tells, once, why the broker is of no use.
    ///
    /// # Errors
    /// The broker has refused this node for longer than it takes to hear of one that has just been invited.
    pub(super) fn tell(&mut self, cluster: &Cluster, error: &WorkError) -> Result<()> {
        let (now, broker) = (Instant::now(), &cluster.broker);
        let (why, line) = match error {
            WorkError::Hindered(why @ Hindrance::Refused { .. }) => {
                if now.duration_since(*self.refused.get_or_insert(now)) >= REFUSED_MAX {
                    return Err(cluster.no_broker(error));
                }
                let seconds = REFUSED_MAX.as_secs();
                (
                    NoBroker::Hindered(why.clone()),
                    format!("{why}; it is asked again for {seconds} s"),
                )
            }
            WorkError::Hindered(why) => {
                self.refused = None;
                (
                    NoBroker::Hindered(why.clone()),
                    format!("{why}: waiting for the broker"),
                )
            }
            error => {
                self.refused = None;
                let why = innermost(error);
                let yet = format!(
                    "no broker at {broker} yet, which a push may start: waiting for it ({why})"
                );
                (NoBroker::Away, yet)
            }
        };
        if self.told.as_ref() != Some(&why) {
            terminal::warn(line);
            self.told = Some(why);
        }
        Ok(())
    }
}

/// What lies below all that says where an error has happened.
pub(super) fn innermost(error: &WorkError) -> String {
    Chain::new(error)
        .last()
        .map_or_else(String::new, ToString::to_string)
}

/// How long a broker may refuse a node: one that runs takes a moment to hear of an invitation.
const REFUSED_MAX: Duration = Duration::from_secs(10);
